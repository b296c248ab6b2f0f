// Times two ways of doing one thing by the same threads, turn by turn in one run, so that noise hits both alike.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>
#include <tessera/tessera.hpp>

#include "players/spin_barrier.hpp"

namespace bench {

using tessera::bench::SpinBarrier;

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
