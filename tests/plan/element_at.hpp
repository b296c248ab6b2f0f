// Elements of tensors as a function of where they are in the whole; small numbers.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::testing_support {

inline double element_at(std::span<const int64_t> at) {
  double value = 1;
  for (size_t d = 0; d < at.size(); ++d) value += static_cast<double>(at[d] * static_cast<int64_t>(3 + 7 * d));
  return value;
}

}  // namespace tessera::testing_support
