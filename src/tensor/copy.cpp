#include "tensor/copy.hpp"

#include <cstring>

#include "tensor/cache.hpp"

namespace tessera {
namespace {

using CopyNest = LoopNest<std::array<NestOperand, 2>>;
constexpr size_t kDst = 0, kSrc = 1;

// The bytes that lie together in every operand; their loop, if there is one, is
// taken out of the nest.
int64_t take_run(CopyNest& nest, int64_t element_bytes) {
  if (nest.loops() == 0) return element_bytes;
  for (size_t k = 0; k < nest.operands(); ++k) {
    if (nest.stride(k, 0) != element_bytes) return element_bytes;
  }
  const int64_t run_bytes = nest.extent(0) * element_bytes;
  nest.drop_innermost();
  return run_bytes;
}

// Brings the loop that runs along the source's memory next to the one along
// dst's, if those are two loops.
bool arrange_transpose(CopyNest& nest, int64_t run_bytes) {
  const bool power_of_two = (run_bytes & (run_bytes - 1)) == 0;
  if (run_bytes > 16 || !power_of_two || nest.loops() < 2 || nest.stride(kDst, 0) != run_bytes) return false;
  for (size_t loop = 1; loop < nest.loops(); ++loop) {
    if (nest.stride(kSrc, loop) != run_bytes) continue;
    nest.swap(1, loop);
    return true;
  }
  return false;
}

Plane inner_plane(const CopyNest& nest, int64_t run_bytes) {
  Plane plane{run_bytes, 1, 0, 0, 1, 0, 0};
  if (nest.loops() > 0) {
    plane.rows = nest.extent(0);
    plane.dst_row = nest.stride(kDst, 0);
    plane.src_row = nest.stride(kSrc, 0);
  }
  if (nest.loops() > 1) {
    plane.planes = nest.extent(1);
    plane.dst_plane = nest.stride(kDst, 1);
    plane.src_plane = nest.stride(kSrc, 1);
  }
  return plane;
}

// Calls fn(dst offset, src offset) for every step of the loops around the
// innermost two.
template <class Fn>
void for_each_plane(const CopyNest& nest, Fn fn) {
  std::array<int64_t, kMaxDims> index{};
  int64_t dst = nest.offset(kDst), src = nest.offset(kSrc);
  while (true) {
    fn(dst, src);
    size_t loop = 2;
    for (; loop < nest.loops(); ++loop) {
      dst += nest.stride(kDst, loop);
      src += nest.stride(kSrc, loop);
      if (++index[loop] < nest.extent(loop)) break;
      dst -= nest.stride(kDst, loop) * nest.extent(loop);
      src -= nest.stride(kSrc, loop) * nest.extent(loop);
      index[loop] = 0;
    }
    if (loop >= nest.loops()) return;
  }
}

void copy_bytes(std::byte* dst, const std::byte* src, int64_t bytes, bool stream) {
  if (!stream) {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
    return;
  }
  stream_bytes(dst, src, bytes);
  flush_stream();
}

}  // namespace

PreparedCopy::PreparedCopy(const View& dst, const ConstView& src, int64_t total_bytes) {
  const int64_t element_bytes = size_bytes(dst.dtype);
  bytes_ = dst.elements() * element_bytes;
  stream_ = std::max(total_bytes, bytes_) >= copy_stream_bytes();
  if (bytes_ == 0 || (is_row_major(dst) && is_row_major(src))) return;
  nest_.emplace(dst.shape, std::array{operand_of(dst), operand_of(src)});
  const int64_t run_bytes = take_run(*nest_, element_bytes);
  const bool transposed = arrange_transpose(*nest_, run_bytes);
  kernel_ = transposed ? transpose_kernel(run_bytes, stream_) : row_kernel(run_bytes, stream_);
  plane_ = inner_plane(*nest_, run_bytes);
}

void PreparedCopy::run(std::byte* dst, const std::byte* src) const {
  if (bytes_ == 0) return;
  if (nest_) run_nest(dst, src);
  else copy_bytes(dst, src, bytes_, stream_);
}

void PreparedCopy::run_nest(std::byte* dst, const std::byte* src) const {
  for_each_plane(*nest_, [&](int64_t to, int64_t from) { kernel_(dst + to, src + from, plane_); });
  if (stream_) flush_stream();
}

void copy_box(const View& dst, const ConstView& src, int64_t total_bytes) {
  PreparedCopy(dst, src, total_bytes).run(dst.data, src.data);
}

}  // namespace tessera
