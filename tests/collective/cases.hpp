// The cases that every collective goes through.
#pragma once

#include <optional>
#include <vector>

#include "support/global.hpp"

namespace tessera::testing_support {

inline const Dims kShape = {2, 3, 4};  // but for the extent of the case

struct Case {
  Sizes sizes;  // of every rank, along dim
  int64_t dim;  // negative ones too
  DType dtype;
  Form in;
  std::optional<Form> out;  // none: the collective allocates

  std::string text() const {
    return fmt::format("sizes [{}], dim {}, {}, in form {}, out form {}", fmt::join(sizes, ", "), dim, dtype,
                       static_cast<int>(in), out ? static_cast<int>(*out) : -1);
  }
};

// Sizes × dims × forms of the input, through which dtypes and forms of the output rotate; then every dtype with every dim.
inline std::vector<Case> cases(int ranks, int64_t ndim = 3) {
  std::vector<Case> list;
  size_t i = 0;
  const auto add = [&](const Sizes& sizes, int64_t dim, Form in, DType dtype) {
    const size_t out = (i + i / 7) % 7;
    list.push_back({sizes, dim, dtype, in, out == 6 ? std::nullopt : std::optional(kForms[out])});
    ++i;
  };
  const std::vector<Sizes> patterns = size_patterns(ranks);
  for (const Sizes& sizes : patterns) {
    for (int64_t dim = -ndim; dim < ndim; ++dim) {
      for (const Form form : kForms) add(sizes, dim, form, kDTypes[(i * 5 + i / 14) % kDTypes.size()]);
    }
  }
  for (const DType dtype : kDTypes) {
    for (int64_t dim = 0; dim < ndim; ++dim) add(patterns[1], dim, kForms[i % 6], dtype);
  }
  return list;
}

// A place for a result, where the case has one.
inline Tensor out_for(const Case& c, const Dims& shape) {
  return c.out ? new_tensor(c.dtype, shape, *c.out) : Tensor();
}

// The result lies where the caller wanted it.
inline bool is_at(const Tensor& result, const Tensor& out) {
  return !out.defined() || (result.data() == out.data() && result.strides() == out.strides());
}

}  // namespace tessera::testing_support
