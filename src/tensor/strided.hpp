// Questions about where strided tensors lie in memory.
#pragma once

#include <tessera/tensor.hpp>

#include "tensor/view.hpp"

namespace tessera {

// t's elements; t must outlive the view.
inline View view_of(const Tensor& t) { return {t.data(), t.dtype(), t.shape(), t.strides()}; }

// The bytes [begin, end) that t's elements lie within; empty for no elements.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};
Extent extent_of(const Tensor& t);
bool may_overlap(const Tensor& a, const Tensor& b);

// False only where no two elements of t share memory: what may be written to.
bool may_overlap_itself(const Tensor& t);

// Throws ShapeError where an element would lie more than 2^63 - 1 bytes from
// the first.
void check_extent(DType dtype, const Dims& shape, const Dims& strides);

}  // namespace tessera
