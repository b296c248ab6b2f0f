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

// The same of memory that this core writes soon.
inline void prefetch_to_write(std::span<const std::byte> memory) {
  for (size_t at = 0; at < std::min<size_t>(memory.size(), 512); at += 64) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(memory[at]));  // what the builtin makes only where the compiler is told of it
#else
    __builtin_prefetch(&memory[at], 1);
#endif
  }
}

// How often a waiting rank looks before it does anything else: spinning pays only while the one waited for can run at the
// same time.
int spins_for(int ranks, int cores);

// How a waiting rank looks before it sleeps. Where each of `ranks` can have a core it spins. Else it leaves the core, which
// may be the very one that the rank waited for needs, to any other that can run: that takes a fraction of what a sleep and
// a wake do. But who sleeps gets the core back sooner from a program that computes without end, so that near such a one it
// sleeps at once.
class Looks {
 public:
  explicit Looks(int ranks);

  // Whether pred() held at one of the looks.
  template <class Pred>
  bool until(const Pred& pred) const {
    for (int i = 0; i < spins_; ++i) {
      if (pred()) return true;
      if (i >= kEager) cpu_relax();
    }
    bool shared = true;
    for (int i = 0; i < yields_ && shared; ++i) {
      shared = leave_core();
      if (pred()) return true;
    }
    return false;
  }

 private:
  // So many looks come without a pause between them, which takes as long as half the wait of a small call.
  static constexpr int kEager = 100;
  // Whether to do it again: not for a while after it took long.
  static bool leave_core();

  int spins_, yields_;
};

}  // namespace tessera
