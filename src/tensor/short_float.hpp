// The short float formats as numbers: what scalar and vector conversions share.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr uint32_t kFloatInfinity = 0x7f800000u;

// kSpecialBits is the least magnitude that is no number, kNanBits the NaN that
// conversions make, and kOverflowBits what a number becomes that is too large.
template <int kExponentBits, int kMantissaBits, uint32_t kSpecialBits, uint32_t kNanBits, uint32_t kOverflowBits>
struct ShortFloatFormat {
  static constexpr int kSignShift = kExponentBits + kMantissaBits;
  static constexpr int kShift = 23 - kMantissaBits;  // between the mantissas
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1u;
  static constexpr uint32_t kRebias = (127u - kBias) << 23;
  static constexpr uint32_t kMagnitudeMask = (1u << kSignShift) - 1u;
  static constexpr uint32_t kHalfUnit = 1u << (kShift - 1);
  static constexpr uint32_t kMinNormalBits = 1u << kMantissaBits;    // the least normal number, in this format
  static constexpr uint32_t kMinNormal = (127u - kBias + 1u) << 23;  // and as a float
  // The float whose unit in the last place is the least subnormal of this
  // format.
  static constexpr uint32_t kSubnormalMagic = (127u + 24u - kBias - kMantissaBits) << 23;
  static constexpr uint32_t kSpecial = kSpecialBits;
  static constexpr uint32_t kNan = kNanBits;
  static constexpr uint32_t kOverflow = kOverflowBits;
};

using HalfFormat = ShortFloatFormat<5, 10, 0x7c00, 0x7e00, 0x7c00>;
using Float8E5M2Format = ShortFloatFormat<5, 2, 0x7c, 0x7f, 0x7c>;
using Float8E4M3Format = ShortFloatFormat<4, 3, 0x7f, 0x7f,
                                          0x7f>;  // no infinity: the one special value is NaN

}  // namespace tessera
