#include "tensor/coldness.hpp"

#include <array>
#include <atomic>

namespace tessera {
namespace {

// Measured with a program that reads its results at once: used again after less they are in the cache still, and storing
// to them there is a quarter faster for it; after more it is the same to it, and the call takes half the time.
constexpr uint64_t kDistance = uint64_t{8} << 20;

// Where two blocks share an entry the older one is forgotten. Blocks are longer than 64 KiB.
struct Entry {
  std::atomic<const void*> block{nullptr};
  std::atomic<uint64_t> handed_out{0};  // when, twice; odd: it was cold
};
std::array<Entry, 4096> g_blocks;
std::atomic<uint64_t> g_clock{0};  // bytes handed out

Entry& entry_of(const void* block) { return g_blocks[(reinterpret_cast<uintptr_t>(block) >> 16) % g_blocks.size()]; }

}  // namespace

void note_block(const void* block, int64_t bytes) {
  const uint64_t now =
      g_clock.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed) + static_cast<uint64_t>(bytes);
  Entry& entry = entry_of(block);
  const uint64_t before = entry.handed_out.load(std::memory_order_relaxed) / 2;
  const bool known = entry.block.exchange(block, std::memory_order_relaxed) == block;
  entry.handed_out.store(now * 2 + (known && now - before >= kDistance ? 1 : 0), std::memory_order_relaxed);
}

bool take_cold(const void* block) {
  Entry& entry = entry_of(block);
  if (entry.block.load(std::memory_order_relaxed) != block) return false;
  return (entry.handed_out.fetch_and(~uint64_t{1}, std::memory_order_relaxed) & 1) != 0;
}

}  // namespace tessera
