// Hosts and sums of which schedules are worked out, without ranks.
#pragma once

#include <numeric>

#include "collective/moves.hpp"
#include "collective/sum_schedule.hpp"

namespace tessera {

constexpr int64_t kRowBytes = 256;

inline Network network_of(int ranks, int hosts, Prices prices = {}) {
  std::vector<std::string> keys;
  for (int r = 0; r < ranks; ++r) keys.push_back(std::to_string(r * hosts / ranks));
  return {Hosts(keys), prices};
}

// Of as many elements as all sizes together.
inline Arranged sum_of(OpCode op, const Sizes& sizes) {
  const auto ranks = static_cast<int>(sizes.size());
  const int64_t elements = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  Arranged sum;
  sum.op = op;
  sum.moves = true;
  sum.from = AxisLayout({elements}, axis_partial(), ranks);
  sum.sizes = sizes;
  sum.to = AxisLayout({elements}, op == OpCode::all_reduce ? axis_replicate() : axis_shard(0, sum.sizes), ranks);
  return sum;
}

}  // namespace tessera
