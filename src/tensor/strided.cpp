#include "tensor/strided.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace tessera {

void check_extent(DType dtype, const Dims& shape, const Dims& strides) {
  if (volume(shape) == 0) return;
  int64_t reach = size_bytes(dtype);
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t span = 0;
    const bool over = strides[d] == INT64_MIN || __builtin_mul_overflow(shape[d] - 1, std::abs(strides[d]), &span) ||
                      __builtin_mul_overflow(span, size_bytes(dtype), &span) ||
                      __builtin_add_overflow(reach, span, &reach);
    if (over) {
      throw ShapeError(fmt::format("strides {} with shape {} reach past 2^63 - 1 bytes", strides, shape));
    }
  }
}

Extent extent_of(const Tensor& t) {
  if (!t.defined() || t.elements() == 0) return {};
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < t.shape().size(); ++d) {
    const int64_t reach = (t.shape()[d] - 1) * t.strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<uintptr_t>(t.data());
  const int64_t size = size_bytes(t.dtype());
  return {base + static_cast<uintptr_t>(low * size), base + static_cast<uintptr_t>((high + 1) * size)};
}

namespace {

// Whether a and b, which begins behind a, are boxes of one larger row-major
// tensor that do not meet: two sets of columns, say. False where that cannot be
// told.
bool are_apart(const Tensor& a, const Tensor& b) {
  if (a.ndim() != b.ndim() || a.dtype() != b.dtype()) return false;
  const int64_t size = size_bytes(a.dtype());
  int64_t distance = b.data() - a.data();
  if (distance % size != 0) return false;
  distance /= size;
  struct Loop {
    int64_t stride, a, b;
  };
  std::array<Loop, kMaxDims> loops;
  size_t count = 0;
  for (size_t d = 0; d < a.shape().size(); ++d) {
    const int64_t x = a.shape()[d], y = b.shape()[d];
    if (x == 1 && y == 1) continue;
    const int64_t stride = x > 1 ? a.strides()[d] : b.strides()[d];
    if (stride <= 0 || (x > 1 && y > 1 && a.strides()[d] != b.strides()[d])) return false;
    loops[count++] = {stride, x, y};
  }
  std::sort(loops.begin(), loops.begin() + count, [](const Loop& l, const Loop& r) { return l.stride > r.stride; });
  bool apart = false;
  for (size_t i = 0; i < count; ++i) {
    const int64_t place = distance / loops[i].stride;  // b's first, in this dimension
    distance %= loops[i].stride;
    // Within the larger tensor neither may run over into the next row.
    if (i > 0) {
      if (loops[i - 1].stride % loops[i].stride != 0) return false;
      const int64_t room = loops[i - 1].stride / loops[i].stride;
      if (loops[i].a > room || place + loops[i].b > room) return false;
    }
    apart = apart || place >= loops[i].a;
  }
  return apart || distance != 0;
}

}  // namespace

bool may_overlap(const Tensor& a, const Tensor& b) {
  const Extent x = extent_of(a), y = extent_of(b);
  if (x.begin >= y.end || y.begin >= x.end) return false;
  return a.data() <= b.data() ? !are_apart(a, b) : !are_apart(b, a);
}

bool may_overlap_itself(const Tensor& t) {
  if (!t.defined() || t.elements() == 0) return false;
  std::array<std::pair<int64_t, int64_t>, kMaxDims> by_stride;
  size_t count = 0;
  for (size_t d = 0; d < t.shape().size(); ++d) {
    if (t.shape()[d] > 1) by_stride[count++] = {std::abs(t.strides()[d]), t.shape()[d]};
  }
  std::sort(by_stride.begin(), by_stride.begin() + count);
  int64_t reach = 0;  // of the dimensions with smaller strides
  for (size_t i = 0; i < count; ++i) {
    if (by_stride[i].first <= reach) return true;
    reach += by_stride[i].first * (by_stride[i].second - 1);
  }
  return false;
}

}  // namespace tessera
