// What a reduction is, one element at a time: the definition that fast ways are held against, bit for bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/reduction.hpp>

namespace tessera::testing_support {

inline constexpr ReduceOp kReduceOps[] = {ReduceOp::sum,    ReduceOp::avg,     ReduceOp::prod,
                                          ReduceOp::min,    ReduceOp::max,     ReduceOp::bit_and,
                                          ReduceOp::bit_or, ReduceOp::bit_xor, ReduceOp::premul_sum};

inline bool reducible(ReduceOp op, DType dtype) {
  try {
    check_reducible(op, dtype);
    return true;
  } catch (const DTypeError&) {
    return false;
  }
}

template <class T>
using Accumulator = std::conditional_t<is_short_float<T>, float, T>;

template <class T>
T combine(ReduceOp op, T a, T b) {
  const bool add = op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum;
  if constexpr (std::is_same_v<T, bool>) {
    if (op == ReduceOp::bit_xor) return a != b;
    return op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bit_or ? a || b : a && b;
  } else if constexpr (is_complex_type<T>) {
    if (add) return {a.real() + b.real(), a.imag() + b.imag()};
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::sum: return static_cast<T>(x + y);
      case ReduceOp::prod: return static_cast<T>(x * y);
      case ReduceOp::min: return std::min(a, b);
      case ReduceOp::max: return std::max(a, b);
      case ReduceOp::bit_and: return static_cast<T>(x & y);
      case ReduceOp::bit_or: return static_cast<T>(x | y);
      default: return static_cast<T>(x ^ y);
    }
  } else {
    if (add) return a + b;
    if (op == ReduceOp::prod) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (op == ReduceOp::min) return b < a ? b : a;
    return b > a ? b : a;
  }
}

// Balanced pairs: the left half is the largest power of two below the number of terms.
template <class T>
T tree(ReduceOp op, std::span<const T> terms) {
  if (terms.size() == 1) return terms[0];
  const size_t left = std::bit_floor(terms.size() - 1);
  return combine(op, tree(op, terms.first(left)), tree(op, terms.subspan(left)));
}

// The terms combined; short floats as float32 and rounded once.
template <class T>
T defined_result(Reduction reduction, std::span<const T> terms) {
  using A = Accumulator<T>;
  constexpr size_t kMost = 64;
  A values[kMost] = {};
  for (size_t k = 0; k < terms.size(); ++k) values[k] = cast_to<A>(terms[k]);
  if constexpr (std::is_floating_point_v<A>) {
    if (reduction.op == ReduceOp::premul_sum) {
      for (A& value : values) value *= static_cast<A>(reduction.factor);
    }
  } else if constexpr (is_complex_type<A>) {
    if (reduction.op == ReduceOp::premul_sum) {
      for (A& value : values) value *= static_cast<typename A::value_type>(reduction.factor);
    }
  }
  A result = tree<A>(reduction.op, {values, terms.size()});
  if constexpr (std::is_floating_point_v<A>) {
    if (reduction.op == ReduceOp::avg) result /= static_cast<A>(terms.size());
  } else if constexpr (is_complex_type<A>) {
    if (reduction.op == ReduceOp::avg) result /= static_cast<typename A::value_type>(terms.size());
  }
  return cast_to<T>(result);
}

}  // namespace tessera::testing_support
