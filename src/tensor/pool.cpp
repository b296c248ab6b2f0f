#include <tessera/pool.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "tensor/poison.hpp"

namespace tessera::pool {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPooled = int64_t{64} << 10;  // below it malloc recycles well enough by itself
constexpr int64_t kAlign = 64;

[[noreturn]] void out_of_memory(int64_t bytes) {
  throw Error(fmt::format("cannot allocate {} bytes: the system has no memory left for them", bytes));
}

// Eight classes to a power of two: ragged outputs of about one size share
// blocks, and at most 1/8 is wasted.
int64_t round_up_to_class(int64_t bytes) {
  const int64_t step = std::max<int64_t>(4096, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 8));
  return (bytes + step - 1) / step * step;
}

void* map_block(int64_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t reserve = static_cast<size_t>(bytes + (huge ? kHugePage : 0));
  void* mapped = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) out_of_memory(bytes);
  if (!huge) return mapped;
  // Huge pages start at multiples of their size: keep an aligned part, give the
  // rest back.
  auto start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(mapped, aligned - start);
  const uintptr_t end = start + reserve, kept_end = aligned + static_cast<uintptr_t>(bytes);
  if (end > kept_end) munmap(reinterpret_cast<void*>(kept_end), end - kept_end);
  madvise(reinterpret_cast<void*>(aligned), static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

class Pool {
 public:
  void* take(int64_t bytes) {
    std::lock_guard lock(mutex_);
    const int64_t peak_before = usage_.peak_bytes;
    usage_.live_bytes += bytes;
    usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.live_bytes);
    // A block up to a quarter too large is better than a fresh one.
    auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= bytes + bytes / 4) {
      void* data = found->second;
      const int64_t size = found->first;
      free_.erase(found);
      usage_.cached_bytes -= size;
      usage_.live_bytes += size - bytes;
      usage_.peak_bytes = std::max(usage_.peak_bytes, usage_.live_bytes);
      sizes_[data] = size;
      unpoison(data, static_cast<size_t>(size));
      return data;
    }
    shrink_to(2 * usage_.peak_bytes - usage_.live_bytes);
    void* data = nullptr;
    try {
      data = map_block(bytes);
    } catch (...) {
      usage_.live_bytes -= bytes;
      usage_.peak_bytes = peak_before;
      throw;
    }
    ++usage_.fresh_blocks;
    sizes_[data] = bytes;
    return data;
  }

  void give(void* data) {
    std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    const int64_t bytes = found->second;
    sizes_.erase(found);
    poison(data, static_cast<size_t>(bytes));
    free_.emplace(bytes, data);
    usage_.live_bytes -= bytes;
    usage_.cached_bytes += bytes;
    shrink_to(2 * usage_.peak_bytes - usage_.live_bytes);
  }

  Usage usage() {
    std::lock_guard lock(mutex_);
    return usage_;
  }

  void trim() {
    std::lock_guard lock(mutex_);
    shrink_to(0);
    usage_.peak_bytes = usage_.live_bytes;
  }

 private:
  // Smallest first: they are the cheapest to make again.
  void shrink_to(int64_t cached_limit) {
    while (usage_.cached_bytes > cached_limit && !free_.empty()) {
      const auto [bytes, data] = *free_.begin();
      free_.erase(free_.begin());
      unpoison(data, static_cast<size_t>(bytes));
      munmap(data, static_cast<size_t>(bytes));
      usage_.cached_bytes -= bytes;
    }
  }

  std::mutex mutex_;
  std::multimap<int64_t, void*> free_;
  std::map<void*, int64_t> sizes_;
  Usage usage_;
};

// Never destroyed: tensors in static variables may outlive any order of
// destruction.
Pool& the_pool() {
  static Pool* pool = new Pool;
  return *pool;
}

}  // namespace

std::shared_ptr<void> allocate(int64_t bytes) {
  constexpr int64_t kMost = int64_t{1} << 60;  // more than any address space; keeps the sums below in range
  if (bytes > kMost) out_of_memory(bytes);
  if (bytes >= kPooled) {
    const int64_t rounded = round_up_to_class(bytes);
    void* data = the_pool().take(rounded);
    return {data, [](void* block) { the_pool().give(block); }};
  }
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  void* data = std::aligned_alloc(kAlign, static_cast<size_t>(rounded));
  if (data == nullptr) out_of_memory(bytes);
  return {data, [](void* p) { std::free(p); }};
}

Usage usage() { return the_pool().usage(); }
void trim() { the_pool().trim(); }

}  // namespace tessera::pool
