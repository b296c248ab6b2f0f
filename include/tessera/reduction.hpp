// How the terms of a pending reduction are combined.
#pragma once

#include <cstdint>
#include <string_view>

#include <tessera/dtype.hpp>

namespace tessera {

// Sums of integers wrap. min and max pass NaN on. A bool's sum and max are
// "or", its product and min "and". avg, premul_sum: floating and complex
// dtypes. min, max: no complex. bit_*: integers and bool.
enum class ReduceOp : uint8_t { sum, avg, prod, min, max, bit_and, bit_or, bit_xor, premul_sum };

std::string_view name(ReduceOp op);

// The order is fixed: balanced pairs over the ranks, ((0 1) (2 3)) ((4 5) 6),
// short floats as float32 throughout and rounded once at the end. So the bits
// of a result depend on the terms alone, not on how they were moved.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;  // premul_sum multiplies every term by it first

  Reduction() = default;
  Reduction(ReduceOp reduce_op, double premul_factor = 1)
      : op(reduce_op), factor(reduce_op == ReduceOp::premul_sum ? premul_factor : 1) {}
  friend bool operator==(const Reduction&, const Reduction&) = default;
};

// Throws DTypeError, which names the remedy, where dtype cannot be reduced so.
void check_reducible(Reduction reduction, DType dtype);

}  // namespace tessera
