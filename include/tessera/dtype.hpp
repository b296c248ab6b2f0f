// The element types of tensors.
#pragma once

#include <bit>
#include <complex>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace tessera {

enum class DType : uint8_t { f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean, c64, c128 };
inline constexpr int kDTypeCount = 14;

// Bytes of one element.
int64_t size_bytes(DType dtype);
// The name as PyTorch has it: "float32", "bfloat16", "float8_e4m3fn", "bool".
std::string_view name(DType dtype);
// Reads a PyTorch name or a short one ("f32", "bool"). Throws DTypeError.
DType parse_dtype(std::string_view text);
bool is_floating(DType dtype);
bool is_complex(DType dtype);

namespace detail {
uint16_t half_from_float(float value);
float float_from_half(uint16_t bits);
uint16_t bfloat16_from_float(float value);
uint8_t f8e4m3_from_float(float value);
float float_from_f8e4m3(uint8_t bits);
uint8_t f8e5m2_from_float(float value);
float float_from_f8e5m2(uint8_t bits);
}  // namespace detail

// Short floats. They round to nearest even; what is too large becomes infinity,
// in Float8E4M3 (which has none) NaN.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float value) : bits(detail::half_from_float(value)) {}
  explicit operator float() const { return detail::float_from_half(bits); }
  friend bool operator==(Half a, Half b) { return float(a) == float(b); }
};

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) : bits(detail::bfloat16_from_float(value)) {}
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  friend bool operator==(BFloat16 a, BFloat16 b) { return float(a) == float(b); }
};

struct Float8E4M3 {
  uint8_t bits = 0;
  Float8E4M3() = default;
  explicit Float8E4M3(float value) : bits(detail::f8e4m3_from_float(value)) {}
  explicit operator float() const { return detail::float_from_f8e4m3(bits); }
  friend bool operator==(Float8E4M3 a, Float8E4M3 b) { return float(a) == float(b); }
};

struct Float8E5M2 {
  uint8_t bits = 0;
  Float8E5M2() = default;
  explicit Float8E5M2(float value) : bits(detail::f8e5m2_from_float(value)) {}
  explicit operator float() const { return detail::float_from_f8e5m2(bits); }
  friend bool operator==(Float8E5M2 a, Float8E5M2 b) { return float(a) == float(b); }
};

// Calls fn with std::type_identity<T> of the C++ type behind dtype, and returns
// what it returns.
template <class Fn>
decltype(auto) visit(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f64: return fn(std::type_identity<double>{});
    case DType::f32: return fn(std::type_identity<float>{});
    case DType::f16: return fn(std::type_identity<Half>{});
    case DType::bf16: return fn(std::type_identity<BFloat16>{});
    case DType::f8e4m3: return fn(std::type_identity<Float8E4M3>{});
    case DType::f8e5m2: return fn(std::type_identity<Float8E5M2>{});
    case DType::i64: return fn(std::type_identity<int64_t>{});
    case DType::i32: return fn(std::type_identity<int32_t>{});
    case DType::i16: return fn(std::type_identity<int16_t>{});
    case DType::i8: return fn(std::type_identity<int8_t>{});
    case DType::u8: return fn(std::type_identity<uint8_t>{});
    case DType::boolean: return fn(std::type_identity<bool>{});
    case DType::c64: return fn(std::type_identity<std::complex<float>>{});
    case DType::c128: break;
  }
  return fn(std::type_identity<std::complex<double>>{});
}

template <class T>
inline constexpr bool is_short_float = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16> ||
                                       std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;
template <class T>
inline constexpr bool is_complex_type =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

// The DType of a C++ type; a type with none does not compile.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  else if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, Half>) return DType::f16;
  else if constexpr (std::is_same_v<T, BFloat16>) return DType::bf16;
  else if constexpr (std::is_same_v<T, Float8E4M3>) return DType::f8e4m3;
  else if constexpr (std::is_same_v<T, Float8E5M2>) return DType::f8e5m2;
  else if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  else if constexpr (is_complex_type<T>) return sizeof(T) == 8 ? DType::c64 : DType::c128;
  else {
    static_assert(std::is_integral_v<T> && (std::is_signed_v<T> || sizeof(T) == 1), "no tessera dtype has this type");
    return sizeof(T) == 8        ? DType::i64
           : sizeof(T) == 4      ? DType::i32
           : sizeof(T) == 2      ? DType::i16
           : std::is_signed_v<T> ? DType::i8
                                 : DType::u8;
  }
}

// value as a T, through float where T is a short float; of a complex value the
// real part where T is not complex.
template <class T, class V>
T cast_to(V value) {
  if constexpr (is_complex_type<V> && !is_complex_type<T>) {
    return cast_to<T>(value.real());
  } else if constexpr (is_short_float<T>) {
    if constexpr (is_short_float<V>) return T(float(value));
    else return T(static_cast<float>(value));
  } else if constexpr (is_short_float<V>) {
    return static_cast<T>(float(value));
  } else if constexpr (is_complex_type<T>) {
    if constexpr (is_complex_type<V>) return T(value);
    else return T(static_cast<typename T::value_type>(value));
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace tessera

template <>
struct fmt::formatter<tessera::DType> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(tessera::DType dtype, Context& context) const {
    return fmt::formatter<std::string_view>::format(tessera::name(dtype), context);
  }
};
