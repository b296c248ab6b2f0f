// Where a peer's box lies, and how it is read: in place, attached to its process, or out of a mirror that is being filled.
#pragma once

#include <functional>
#include <span>

#include "comm/transport.hpp"
#include "transport/shm/mirror.hpp"
#include "transport/shm/world.hpp"

namespace tessera::shm {

// A handle's words: the address in the owner's process; and, where the elements (or their mirror) lie in the owner's arena,
// the offset there with kShared, and kMirrored.
inline constexpr uint64_t kShared = uint64_t{1} << 63;
inline constexpr uint64_t kMirrored = uint64_t{1} << 62;
inline constexpr uint64_t kOffsetMask = kMirrored - 1;

struct Source {
  enum Kind { direct, attached, mirrored } kind = direct;
  int rank = 0;                      // of the world
  ConstView view;                    // the box; of `attached` the address is the owner's, and is not read here
  const MirrorHead* head = nullptr;  // of `mirrored`
  const std::byte* mirror = nullptr;
};

// The box of a tensor that world rank `rank` announced. What it said is checked against the bounds of its arena: throws
// Error where it lies outside.
Source locate(std::span<const std::byte> arena, int rank, const Announced& tensor, const Box& box);

// Maps what will be read of a peer's arena, all at once: cheaper than a fault for every few pages.
class Mapper {
 public:
  void map(const World& world, int rank, const std::byte* end);

 private:
  std::vector<size_t> mapped_;  // bytes of each arena, from the front
};

// Copies an attached box over `target`; false where the owner is gone. Throws Error where its memory cannot be read.
bool read_attached(const World& world, const View& target, const Source& source, std::vector<std::byte>& scratch);

// Behind the last byte of a view.
const std::byte* end_of(const ConstView& view);

// How many bytes of its mirror must be filled before the box can be read.
uint64_t needed(const Source& source);

}  // namespace tessera::shm
