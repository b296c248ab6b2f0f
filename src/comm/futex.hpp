// Sleeping in the kernel until a word changes. Works between processes too, so
// that one protocol serves both.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// Cheap, and up to a few milliseconds behind: enough for a deadline.
Clock::time_point coarse_now();

// Returns when *word is not `expected`, when woken, at the deadline, or for no
// reason at all.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline);
void futex_wake_all(const std::atomic<uint32_t>& word);

// How often a waiting rank looks before it sleeps: spinning pays only while the one waited for can run at the same time.
int spins_for(int ranks);

// Tells the core that this is a waiting loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Asks for memory that others have just written: its lines come together, not one after the other as they are read. Of
// many, as many as a core waits for at once.
inline void prefetch_to_read(std::span<const std::byte> memory) {
  for (size_t at = 0; at < std::min<size_t>(memory.size(), 1024); at += 64) __builtin_prefetch(&memory[at]);
}

// Asks for memory that others have read, so that writing to it soon does not wait for each line.
inline void prefetch_to_write(std::span<const std::byte> memory) {
#if defined(__x86_64__)
  for (size_t at = 0; at < memory.size(); at += 64) asm volatile("prefetchw %0" : : "m"(memory[at]));
#else
  for (size_t at = 0; at < memory.size(); at += 64) __builtin_prefetch(&memory[at], 1);
#endif
}

}  // namespace tessera
