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
  return std::all_of(move.terms.begin(), move.terms.end(), [&](const Term& term) {
    return term.rank == rank || lies_in_arena(*peers[static_cast<size_t>(term.rank)][static_cast<size_t>(term.tensor)]);
  });
}

ReadyReads::ReadyReads(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers) {
  std::vector<ConstView> terms;
  for (const Receive& receive : move.receives) {
    const Tensor& out = mine[static_cast<size_t>(receive.tensor)];
    const View target = view_of(out).box(receive.box);
    Write write{receive.tensor, target.data - out.data(), sources_.size(), {}, {}};
    terms.clear();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      terms.push_back(add_source(move.terms[t], rank, mine, peers, out.data()));
    }
    if (receive.is_copy()) write.copy.emplace(target, terms[0]);
    else write.sum.emplace(target, terms, receive.reduction, receive.axes);
    writes_.push_back(std::move(write));
  }
  places_.resize(sources_.size());
}

ConstView ReadyReads::add_source(const Term& term, int rank, std::span<const Tensor> mine, const PeerTensors& peers,
                                 const std::byte* anywhere) {
  const auto number = static_cast<size_t>(term.tensor);
  ConstView whole;
  if (term.rank == rank) {
    whole = view_of(mine[number]);
  } else {
    const Announced& there = *peers[static_cast<size_t>(term.rank)][number];
    whole = {anywhere, there.dtype, there.shape, there.strides};
  }
  const ConstView view = whole.box(term.box);
  Source source{term.rank, term.tensor, term.rank == rank};
  source.from = view.data - whole.data;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    const int64_t span = (view.shape[d] - 1) * view.strides[d] * size_bytes(view.dtype);
    (span < 0 ? source.low : source.high) += span;
  }
  source.low += source.from;
  source.high += source.from + size_bytes(view.dtype);
  sources_.push_back(source);
  return view;
}

bool ReadyReads::run(const World& world, std::span<const int> members, Mapper& mapper, std::span<const Tensor> mine,
                     const PeerTensors& peers) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    const auto number = static_cast<size_t>(source.tensor);
    if (source.is_own) {
      places_[i] = mine[number].data() + source.from;
      continue;
    }
    const Announced& there = *peers[static_cast<size_t>(source.rank)][number];
    if (!lies_in_arena(there)) return false;
    const int peer = members[static_cast<size_t>(source.rank)];
    const auto arena = world.segment().arena(peer);
    const auto at = static_cast<int64_t>(there.where.words[1] & kOffsetMask), end = static_cast<int64_t>(arena.size());
    if (at > end || at < -source.low || source.high > end - at) return false;
    mapper.map(world, peer, arena.data() + at + source.high);
    places_[i] = arena.data() + at + source.from;
  }
  for (Write& write : writes_) {
    std::byte* const to = mine[static_cast<size_t>(write.tensor)].data() + write.to;
    if (write.copy) write.copy->run(to, places_[write.first]);
    else write.sum->run(to, &places_[write.first]);
  }
  return true;
}

}  // namespace tessera::shm
