// What a rank says to all in one exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

// Where the version is not 0, all bytes but the first `changed` are those that were announced with
// that version before, or in the call of that number.
struct Saying {
  std::span<const std::byte> bytes;
  size_t changed = 0;
  uint64_t version = 0;
  bool elements = true;  // others need the changed part too: there are elements of tensors in it
  Saying(std::span<const std::byte> b = {}) : bytes(b), changed(b.size()) {}
  Saying(std::span<const std::byte> b, size_t c, uint64_t v) : bytes(b), changed(c), version(v) {}
};

}  // namespace tessera
