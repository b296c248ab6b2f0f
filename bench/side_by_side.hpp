// Times two ways of doing one thing by the same threads, turn by turn in one run, so that noise hits both alike.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>
#include <tessera/tessera.hpp>

namespace bench {

// What a hand-written loop would synchronise with.
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
    while (generation_.load(std::memory_order_acquire) == generation) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  const int ranks_;
  alignas(128) std::atomic<int> arrived_{0};
  alignas(128) std::atomic<int> generation_{0};
};

// What the ranks of one benchmark share: each rank's inputs, where a hand-written loop finds them.
struct Shared {
  explicit Shared(int ranks) : barrier(ranks), inputs(static_cast<size_t>(ranks)) {}
  SpinBarrier barrier;
  std::vector<std::vector<tessera::Tensor>> inputs;
};

// One rank's two ways; both are called with a running number by which they rotate their buffers.
struct Sides {
  std::function<void(int64_t)> ours;
  std::function<void(int64_t)> limit;
};
using Setup = std::function<Sides(tessera::Comm&, Shared&)>;

// Reports the best times of both (µs a call), their ratio, and the median of the ratios of single turns.
void compare(benchmark::State& state, int ranks, int64_t calls, const Setup& setup);

}  // namespace bench
