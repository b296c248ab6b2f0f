// What a rank says to all in one exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/copy.hpp"

namespace tessera {

// What a rank can do while it waits for the others.
class Meanwhile {
 public:
  virtual void meanwhile() = 0;

 protected:
  ~Meanwhile() = default;
};

// A box of a payload: it lies so many bytes from its beginning.
struct PayloadPart {
  PreparedCopy copy;
  size_t at;
};

// Where the version is not 0, all bytes but the first `changed` are those that were announced with
// that version before, or in the call of that number.
struct Saying {
  std::span<const std::byte> bytes;
  size_t changed = 0;
  uint64_t version = 0;
  // Where given, these stand in the place of those in `bytes` from payload_at on. For a transport that says so only.
  std::span<const std::byte> payload = {};
  size_t payload_at = 0;
  std::span<const PayloadPart> parts = {};  // all of the payload that anybody will look at, or none: that is not known
  bool elements = true;                     // others need the changed part too: there are elements of tensors in it
  Meanwhile* meanwhile = nullptr;           // a transport may call it, once, before it waits
  Saying(std::span<const std::byte> b = {}) : bytes(b), changed(b.size()) {}
  Saying(std::span<const std::byte> b, size_t c, uint64_t v) : bytes(b), changed(c), version(v) {}
};

}  // namespace tessera
