#include <tessera/dtype.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/error.hpp>
#include <tessera/reduction.hpp>

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A short float read from its definition, in arithmetic that is exact.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

double defined_value(Format format, unsigned bits) {
  const int mantissa_range = 1 << format.mantissa_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int mantissa = static_cast<int>(bits) % mantissa_range;
  const int exponent = static_cast<int>(bits) / mantissa_range % (1 << format.exponent_bits);
  const double sign = (bits >> (format.exponent_bits + format.mantissa_bits)) & 1 ? -1 : 1;
  const bool top = exponent == (1 << format.exponent_bits) - 1;
  if (format.has_infinity && top) return mantissa == 0 ? sign * kInfinity : std::nan("");
  if (!format.has_infinity && top && mantissa == mantissa_range - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(mantissa_range + mantissa, exponent - bias - format.mantissa_bits);
}

template <class T>
Format format_of() {
  if (std::is_same_v<T, Half>) return {5, 10, true};
  if (std::is_same_v<T, BFloat16>) return {8, 7, true};
  if (std::is_same_v<T, Float8E5M2>) return {5, 2, true};
  return {4, 3, false};
}

template <class T>
T with_bits(unsigned bits) {
  T value;
  value.bits = static_cast<decltype(value.bits)>(bits);
  return value;
}

template <class T>
class ShortFloat : public testing::Test {};
using ShortFloats = testing::Types<Half, BFloat16, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(ShortFloat, ShortFloats);

TYPED_TEST(ShortFloat, EveryValueIsAsDefinedAndComesBack) {
  const Format format = format_of<TypeParam>();
  const unsigned count = 1u << (sizeof(TypeParam) * 8);
  for (unsigned bits = 0; bits < count; ++bits) {
    const double expected = defined_value(format, bits);
    const float value = float(with_bits<TypeParam>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(float(TypeParam(value)))) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits);
    }
  }
}

// Between every two neighbours: the middle goes to the even one, and its float neighbours to the nearer one.
TYPED_TEST(ShortFloat, RoundsToNearestEven) {
  const Format format = format_of<TypeParam>();
  const unsigned sign = 1u << (sizeof(TypeParam) * 8 - 1);
  for (unsigned bits = 0; bits + 1 < sign; ++bits) {
    const double low = defined_value(format, bits), high = defined_value(format, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) break;
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2);
    const unsigned even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(TypeParam(middle).bits, even) << low;
    ASSERT_EQ(TypeParam(-middle).bits, even | sign) << low;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0f)).bits, bits) << low;
    ASSERT_EQ(TypeParam(std::nextafter(middle, kInfinity)).bits, bits + 1) << low;
  }
}

TYPED_TEST(ShortFloat, KeepsNanAndSignedZero) {
  EXPECT_TRUE(std::isnan(float(TypeParam(std::nanf("")))));
  EXPECT_TRUE(std::isnan(float(TypeParam(-std::nanf("")))));
  EXPECT_TRUE(std::isnan(float(TypeParam(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(TypeParam(0.0f).bits, 0);
  EXPECT_EQ(TypeParam(-0.0f).bits, 1u << (sizeof(TypeParam) * 8 - 1));
  EXPECT_EQ(TypeParam(1e-45f).bits, 0);
}

TEST(ShortFloatOverflow, BecomesInfinity) {
  EXPECT_EQ(float(Half(65519.0f)), 65504.0f);
  EXPECT_EQ(float(Half(65520.0f)), kInfinity);
  EXPECT_EQ(float(Half(-1e30f)), -kInfinity);
  EXPECT_EQ(float(Half(kInfinity)), kInfinity);
  EXPECT_EQ(float(BFloat16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(float(BFloat16(-kInfinity)), -kInfinity);
  EXPECT_EQ(float(Float8E5M2(61439.0f)), 57344.0f);
  EXPECT_EQ(float(Float8E5M2(61440.0f)), kInfinity);
  EXPECT_EQ(float(Float8E5M2(-1e30f)), -kInfinity);
}

// What PyTorch does: float8_e4m3fn has no infinity, and all that rounds above 448 is NaN.
TEST(ShortFloatOverflow, BecomesNanWhereThereIsNoInfinity) {
  EXPECT_EQ(float(Float8E4M3(448.0f)), 448.0f);
  EXPECT_EQ(float(Float8E4M3(464.0f)), 448.0f);
  EXPECT_EQ(Float8E4M3(464.1f).bits, 0x7f);
  EXPECT_EQ(Float8E4M3(480.0f).bits, 0x7f);
  EXPECT_EQ(Float8E4M3(-1e30f).bits, 0xff);
  EXPECT_EQ(Float8E4M3(kInfinity).bits, 0x7f);
}

TEST(DTypeNames, ComeBack) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_EQ(fmt::format("{}", dtype), name(dtype));
    visit(dtype, [&]<class T>(std::type_identity<T>) {
      EXPECT_EQ(static_cast<size_t>(size_bytes(dtype)), sizeof(T));
      EXPECT_EQ(dtype_of<T>(), dtype);
      EXPECT_EQ(is_complex(dtype), is_complex_type<T>);
      EXPECT_EQ(is_floating(dtype), is_short_float<T> || std::is_floating_point_v<T>);
    });
  }
  EXPECT_EQ(parse_dtype("f32"), DType::f32);
  EXPECT_EQ(parse_dtype("f8e4m3"), DType::f8e4m3);
  EXPECT_EQ(parse_dtype("bool"), DType::boolean);
}

TEST(DTypeNames, AnUnknownOneSaysWhatThereIs) {
  try {
    parse_dtype("float23");
    FAIL();
  } catch (const DTypeError& error) {
    EXPECT_NE(std::string(error.what()).find("\"float23\" is no dtype: use one of float64, float32"),
              std::string::npos);
  }
}

TEST(CheckReducible, AllowsWhatIsDefined) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool fractional = is_floating(dtype) || is_complex(dtype);
    const auto allowed = [&](ReduceOp op) {
      try {
        check_reducible(op, dtype);
        return true;
      } catch (const DTypeError& error) {
        EXPECT_EQ(std::string(error.what()).find(fmt::format("{} of {}: ", name(op), dtype)), 0u) << error.what();
        return false;
      }
    };
    EXPECT_TRUE(allowed(ReduceOp::sum));
    EXPECT_TRUE(allowed(ReduceOp::prod));
    EXPECT_EQ(allowed(ReduceOp::avg), fractional);
    EXPECT_EQ(allowed(ReduceOp::premul_sum), fractional);
    EXPECT_EQ(allowed(ReduceOp::min), !is_complex(dtype));
    EXPECT_EQ(allowed(ReduceOp::max), !is_complex(dtype));
    EXPECT_EQ(allowed(ReduceOp::bit_and), !fractional);
    EXPECT_EQ(allowed(ReduceOp::bit_or), !fractional);
    EXPECT_EQ(allowed(ReduceOp::bit_xor), !fractional);
  }
}

}  // namespace
}  // namespace tessera
