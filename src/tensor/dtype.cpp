#include <array>

#include <tessera/error.hpp>
#include <tessera/reduction.hpp>

#include "tensor/short_float.hpp"

namespace tessera {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::string_view short_name;
  int64_t size_bytes;
};

constexpr std::array<DTypeFacts, kDTypeCount> kFacts = {{
    {"float64", "f64", 8},
    {"float32", "f32", 4},
    {"float16", "f16", 2},
    {"bfloat16", "bf16", 2},
    {"float8_e4m3fn", "f8e4m3", 1},
    {"float8_e5m2", "f8e5m2", 1},
    {"int64", "i64", 8},
    {"int32", "i32", 4},
    {"int16", "i16", 2},
    {"int8", "i8", 1},
    {"uint8", "u8", 1},
    {"bool", "boolean", 1},
    {"complex64", "c64", 8},
    {"complex128", "c128", 16},
}};

const DTypeFacts& facts(DType dtype) { return kFacts[static_cast<size_t>(dtype)]; }

// Rounds to nearest even by integer arithmetic; subnormals by letting a float
// addition round at their unit.
template <class Format>
uint32_t encode(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << Format::kSignShift;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kFloatInfinity) return sign | Format::kNan;
  if (magnitude < Format::kMinNormal) {
    const float rounded = std::bit_cast<float>(magnitude) + std::bit_cast<float>(Format::kSubnormalMagic);
    return sign | (std::bit_cast<uint32_t>(rounded) - Format::kSubnormalMagic);
  }
  const uint32_t odd = (magnitude >> Format::kShift) & 1u;
  const uint32_t rounded = (magnitude - Format::kRebias + Format::kHalfUnit - 1u + odd) >> Format::kShift;
  return sign | (rounded < Format::kOverflow ? rounded : Format::kOverflow);
}

template <class Format>
float decode(uint32_t bits) {
  const uint32_t sign = (bits >> Format::kSignShift) << 31;
  const uint32_t magnitude = bits & Format::kMagnitudeMask;
  uint32_t result = (magnitude << Format::kShift) + Format::kRebias;
  if (magnitude >= Format::kSpecial) {
    result |= kFloatInfinity;
  } else if (magnitude < Format::kMinNormalBits) {
    // One exponent step up, then take the implicit bit off again: exact, and no
    // subnormal float on the way.
    const float one_up = std::bit_cast<float>(result + (1u << 23));
    result = std::bit_cast<uint32_t>(one_up - std::bit_cast<float>(Format::kMinNormal));
  }
  return std::bit_cast<float>(sign | result);
}

}  // namespace

int64_t size_bytes(DType dtype) { return facts(dtype).size_bytes; }

std::string_view name(DType dtype) { return facts(dtype).name; }

DType parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (text == kFacts[i].name || text == kFacts[i].short_name) return static_cast<DType>(i);
  }
  std::string known;
  for (const DTypeFacts& each : kFacts) known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
  throw DTypeError(fmt::format("\"{}\" is no dtype: use one of {}", text, known));
}

bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

uint16_t detail::half_from_float(float value) { return static_cast<uint16_t>(encode<HalfFormat>(value)); }
float detail::float_from_half(uint16_t bits) { return decode<HalfFormat>(bits); }
uint8_t detail::f8e4m3_from_float(float value) { return static_cast<uint8_t>(encode<Float8E4M3Format>(value)); }
float detail::float_from_f8e4m3(uint8_t bits) { return decode<Float8E4M3Format>(bits); }
uint8_t detail::f8e5m2_from_float(float value) { return static_cast<uint8_t>(encode<Float8E5M2Format>(value)); }
float detail::float_from_f8e5m2(uint8_t bits) { return decode<Float8E5M2Format>(bits); }

uint16_t detail::bfloat16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > kFloatInfinity) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

std::string_view name(ReduceOp op) {
  constexpr std::string_view kNames[] = {"sum",     "avg",    "prod",    "min",       "max",
                                         "bit_and", "bit_or", "bit_xor", "premul_sum"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "?";
}

void check_reducible(Reduction reduction, DType dtype) {
  const bool fractional = is_floating(dtype) || is_complex(dtype);
  const auto refuse = [&](std::string_view why) {
    throw DTypeError(fmt::format("{} of {}: {}", name(reduction.op), dtype, why));
  };
  switch (reduction.op) {
    case ReduceOp::sum:
    case ReduceOp::prod: return;
    case ReduceOp::avg:
      if (!fractional)
        refuse(
            "the average of whole numbers is none; reduce with sum and "
            "divide, or convert to float32");
      return;
    case ReduceOp::premul_sum:
      if (!fractional)
        refuse(
            "the factor would be cut to a whole number; scale before a sum, "
            "or convert to float32");
      return;
    case ReduceOp::min:
    case ReduceOp::max:
      if (is_complex(dtype)) refuse("complex numbers have no order; reduce their absolute values");
      return;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor:
      if (fractional)
        refuse(
            "bit operations are for integers and bool; view the tensor as an "
            "integer dtype");
      return;
  }
  refuse("there is no such operation");
}

}  // namespace tessera
