// Whose gradient a call is.
#pragma once

#include <cstdint>

namespace tessera::detail {

// How many calls ago that was, and its place in a list. Zero: of none, or of one that is not known. Ranks that know it must
// agree: gradients of different calls may look alike, and would be added up. It has the upper bits of Description::flags.
struct Forward {
  int64_t calls_ago = 0;
  int64_t place = 0;

  static constexpr int kOwnBits = 8, kPlaceBits = 16;
  static constexpr int64_t kPlaces = int64_t{1} << kPlaceBits;  // tensors of longer lists are not all told apart

  static Forward in(int64_t flags) { return {flags >> (kOwnBits + kPlaceBits), (flags >> kOwnBits) % kPlaces}; }
  int64_t as_flags() const { return (calls_ago * kPlaces + place % kPlaces) << kOwnBits; }
  bool known() const { return calls_ago != 0; }
  friend bool operator==(const Forward&, const Forward&) = default;
};

}  // namespace tessera::detail
