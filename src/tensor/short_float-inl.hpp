// Loads, stores and the short floats in vectors. Highway's own pattern:
// included once for every instruction set, with a guard that turns over each
// time.
#if defined(TESSERA_TENSOR_SHORT_FLOAT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_TENSOR_SHORT_FLOAT_INL_HPP
#undef TESSERA_TENSOR_SHORT_FLOAT_INL_HPP
#else
#define TESSERA_TENSOR_SHORT_FLOAT_INL_HPP
#endif

#include <cstddef>
#include <cstring>

#include <hwy/highway.h>

#include "tensor/short_float.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
template <class D>
using Lane = hn::TFromD<D>;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  Lane<D> lane;  // there LoadU is a plain read, which needs alignment
  std::memcpy(&lane, from, sizeof(lane));
  return hn::Set(d, lane);
#else
  return hn::LoadU(d, reinterpret_cast<const Lane<D>*>(from));
#endif
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, std::byte* to) {
#if HWY_TARGET == HWY_SCALAR
  const Lane<D> lane = hn::GetLane(v);
  std::memcpy(to, &lane, sizeof(lane));
  (void)d;
#else
  hn::StoreU(v, d, reinterpret_cast<Lane<D>*>(to));
#endif
}

using Floats = hn::ScalableTag<float>;
using Words = hn::ScalableTag<uint32_t>;
template <class Bits>
using Short = hn::Rebind<Bits, Floats>;
using VWords = hn::Vec<Words>;

// As decode() and encode() in dtype.cpp, with selections for their branches.
template <class Format>
struct Decode {
  template <class V>
  HWY_INLINE hn::Vec<Floats> apply(V bits) const {
    const Words d;
    const Floats df;
    const VWords word = hn::PromoteTo(d, bits);
    const VWords sign = hn::ShiftLeft<31 - Format::kSignShift>(hn::AndNot(hn::Set(d, Format::kMagnitudeMask), word));
    const VWords magnitude = hn::And(word, hn::Set(d, Format::kMagnitudeMask));
    const VWords normal = hn::Add(hn::ShiftLeft<Format::kShift>(magnitude), hn::Set(d, Format::kRebias));
    const auto one_up = hn::BitCast(df, hn::Add(normal, hn::Set(d, 1u << 23)));
    const VWords subnormal = hn::BitCast(d, hn::Sub(one_up, hn::BitCast(df, hn::Set(d, Format::kMinNormal))));
    const VWords special = hn::Or(normal, hn::Set(d, kFloatInfinity));
    const VWords finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, Format::kMinNormalBits)), subnormal, normal);
    const VWords all = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, Format::kSpecial)), finite, special);
    return hn::BitCast(df, hn::Or(sign, all));
  }
};

template <class Format, class Bits>
struct Encode {
  HWY_INLINE hn::Vec<Short<Bits>> apply(hn::Vec<Floats> value) const {
    const Words d;
    const Floats df;
    const VWords bits = hn::BitCast(d, value);
    const VWords magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
    const VWords sign = hn::ShiftRight<31 - Format::kSignShift>(hn::Xor(bits, magnitude));
    const VWords magic = hn::Set(d, Format::kSubnormalMagic);
    const VWords subnormal =
        hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, magic))), magic);
    const VWords odd = hn::And(hn::ShiftRight<Format::kShift>(magnitude), hn::Set(d, 1u));
    const VWords rebiased = hn::Add(magnitude, hn::Set(d, Format::kHalfUnit - 1u - Format::kRebias));
    const VWords rounded =
        hn::Min(hn::ShiftRight<Format::kShift>(hn::Add(rebiased, odd)), hn::Set(d, Format::kOverflow));
    const VWords number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, Format::kMinNormal)), subnormal, rounded);
    const auto is_nan = hn::Gt(magnitude, hn::Set(d, kFloatInfinity));
    return hn::TruncateTo(Short<Bits>(), hn::Or(sign, hn::IfThenElse(is_nan, hn::Set(d, Format::kNan), number)));
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// The machine's own conversions, which give the same bits but for the payload
// of a NaN.
struct DecodeHalf {
  template <class V>
  HWY_INLINE hn::Vec<Floats> apply(V bits) const {
    return hn::PromoteTo(Floats(), hn::BitCast(Short<hwy::float16_t>(), bits));
  }
};

struct EncodeHalf {
  HWY_INLINE hn::Vec<Short<uint16_t>> apply(hn::Vec<Floats> value) const {
    return hn::BitCast(Short<uint16_t>(), hn::DemoteTo(Short<hwy::float16_t>(), value));
  }
};
#else
using DecodeHalf = Decode<HalfFormat>;
using EncodeHalf = Encode<HalfFormat, uint16_t>;
#endif

struct DecodeBFloat16 {
  template <class V>
  HWY_INLINE hn::Vec<Floats> apply(V bits) const {
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), bits)));
  }
};

struct EncodeBFloat16 {
  HWY_INLINE hn::Vec<Short<uint16_t>> apply(hn::Vec<Floats> value) const {
    const Words d;
    const VWords bits = hn::BitCast(d, value);
    const VWords odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
    const VWords rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), odd);
    const VWords quiet = hn::Or(bits, hn::Set(d, 0x400000u));
    const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d, 0x7fffffffu)), hn::Set(d, kFloatInfinity));
    return hn::TruncateTo(Short<uint16_t>(), hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)));
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif
