// Distributed data whose every value is a function of its place in the global tensor: a rank fills its part alone, and can
// tell of any part it gets whether each element is the right one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tensor.hpp>

#include "support/definition.hpp"

namespace tessera::testing_support {

inline constexpr std::array<DType, kDTypeCount> kDTypes = {
    DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3,  DType::f8e5m2, DType::i64,
    DType::i32, DType::i16, DType::i8,  DType::u8,   DType::boolean, DType::c64,    DType::c128};

// Values --------------------------------------------------------------------------------------------------------------

inline uint64_t mix(uint64_t h) {
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

inline uint64_t hash_of(std::span<const int64_t> coordinate, uint64_t salt) {
  uint64_t h = mix(salt + 0x9e3779b97f4a7c15u);
  for (const int64_t c : coordinate) h = mix(h + static_cast<uint64_t>(c) * 0x9e3779b97f4a7c15u + 1);
  return h;
}

// A value that T holds exactly, from the whole range of small ones. Bits of the short floats need no care: what is moved
// is compared by bytes.
template <class T>
T value_from(uint64_t h) {
  if constexpr (std::is_same_v<T, bool>) {
    return (h & 1) != 0;
  } else if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    return T(static_cast<Part>(static_cast<int64_t>(h % 997) - 498),
             static_cast<Part>(static_cast<int64_t>(h / 997 % 997)));
  } else if constexpr (sizeof(T) == 1 && !std::is_integral_v<T>) {
    return cast_to<T>(static_cast<int64_t>(h % 17) - 8);
  } else if constexpr (sizeof(T) == 1) {
    return static_cast<T>(h % 256);
  } else {
    return cast_to<T>(static_cast<int64_t>(h % 511) - 255);
  }
}

// A term of a sum: small, and not an integer where T is a floating type, so that the order of summation shows.
template <class T>
T term_from(uint64_t h) {
  const double small = static_cast<double>(h % 4001) / 1000 - 2;  // -2 to 2
  if constexpr (std::is_integral_v<T>) {
    return value_from<T>(h);
  } else if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    return T(static_cast<Part>(small), static_cast<Part>(static_cast<double>(h / 4001 % 4001) / 1000 - 2));
  } else {
    return cast_to<T>(small);
  }
}

// Memory --------------------------------------------------------------------------------------------------------------

// How a tensor lies in memory.
enum class Form { plain, transposed, narrowed, reversed, gapped, unaligned };
inline constexpr Form kForms[] = {Form::plain,    Form::transposed, Form::narrowed,
                                  Form::reversed, Form::gapped,     Form::unaligned};

// A tensor of that shape, filled with bytes that no value has everywhere.
inline Tensor new_tensor(DType dtype, const Dims& shape, Form form) {
  const auto scratch = [&](const Dims& extents) {
    Tensor t = Tensor::empty(dtype, extents);
    if (t.bytes() > 0) std::memset(t.data(), 0x5a, static_cast<size_t>(t.bytes()));
    return t;
  };
  const size_t ndim = shape.size();
  Dims extents = shape;
  switch (form) {
    case Form::plain: break;
    case Form::transposed: {
      std::reverse(extents.begin(), extents.end());
      const Tensor t = scratch(extents);
      Dims strides = t.strides();
      std::reverse(strides.begin(), strides.end());
      return Tensor::view(t.data(), dtype, shape, strides, t.owner());
    }
    case Form::narrowed: {
      for (int64_t& extent : extents) extent += 3;
      return scratch(extents).box({Dims::filled(ndim, 2), shape});
    }
    case Form::reversed: {
      const Tensor t = scratch(shape);
      Dims strides = t.strides();
      int64_t last = 0;
      for (size_t d = 0; d < ndim; ++d) {
        last += (shape[d] - 1) * strides[d];
        strides[d] = -strides[d];
      }
      std::byte* data = t.elements() == 0 ? t.data() : t.data() + last * size_bytes(dtype);
      return Tensor::view(data, dtype, shape, strides, t.owner());
    }
    case Form::gapped: {
      extents.push_back(2);
      return scratch(extents).select(-1, 1);
    }
    case Form::unaligned: {
      const Tensor t = Tensor::empty(DType::u8, {volume(shape) * size_bytes(dtype) + 1});
      std::memset(t.data(), 0x5a, static_cast<size_t>(t.bytes()));
      return Tensor::view(t.data() + 1, dtype, shape, row_major(shape), t.owner());
    }
  }
  return scratch(shape);
}

// Calls fn(index, address) for every element.
template <class Fn>
void for_each_element(const Tensor& t, Fn&& fn) {
  if (t.elements() == 0) return;
  Dims index = Dims::filled(t.shape().size(), 0);
  while (true) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * t.strides()[d];
    fn(index, t.data() + at * size_bytes(t.dtype()));
    size_t d = index.size();
    while (d-- > 0 && ++index[d] == t.shape()[d]) index[d] = 0;
    if (d == SIZE_MAX) return;
  }
}

inline Dims shifted(Dims index, const Dims& origin) {
  for (size_t d = 0; d < origin.size(); ++d) index[d] += origin[d];
  return index;
}

// Parts of a global tensor --------------------------------------------------------------------------------------------

inline void fill_part(const Tensor& t, const Dims& origin, uint64_t salt = 0) {
  visit(t.dtype(), [&]<class T>(std::type_identity<T>) {
    for_each_element(t, [&](const Dims& index, std::byte* at) {
      const T value = value_from<T>(hash_of(shifted(index, origin), salt));
      std::memcpy(at, &value, sizeof(T));
    });
  });
}

// The box of the global tensor. `salt` tells several global tensors apart.
inline Tensor part(DType dtype, const Box& box, Form form = Form::plain, uint64_t salt = 0) {
  const Tensor t = new_tensor(dtype, box.extent, form);
  fill_part(t, box.offset, salt);
  return t;
}

// Compares t with expected(type, global coordinate), element by element and byte by byte; tells the first that is wrong.
template <class Expected>
testing::AssertionResult elements_are(const Tensor& t, DType dtype, const Box& box, const Expected& expected) {
  if (!t.defined()) return testing::AssertionFailure() << "the tensor is undefined";
  if (t.dtype() != dtype || t.shape() != box.extent) {
    return testing::AssertionFailure() << fmt::format("a tensor {} {} where {} {} should be", t.dtype(), t.shape(),
                                                      dtype, box.extent);
  }
  int64_t wrong = 0;
  std::string first;
  visit(dtype, [&]<class T>(std::type_identity<T> type) {
    for_each_element(t, [&](const Dims& index, const std::byte* at) {
      const Dims global = shifted(index, box.offset);
      const T value = expected(type, global);
      if (std::memcmp(&value, at, sizeof(T)) == 0 || wrong++ > 0) return;
      const auto shown = [&](const void* one) { return Tensor::view(const_cast<void*>(one), dtype, {}, {}); };
      first = fmt::format("global {} (local {}) is {}, should be {}", global, index, shown(at), shown(&value));
    });
  });
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format("{} of {} elements are wrong; the first: {}", wrong, t.elements(),
                                                    first);
}

inline testing::AssertionResult is_part(const Tensor& t, DType dtype, const Box& box, uint64_t salt = 0) {
  return elements_are(t, dtype, box, [&]<class T>(std::type_identity<T>, std::span<const int64_t> global) {
    return value_from<T>(hash_of(global, salt));
  });
}

// This rank's term of a pending reduction of the box.
inline Tensor term(DType dtype, const Box& box, int rank, Form form = Form::plain) {
  const Tensor t = new_tensor(dtype, box.extent, form);
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for_each_element(t, [&](const Dims& index, std::byte* at) {
      const T value = term_from<T>(hash_of(shifted(index, box.offset), 1000 + static_cast<uint64_t>(rank)));
      std::memcpy(at, &value, sizeof(T));
    });
  });
  return t;
}

// The terms of all ranks combined.
inline testing::AssertionResult is_combined(const Tensor& t, DType dtype, const Box& box, int ranks,
                                            Reduction reduction) {
  return elements_are(t, dtype, box, [&]<class T>(std::type_identity<T>, std::span<const int64_t> global) {
    std::array<T, 64> terms{};
    for (int r = 0; r < ranks; ++r) {
      terms[static_cast<size_t>(r)] = term_from<T>(hash_of(global, 1000 + static_cast<uint64_t>(r)));
    }
    return defined_result<T>(reduction, std::span<const T>(terms.data(), static_cast<size_t>(ranks)));
  });
}

// Cuts ----------------------------------------------------------------------------------------------------------------

inline int64_t sum_of(const Sizes& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

inline Dims with_extent(Dims shape, int64_t dim, int64_t extent) {
  shape[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(shape.size()) : dim)] = extent;
  return shape;
}

// The part of `rank` where dim is cut into those sizes.
inline Box cut(const Dims& shape, int64_t dim, const Sizes& sizes, int rank) {
  const auto d = static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(shape.size()) : dim);
  Box box = Box::whole(shape);
  for (int r = 0; r < rank; ++r) box.offset[d] += sizes[static_cast<size_t>(r)];
  box.extent[d] = sizes[static_cast<size_t>(rank)];
  return box;
}

// Sizes with zeros, skew and none of both.
inline std::vector<Sizes> size_patterns(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  Sizes ragged, first(n, 0), last(n, 0);
  for (size_t r = 0; r < n; ++r) ragged.push_back(static_cast<int64_t>((r * 5 + 2) % 4));  // 2 3 0 1 2 3 0
  first.front() = last.back() = 5;
  return {Sizes(n, 3), ragged, first, last, Sizes(n, 0)};
}

}  // namespace tessera::testing_support
