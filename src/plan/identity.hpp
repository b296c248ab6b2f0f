// What a pending operation leaves as it is: -0.0 of a sum, 1 of a product.
#pragma once

#include <tessera/reduction.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

// Throws DTypeError where the dtype has none (min and max of a complex one).
void fill_identity(const Tensor& tensor, ReduceOp op);

}  // namespace tessera
