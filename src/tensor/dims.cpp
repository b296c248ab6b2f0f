#include <tessera/dims.hpp>
#include <tessera/error.hpp>

namespace tessera {

void detail::throw_too_many_dims(size_t ndim) {
  throw ShapeError(fmt::format("a tensor of {} dimensions is too deep: tessera takes at most {}", ndim, kMaxDims));
}

int64_t volume(std::span<const int64_t> shape) {
  int64_t product = 1;
  bool empty = false;
  bool overflow = false;
  for (int64_t extent : shape) {
    if (extent < 0) {
      throw ShapeError(fmt::format("the shape [{}] has a negative extent", fmt::join(shape, ", ")));
    }
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(product, extent, &product);
  }
  // A zero anywhere makes the tensor empty, however large its other extents
  // are.
  if (empty) return 0;
  if (overflow) {
    throw ShapeError(fmt::format("the shape [{}] has more than 2^63 - 1 elements", fmt::join(shape, ", ")));
  }
  return product;
}

Dims row_major(const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 1);
  // The strides of an empty tensor are never multiplied with anything; a zero
  // extent counts as one, as in PyTorch.
  for (size_t d = shape.size(); d-- > 1;) {
    if (__builtin_mul_overflow(strides[d], std::max<int64_t>(shape[d], 1), &strides[d - 1])) {
      throw ShapeError(fmt::format("the shape {} has strides of more than 2^63 - 1 elements", shape));
    }
  }
  return strides;
}

int64_t normalize_dim(int64_t dim, size_t ndim, const char* field) {
  const auto count = static_cast<int64_t>(ndim);
  if (dim >= -count && dim < count) return dim < 0 ? dim + count : dim;
  if (ndim == 0) {
    throw ShapeError(fmt::format("{} {} is out of range: a tensor of 0 dimensions has none to name", field, dim));
  }
  throw ShapeError(fmt::format("{} {} is out of range for a tensor of {} dimension{}: use {} to {}", field, dim, ndim,
                               ndim == 1 ? "" : "s", -count, count - 1));
}

Box Box::relative_to(const Dims& origin) const {
  Box moved = *this;
  for (size_t d = 0; d < offset.size(); ++d) moved.offset[d] -= origin[d];
  return moved;
}

Box intersect(const Box& a, const Box& b) {
  Box shared = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    shared.offset[d] = begin;
    shared.extent[d] = std::max<int64_t>(end - begin, 0);
  }
  return shared;
}

}  // namespace tessera
