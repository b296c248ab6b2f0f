#include "plan/identity.hpp"

#include <algorithm>
#include <limits>

#include <tessera/error.hpp>

namespace tessera {
namespace {

// The greatest, or the least, that a dtype has: no element is beyond it.
template <class T>
T extreme(bool greatest) {
  if constexpr (is_complex_type<T>) {
    throw DTypeError("min and max of a complex dtype have no identity");
  } else if constexpr (std::is_same_v<T, Float8E4M3>) {  // it has no infinity
    return T(greatest ? 448.0f : -448.0f);
  } else if constexpr (is_short_float<T>) {
    const float infinity = std::numeric_limits<float>::infinity();
    return T(greatest ? infinity : -infinity);
  } else if constexpr (std::is_floating_point_v<T>) {
    return greatest ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
  } else {
    return greatest ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
  }
}

// 0 + -0.0 is 0, so 0 would lose the sign of the one term that counts; -0.0 keeps every term as it is.
template <class T>
T zero_of_sums() {
  if constexpr (is_complex_type<T>) return T(-0.0f, -0.0f);
  else if constexpr (std::is_floating_point_v<T> || is_short_float<T>) return T(-0.0f);
  else return T(0);
}

template <class T>
T identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return zero_of_sums<T>();
    case ReduceOp::prod: return cast_to<T>(1);
    case ReduceOp::min: return extreme<T>(true);
    case ReduceOp::max: return extreme<T>(false);
    case ReduceOp::bit_and:
      if constexpr (std::is_same_v<T, bool>) return true;
      else return cast_to<T>(-1);
    default: return cast_to<T>(0);
  }
}

}  // namespace

void fill_identity(const Tensor& tensor, ReduceOp op) {
  visit(tensor.dtype(), [&]<class T>(std::type_identity<T>) {
    const T value = identity<T>(op);
    if (tensor.is_contiguous()) {  // fill() counts coordinates, which takes several times as long as to write
      const auto elements = tensor.span<T>();
      std::fill(elements.begin(), elements.end(), value);
    } else {
      tensor.fill([value](std::span<const int64_t>) { return value; });
    }
  });
}

}  // namespace tessera
