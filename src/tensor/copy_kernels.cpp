#include "tensor/copy_kernels.hpp"

#include <algorithm>
#include <cstring>

// A tile is filled by blocks before its lines are read; GCC 12 does not see
// that the blocks cover them.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/copy_kernels.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Bytes = hn::CappedTag<uint8_t, kLine>;

HWY_INLINE int64_t to_next_line(const std::byte* at) { return -reinterpret_cast<intptr_t>(at) & (kLine - 1); }
HWY_INLINE auto load(Bytes d, const std::byte* from) { return hn::LoadU(d, reinterpret_cast<const uint8_t*>(from)); }
HWY_INLINE uint8_t* bytes_at(std::byte* to) { return reinterpret_cast<uint8_t*>(to); }

template <size_t kHalf>
HWY_INLINE void copy_ends(std::byte* dst, const std::byte* src, int64_t bytes) {
  const int64_t last = bytes - static_cast<int64_t>(kHalf);
  std::byte first_half[kHalf], second_half[kHalf];
  std::memcpy(first_half, src, kHalf);
  std::memcpy(second_half, src + last, kHalf);
  std::memcpy(dst, first_half, kHalf);
  std::memcpy(dst + last, second_half, kHalf);
}

// Fewer than 64 bytes, with no call: as two moves that may overlap.
HWY_INLINE void copy_short(std::byte* dst, const std::byte* src, int64_t bytes) {
  if (bytes >= 32) return copy_ends<32>(dst, src, bytes);
  if (bytes >= 16) return copy_ends<16>(dst, src, bytes);
  if (bytes >= 8) return copy_ends<8>(dst, src, bytes);
  if (bytes >= 4) return copy_ends<4>(dst, src, bytes);
  if (bytes >= 2) return copy_ends<2>(dst, src, bytes);
  if (bytes == 1) *dst = *src;
}

HWY_INLINE void store_line(std::byte* dst, const std::byte* src) {
  const Bytes d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t at = 0; at < kLine; at += step) hn::StoreU(load(d, src + at), d, bytes_at(dst + at));
}

// dst must be the start of a line: a line that is streamed in parts costs more
// than one that is not streamed.
HWY_INLINE void stream_line(std::byte* dst, const std::byte* src) {
  const Bytes d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t at = 0; at < kLine; at += step) hn::Stream(load(d, src + at), d, bytes_at(dst + at));
}

constexpr int64_t kPage = 4096;

// Two pages at once: the machine fetches ahead within a page only, so two of
// them keep more lines on their way.
HWY_INLINE void stream_two_pages(std::byte* dst, const std::byte* src) {
  constexpr int64_t kStep = 4 * kLine;
  for (int64_t at = 0; at < kPage; at += kStep) {
    for (int64_t line = at; line < at + kStep; line += kLine) {
      hwy::Prefetch(src + 2 * kPage + line);
      stream_line(dst + line, src + line);
    }
    for (int64_t line = kPage + at; line < kPage + at + kStep; line += kLine) {
      hwy::Prefetch(src + 2 * kPage + line);
      stream_line(dst + line, src + line);
    }
  }
}

void stream(std::byte* dst, const std::byte* src, int64_t bytes) {
  int64_t at = std::min(to_next_line(dst), bytes);
  copy_short(dst, src, at);
  for (; at + 2 * kPage <= bytes; at += 2 * kPage) stream_two_pages(dst + at, src + at);
  for (; at + kLine <= bytes; at += kLine) stream_line(dst + at, src + at);
  copy_short(dst + at, src + at, bytes - at);
}

// Runs of at least a line: whole lines, then a last one that may overlap the
// one before. A longer run begins with one up to where dst's lines begin:
// writing across two lines costs twice.
HWY_INLINE void copy_run(std::byte* dst, const std::byte* src, int64_t bytes) {
  int64_t at = bytes >= 4 * kLine ? to_next_line(dst) : 0;
  if (at > 0) store_line(dst, src);
  for (; at + kLine <= bytes; at += kLine) store_line(dst + at, src + at);
  if (at < bytes) store_line(dst + bytes - kLine, src + bytes - kLine);
}

template <void (*kCopy)(std::byte*, const std::byte*, int64_t)>
void each_row(std::byte* dst, const std::byte* src, const Plane& plane) {
  for (int64_t i = 0; i < plane.planes; ++i) {
    for (int64_t j = 0; j < plane.rows; ++j) {
      kCopy(dst + i * plane.dst_plane + j * plane.dst_row, src + i * plane.src_plane + j * plane.src_row,
            plane.run_bytes);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE
template <class T>
void transpose_block(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T)), kSide = 16 / kSize;
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t j = 0; j < kSide; ++j)
      std::memcpy(dst + i * dst_stride + j * kSize, src + j * src_stride + i * kSize, kSize);
  }
}
#else
// A square of elements, 16 bytes wide: rows become columns by log2(n) perfect
// shuffles of the rows.
template <class T>
HWY_INLINE void transpose_block(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride) {
  constexpr int kSide = 16 / sizeof(T);
  const hn::FixedTag<T, kSide> d;
  const hn::FixedTag<uint8_t, 16> d8;
  hn::Vec<decltype(d)> rows[kSide], mixed[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) {
    rows[i] = hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(src + i * src_stride)));
  }
#pragma GCC unroll 16
  for (int stage = 1; stage < kSide; stage *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kSide / 2; ++i) {
      mixed[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kSide / 2]);
      mixed[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kSide / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) rows[i] = mixed[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) hn::StoreU(hn::BitCast(d8, rows[i]), d8, bytes_at(dst + i * dst_stride));
}
#endif

struct Element16 {
  std::byte bytes[16];
};

template <>
HWY_INLINE void transpose_block<Element16>(std::byte* dst, int64_t, const std::byte* src, int64_t) {
  std::memcpy(dst, src, sizeof(Element16));
}

// One tile of at most a line by a line; rows and planes are multiples of a
// block's side. It goes through a buffer, so that each line of dst is written
// in one go: the lines of a tile may well compete for the same places in the
// cache.
template <class T, bool kStream>
HWY_INLINE void transpose_tile(std::byte* dst, const std::byte* src, const Plane& plane, int64_t rows, int64_t planes) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kSide = 16 / kSize;
  alignas(kLine) std::byte tile[kLine / kSize * kLine];
  // No machine foresees these strides: ask for the next tile's lines, and for
  // those that this one will be written to.
  for (int64_t row = 0; row < rows; ++row) hwy::Prefetch(src + (row + kLine / kSize) * plane.src_row);
  for (int64_t i = 0; i < planes && !kStream; ++i) hwy::Prefetch(dst + i * plane.dst_plane);
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t i = 0; i < planes; i += kSide) {
      transpose_block<T>(tile + i * kLine + row * kSize, kLine, src + row * plane.src_row + i * kSize, plane.src_row);
    }
  }
  const int64_t width = rows * kSize;
  for (int64_t i = 0; i < planes; ++i) {
    std::byte* const line = dst + i * plane.dst_plane;
    if (kStream && width == kLine && to_next_line(line) == 0) {
      stream_line(line, tile + i * kLine);
    } else if (width == kLine) {
      store_line(line, tile + i * kLine);
    } else {
      for (int64_t at = 0; at < width; at += 16) std::memcpy(line + at, tile + i * kLine + at, 16);
    }
  }
}

template <class T>
void copy_elements(std::byte* dst, const std::byte* src, const Plane& plane, int64_t row, int64_t first_plane,
                   int64_t last_plane) {
  for (int64_t i = first_plane; i < last_plane; ++i) {
    for (int64_t j = row; j < plane.rows; ++j) {
      std::memcpy(dst + i * plane.dst_plane + j * plane.dst_row, src + i * plane.src_plane + j * plane.src_row,
                  sizeof(T));
    }
  }
}

template <class T, bool kStream>
void transpose(std::byte* dst, const std::byte* src, const Plane& plane) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kTile = kLine / kSize, kSide = 16 / kSize;
  // Several lines of each source row while its page is at hand.
  constexpr int64_t kBand = 4 * kTile;
  const int64_t rows = plane.rows / kSide * kSide, planes = plane.planes / kSide * kSide;
  for (int64_t band = 0; band < planes; band += kBand) {
    const int64_t band_end = std::min(band + kBand, planes);
    for (int64_t row = 0; row < rows; row += kTile) {
      for (int64_t i = band; i < band_end; i += kTile) {
        transpose_tile<T, kStream>(dst + i * plane.dst_plane + row * kSize, src + row * plane.src_row + i * kSize,
                                   plane, std::min(kTile, rows - row), std::min(kTile, band_end - i));
      }
    }
  }
  copy_elements<T>(dst, src, plane, rows, 0, planes);
  copy_elements<T>(dst, src, plane, 0, planes, plane.planes);
}

CopyKernels copy_kernels() {
  return {each_row<copy_run>,
          each_row<stream>,
          {transpose<uint8_t, false>, transpose<uint16_t, false>, transpose<uint32_t, false>,
           transpose<uint64_t, false>, transpose<Element16, false>},
          {transpose<uint8_t, true>, transpose<uint16_t, true>, transpose<uint32_t, true>, transpose<uint64_t, true>,
           transpose<Element16, true>},
          stream};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {

HWY_EXPORT(copy_kernels);

template <size_t kBytes>
void fixed_rows(std::byte* dst, const std::byte* src, const Plane& plane) {
  for (int64_t i = 0; i < plane.planes; ++i) {
    std::byte* to = dst + i * plane.dst_plane;
    const std::byte* from = src + i * plane.src_plane;
    for (int64_t j = 0; j < plane.rows; ++j, to += plane.dst_row, from += plane.src_row) std::memcpy(to, from, kBytes);
  }
}

// Runs of kHalf to 2 kHalf bytes, each as two moves that overlap.
template <size_t kHalf>
void short_rows(std::byte* dst, const std::byte* src, const Plane& plane) {
  const int64_t second = plane.run_bytes - static_cast<int64_t>(kHalf);
  for (int64_t i = 0; i < plane.planes; ++i) {
    std::byte* to = dst + i * plane.dst_plane;
    const std::byte* from = src + i * plane.src_plane;
    for (int64_t j = 0; j < plane.rows; ++j, to += plane.dst_row, from += plane.src_row) {
      std::memcpy(to, from, kHalf);
      std::memcpy(to + second, from + second, kHalf);
    }
  }
}

void long_rows(std::byte* dst, const std::byte* src, const Plane& plane) {
  for (int64_t i = 0; i < plane.planes; ++i) {
    for (int64_t j = 0; j < plane.rows; ++j) {
      std::memcpy(dst + i * plane.dst_plane + j * plane.dst_row, src + i * plane.src_plane + j * plane.src_row,
                  static_cast<size_t>(plane.run_bytes));
    }
  }
}

constexpr int64_t kStreamRun = 256;  // shorter runs have too few whole lines
constexpr int64_t kLongRun = 2048;   // from here on a call to memcpy, which knows
                                     // the machine better, costs nothing

}  // namespace

PlaneKernel row_kernel(int64_t run_bytes, bool stream) {
  if (stream && run_bytes >= kStreamRun) return HWY_DYNAMIC_DISPATCH(copy_kernels)().stream_rows;
  if (run_bytes >= kLongRun) return long_rows;
  if (run_bytes >= kLine) return HWY_DYNAMIC_DISPATCH(copy_kernels)().rows;
  switch (run_bytes) {
    case 1: return fixed_rows<1>;
    case 2: return fixed_rows<2>;
    case 4: return fixed_rows<4>;
    case 8: return fixed_rows<8>;
    case 16: return fixed_rows<16>;
    case 32: return fixed_rows<32>;
    default: break;
  }
  if (run_bytes > 32) return short_rows<32>;
  if (run_bytes > 16) return short_rows<16>;
  if (run_bytes > 8) return short_rows<8>;
  return run_bytes > 4 ? short_rows<4> : short_rows<2>;
}

PlaneKernel transpose_kernel(int64_t run_bytes, bool stream) {
  const CopyKernels kernels = HWY_DYNAMIC_DISPATCH(copy_kernels)();
  const auto size = static_cast<size_t>(__builtin_ctzll(static_cast<uint64_t>(run_bytes)));
  return stream ? kernels.stream_transpose[size] : kernels.transpose[size];
}

void stream_bytes(std::byte* dst, const std::byte* src, int64_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_kernels)().stream(dst, src, bytes);
}

void flush_stream() { hwy::FlushStream(); }

}  // namespace tessera
#endif
