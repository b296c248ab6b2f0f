#include "side_by_side.hpp"

#include <algorithm>

namespace bench {
namespace {

double time_calls(const std::function<void(int64_t)>& fn, int64_t calls, int64_t& number, SpinBarrier& barrier) {
  barrier.wait();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) fn(number++);
  barrier.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(calls);
}

}  // namespace

void compare(benchmark::State& state, int ranks, int64_t calls, const Setup& setup) {
  constexpr int kTurns = 12;
  double best_ours = 1e9, best_limit = 1e9;
  std::vector<double> ratios;
  for (auto _ : state) {
    Shared shared(ranks);
    double ours_total = 0;
    tessera::run(ranks, [&](tessera::Comm& comm) {
      const Sides sides = setup(comm, shared);
      comm.barrier();
      int64_t number = 0;
      for (int turn = -1; turn < kTurns; ++turn) {  // the first warms up and does not count
        const double ours = time_calls(sides.ours, calls, number, shared.barrier);
        const double limit = time_calls(sides.limit, calls, number, shared.barrier);
        if (comm.rank() != 0 || turn < 0) continue;
        best_ours = std::min(best_ours, ours);
        best_limit = std::min(best_limit, limit);
        ratios.push_back(ours / limit);
        ours_total += ours;
      }
    });
    state.SetIterationTime(ours_total / kTurns);
  }
  std::sort(ratios.begin(), ratios.end());
  state.counters["ours_us"] = best_ours * 1e6;
  state.counters["limit_us"] = best_limit * 1e6;
  state.counters["ratio"] = best_ours / best_limit;
  state.counters["ratio_p50"] = ratios[ratios.size() / 2];
}

}  // namespace bench
