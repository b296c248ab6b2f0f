// Extents, strides and coordinates, and the boxes made of them.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace tessera {

// How many elements of a dimension each rank holds, by rank.
using Sizes = std::vector<int64_t>;

inline constexpr int kMaxDims = 12;

namespace detail {
[[noreturn]] void throw_too_many_dims(size_t ndim);
}

// A short list of int64_t kept in place: a shape, strides or a coordinate. At
// most kMaxDims long (ShapeError).
class Dims {
 public:
  Dims() noexcept { std::fill_n(values_.begin(), kUsual, 0); }
  // Not defaulted: a call copies many of these, and few have more than kUsual
  // values.
  Dims(const Dims& other) noexcept { take(other); }
  Dims& operator=(const Dims& other) noexcept {
    take(other);
    return *this;
  }
  Dims(Dims&& other) noexcept {  // which is empty then
    take(other);
    other.size_ = 0;
  }
  Dims& operator=(Dims&& other) noexcept {
    const uint32_t size = other.size_;
    take(other);
    other.size_ = 0;
    size_ = size;  // also where it is moved onto itself
    return *this;
  }
  Dims(std::initializer_list<int64_t> values) : Dims(values.begin(), values.size()) {}
  Dims(std::span<const int64_t> values) : Dims(values.data(), values.size()) {}
  Dims(const std::vector<int64_t>& values) : Dims(values.data(), values.size()) {}
  static Dims filled(size_t count, int64_t value) {
    Dims dims;
    dims.resize(count, value);
    return dims;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](size_t i) const { return values_[i]; }
  int64_t& operator[](size_t i) { return values_[i]; }
  const int64_t* data() const { return values_.data(); }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + size_; }
  int64_t back() const { return values_[size_ - 1]; }
  operator std::span<const int64_t>() const { return {values_.data(), size_}; }

  void push_back(int64_t value) { resize(size_ + 1, value); }
  void insert(size_t at, int64_t value) {
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(size_t at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --size_;
  }
  void resize(size_t count, int64_t value = 0) {
    if (count > kMaxDims) detail::throw_too_many_dims(count);
    for (size_t i = size_; i < count; ++i) values_[i] = value;
    size_ = static_cast<uint32_t>(count);
  }

  // A loop, as few have more than kUsual values: std::equal() calls memcmp().
  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (uint32_t i = 0; i < a.size_; ++i) {
      if (a.values_[i] != b.values_[i]) return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kUsual = 4;

  Dims(const int64_t* values, size_t count) : Dims() {
    if (count > kMaxDims) detail::throw_too_many_dims(count);
    std::copy(values, values + count, values_.begin());
    size_ = static_cast<uint32_t>(count);
  }

  [[gnu::always_inline]] void take(const Dims& other) {
    size_ = other.size_;
    for (uint32_t i = 0; i < kUsual; ++i) values_[i] = other.values_[i];
    if (size_ > kUsual) std::copy(other.begin() + kUsual, other.end(), begin() + kUsual);
  }

  uint32_t size_ = 0;
  std::array<int64_t, kMaxDims> values_;
};

// The number of elements of a shape. Throws ShapeError for a negative extent or
// where it would pass 2^63 - 1.
int64_t volume(std::span<const int64_t> shape);

// The strides (in elements) of a row-major tensor of that shape.
Dims row_major(const Dims& shape);

// dim counted from the front, for a tensor of ndim dimensions; -1 is the last.
// Throws ShapeError, naming `field`.
int64_t normalize_dim(int64_t dim, size_t ndim, const char* field = "dim");

// A half-open box of a tensor: extent[d] elements from offset[d] on, in every
// dimension d.
struct Box {
  Dims offset;
  Dims extent;

  static Box whole(const Dims& shape) { return {Dims::filled(shape.size(), 0), shape}; }
  bool empty() const {
    return std::any_of(extent.begin(), extent.end(), [](int64_t e) { return e <= 0; });
  }
  int64_t elements() const { return empty() ? 0 : volume(extent); }
  // The same box seen from an origin: its offset less the origin's.
  Box relative_to(const Dims& origin) const;
  friend bool operator==(const Box&, const Box&) = default;
};

// What two boxes of one tensor share; empty where they share nothing.
Box intersect(const Box& a, const Box& b);

}  // namespace tessera

template <>
struct fmt::formatter<tessera::Dims> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const tessera::Dims& dims, Context& context) const {
    auto out = fmt::format_to(context.out(), "[");
    for (size_t i = 0; i < dims.size(); ++i) out = fmt::format_to(out, "{}{}", i == 0 ? "" : ", ", dims[i]);
    return fmt::format_to(out, "]");
  }
};
