#include "transport/shm/source.hpp"

#include <sys/mman.h>

#include <algorithm>

#include <fmt/format.h>

#include "tensor/copy.hpp"
#include "tensor/runs.hpp"
#include "transport/chunks.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace tessera::shm {
namespace {

using Wide = __int128;

struct Reach {
  Wide low = 0;   // of the first byte, from element [0, 0, …]
  Wide high = 0;  // behind the last byte
};

Reach reach_of(const ConstView& view, const Box* box = nullptr) {
  Reach reach;
  const Wide size = size_bytes(view.dtype);
  for (size_t d = 0; d < view.shape.size(); ++d) {
    const Wide stride = Wide{view.strides[d]} * size;
    const Wide extent = box == nullptr ? view.shape[d] : box->extent[d];
    const Wide start = stride * (box == nullptr ? 0 : box->offset[d]), span = stride * (extent - 1);
    reach.low += start + (span < 0 ? span : 0);
    reach.high += start + (span > 0 ? span : 0);
  }
  reach.high += size;
  return reach;
}

[[noreturn]] void damaged(int rank) {
  throw Error(fmt::format("rank {}'s record is damaged: a tensor lies outside of its memory", rank));
}

constexpr int64_t kScratchBytes = int64_t{128} << 10;
constexpr int64_t kShortRun = 2048;  // below it, pieces cost the kernel more than a second copy out of the cache

class Pieces {
 public:
  Pieces(const World& world, int rank) : world_(world), rank_(rank) {}

  bool add(std::byte* here, const std::byte* there, int64_t bytes) {
    if ((count_ == kMostPieces || bytes_ >= kFlushBytes) && !flush()) return false;
    here_[count_] = {here, static_cast<size_t>(bytes)};
    there_[count_++] = {const_cast<std::byte*>(there), static_cast<size_t>(bytes)};
    bytes_ += bytes;
    return true;
  }

  // False where the owner is gone.
  bool flush() {
    if (count_ == 0 || gone_) return !gone_;
    switch (read_process(world_.identity(rank_), std::span(here_).first(count_), std::span(there_).first(count_))) {
      case Attached::whole: break;
      case Attached::gone: gone_ = true; break;
      case Attached::refused:
        throw Error(
            fmt::format("rank {} announced memory that cannot be read: it was freed, or the record is damaged", rank_));
    }
    count_ = 0;
    bytes_ = 0;
    return !gone_;
  }

 private:
  static constexpr int64_t kFlushBytes = int64_t{1} << 30;

  const World& world_;
  const int rank_;
  std::array<iovec, kMostPieces> here_, there_;
  size_t count_ = 0;
  int64_t bytes_ = 0;
  bool gone_ = false;
};

int64_t longest_run(const View& target, const ConstView& source) {
  int64_t run = 0;
  for_each_run(target, source, [&](std::byte*, const std::byte*, int64_t bytes) {
    run = bytes;
    return false;
  });
  return run;
}

}  // namespace

Source locate(std::span<const std::byte> arena, int rank, const Announced& tensor, const Box& box) {
  Source source;
  source.rank = rank;
  if (tensor.inlined != nullptr) {
    source.view = tensor.inlined_view().box(box);
    return source;
  }
  const uint64_t word = tensor.where.words[1];
  ConstView whole{reinterpret_cast<const std::byte*>(tensor.where.words[0]), tensor.dtype, tensor.shape,
                  tensor.strides};
  if ((word & kShared) == 0) {
    const Reach reach = reach_of(whole, &box);
    const Wide address = tensor.where.words[0], limit = Wide{1} << 57;  // of any user's address
    if (address == 0 || address >= limit || address + reach.low <= 0 || address + reach.high > limit) damaged(rank);
    source.kind = Source::attached;
    source.view = whole.box(box);
    return source;
  }
  const Wide at = word & kOffsetMask;
  if ((word & kMirrored) != 0) {
    source.kind = Source::mirrored;
    whole.strides = row_major(whole.shape);
  }
  const Reach reach = reach_of(whole, &box);
  const Wide head = source.kind == Source::mirrored ? sizeof(MirrorHead) : 0;
  const bool inside = at + reach.low >= head && at + reach.high <= Wide{arena.size()};
  if (!inside || at < head || at > Wide{arena.size()} || (head != 0 && at % alignof(MirrorHead) != 0)) {
    damaged(rank);
  }
  whole.data = arena.data() + static_cast<size_t>(at);
  source.mirror = whole.data;
  source.view = whole.box(box);
  if (head != 0) source.head = reinterpret_cast<const MirrorHead*>(whole.data - sizeof(MirrorHead));
  return source;
}

void Mapper::map(const World& world, int rank, const std::byte* end) {
  constexpr size_t kStep = size_t{2} << 20;
  if (mapped_.empty()) mapped_.resize(static_cast<size_t>(world.ranks()));
  size_t& mapped = mapped_[static_cast<size_t>(rank)];
  const auto arena = world.segment().arena(rank);
  const auto wanted = static_cast<size_t>(end - arena.data());
  if (wanted <= mapped) return;
  const size_t until = std::min((wanted + kStep - 1) / kStep * kStep, arena.size());
  madvise(arena.data() + mapped, until - mapped, MADV_POPULATE_READ);
  mapped = until;
}

bool read_attached(const World& world, const View& target, const Source& source, std::vector<std::byte>& scratch) {
  Pieces pieces(world, source.rank);
  const auto add = [&](std::byte* here, const std::byte* there, int64_t bytes) {
    return pieces.add(here, there, bytes);
  };
  const int64_t run = longest_run(target, source.view);
  if (run >= kShortRun) {
    for_each_run(target, source.view, add);
    return pieces.flush();
  }
  // Short runs: whole stretches of the owner's memory, with the gaps in them, and the elements are picked out here.
  const Wide all = target.elements() * size_bytes(target.dtype);
  const Reach whole = reach_of(source.view);
  const Wide most_gaps = std::max<Wide>(8, kShortRun / std::max<int64_t>(run, 1));
  const auto gaps =
      static_cast<int64_t>(std::clamp<Wide>((whole.high - whole.low + all - 1) / std::max<Wide>(all, 1), 1, most_gaps));
  const Chunks chunks(target.shape, std::max<int64_t>(kScratchBytes / size_bytes(target.dtype) / gaps, 1));
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Box box = chunks[i];
    const ConstView there = source.view.box(box);
    const Reach reach = reach_of(there);
    const Wide bytes = reach.high - reach.low;
    if (bytes > kScratchBytes) {
      for_each_run(target.box(box), there, add);
      if (!pieces.flush()) return false;
      continue;
    }
    scratch.resize(static_cast<size_t>(kScratchBytes));
    pieces.add(scratch.data(), there.data + static_cast<int64_t>(reach.low), static_cast<int64_t>(bytes));
    if (!pieces.flush()) return false;
    copy_box(target.box(box),
             {scratch.data() - static_cast<int64_t>(reach.low), there.dtype, there.shape, there.strides});
  }
  return true;
}

const std::byte* end_of(const ConstView& view) { return view.data + static_cast<int64_t>(reach_of(view).high); }

uint64_t needed(const Source& source) { return static_cast<uint64_t>(end_of(source.view) - source.mirror); }

}  // namespace tessera::shm
