#include "transport/shm/ready_reads.hpp"

#include <algorithm>

#include "tensor/strided.hpp"

namespace tessera::shm {
namespace {

bool lies_in_arena(const Announced& tensor) {
  return tensor.inlined == nullptr && (tensor.where.words[1] & (kShared | kMirrored)) == kShared;
}

}  // namespace

bool ReadyReads::fits(const Move& move, int rank, const PeerTensors& peers) {
  return std::all_of(move.receives.begin(), move.receives.end(), [&](const Receive& receive) {
    if (!receive.is_copy()) return false;
    const Term& term = move.terms[receive.first_term];
    return term.rank == rank || lies_in_arena(*peers[static_cast<size_t>(term.rank)][static_cast<size_t>(term.tensor)]);
  });
}

ReadyReads::ReadyReads(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers) {
  for (const Receive& receive : move.receives) {
    const Tensor& out = mine[static_cast<size_t>(receive.tensor)];
    const Term& term = move.terms[receive.first_term];
    const auto number = static_cast<size_t>(term.tensor);
    const bool own = term.rank == rank;
    const View target = view_of(out).box(receive.box);
    ConstView whole;
    if (own) {
      whole = view_of(mine[number]);
    } else {
      const Announced& there = *peers[static_cast<size_t>(term.rank)][number];
      whole = {out.data(), there.dtype, there.shape, there.strides};  // wherever that is
    }
    const ConstView source = whole.box(term.box);
    Read read{PreparedCopy(target, source), receive.tensor, target.data - out.data(), term.rank, term.tensor};
    read.from = source.data - whole.data;
    read.is_own = own;
    for (size_t d = 0; d < source.shape.size(); ++d) {
      const int64_t span = (source.shape[d] - 1) * source.strides[d] * size_bytes(source.dtype);
      (span < 0 ? read.low : read.high) += span;
    }
    read.low += read.from;
    read.high += read.from + size_bytes(source.dtype);
    reads_.push_back(std::move(read));
  }
}

bool ReadyReads::run(const World& world, std::span<const int> members, Mapper& mapper, std::span<const Tensor> mine,
                     const PeerTensors& peers) const {
  const auto place_of = [&](const Read& read) -> const std::byte* {
    const auto number = static_cast<size_t>(read.term);
    if (read.is_own) return mine[number].data();
    const Announced& there = *peers[static_cast<size_t>(read.rank)][number];
    if (!lies_in_arena(there)) return nullptr;
    const int peer = members[static_cast<size_t>(read.rank)];
    const auto arena = world.segment().arena(peer);
    const auto at = static_cast<int64_t>(there.where.words[1] & kOffsetMask), end = static_cast<int64_t>(arena.size());
    if (at > end || at < -read.low || read.high > end - at) return nullptr;
    mapper.map(world, peer, arena.data() + at + read.high);
    return arena.data() + at;
  };
  if (!std::all_of(reads_.begin(), reads_.end(), place_of)) return false;
  for (const Read& read : reads_) {
    read.copy.run(mine[static_cast<size_t>(read.tensor)].data() + read.to, place_of(read) + read.from);
  }
  return true;
}

}  // namespace tessera::shm
