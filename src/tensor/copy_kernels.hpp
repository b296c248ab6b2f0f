// The innermost two loops of a copy, compiled for every instruction set and
// chosen when they run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// planes × rows runs of run_bytes each; strides in bytes, of any sign.
struct Plane {
  int64_t run_bytes;
  int64_t rows, dst_row, src_row;
  int64_t planes, dst_plane, src_plane;
};

using PlaneKernel = void (*)(std::byte* dst, const std::byte* src, const Plane& plane);

// The kernels of one instruction set.
struct CopyKernels {
  PlaneKernel rows, stream_rows;  // of runs of at least a line
  PlaneKernel transpose[5],
      stream_transpose[5];  // by the logarithm of the element's size
  void (*stream)(std::byte* dst, const std::byte* src, int64_t bytes);
};

inline constexpr int64_t kLine = 64;  // bytes of a cache line

// How to copy a plane row by row. `stream` only has an effect where the runs
// are long enough.
PlaneKernel row_kernel(int64_t run_bytes, bool stream);

// How to copy a plane where dst_row == src_plane == run_bytes, a power of two
// up to 16: a transposition in tiles.
PlaneKernel transpose_kernel(int64_t run_bytes, bool stream);

// Copies around the cache. Before others may read dst the caller must call
// flush_stream().
void stream_bytes(std::byte* dst, const std::byte* src, int64_t bytes);
void flush_stream();

}  // namespace tessera
