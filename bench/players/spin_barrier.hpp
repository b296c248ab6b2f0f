// What a hand-written loop would synchronise with, between threads or in memory that processes share.
#pragma once

#include <sched.h>

#include <atomic>

namespace tessera::bench {

class SpinBarrier {
 public:
  explicit SpinBarrier(int ranks) : ranks_(ranks) {}
  void wait() {
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      if (spins > 2000) sched_yield();  // where there are more ranks than cores, the one it waits for needs this one
    }
  }

 private:
  const int ranks_;
  alignas(128) std::atomic<int> arrived_{0};
  alignas(128) std::atomic<int> generation_{0};
};

}  // namespace tessera::bench
