// The schedules of a gather between very many hosts: the real moves, worked out without any data. Prints the table of
// docs/many-machines.md.
#include <gtest/gtest.h>

#include "collective/moves.hpp"

namespace tessera {
namespace {

constexpr int64_t kRowBytes = 256;
// Of a network of today, to weigh them: a round that must wait for the one before, a message, a byte.
constexpr double kRoundUs = 2, kMessageUs = 0.5, kByteUs = 1e-4;

struct Load {  // of the rank that has most of it
  size_t rounds = 0;
  int64_t messages = 0, sent_bytes = 0;
  double us() const {
    return static_cast<double>(rounds) * kRoundUs + static_cast<double>(messages) * kMessageUs +
           static_cast<double>(sent_bytes) * kByteUs;
  }
};

// What the rank sends. The tensors are never touched: only where they lie matters.
Load load_of(const Sizes& sizes, int rank, bool owners_send) {
  static std::byte nowhere[1];
  const auto ranks = static_cast<int>(sizes.size());
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  const Dims shape{total, kRowBytes}, part{sizes[static_cast<size_t>(rank)], kRowBytes};
  Arranged a;
  a.op = detail::OpCode::all_gather;
  a.dtype = DType::u8;
  a.moves = true;
  a.sizes = sizes;
  a.from = AxisLayout(shape, axis_shard(0, sizes), ranks);
  a.to = AxisLayout(shape, axis_replicate(), ranks);
  const std::vector<Tensor> mine{Tensor::view(nowhere, DType::u8, part, row_major(part)),
                                 Tensor::view(nowhere + 1, DType::u8, shape, row_major(shape))};
  Rounds rounds;
  append_moves(a, rank, 0, mine, owners_send, rounds);
  Load load{rounds.all().size(), 0, 0};
  for (const Move& move : rounds.all()) {
    load.messages += static_cast<int64_t>(move.sends.size());
    for (const Send& send : move.sends) load.sent_bytes += send.box.elements();
  }
  return load;
}

Load busiest(const Sizes& sizes, bool owners_send) {
  Load most;
  const size_t n = sizes.size();
  for (const size_t rank : {size_t{0}, size_t{1}, n / 2, n - 1}) {
    const Load load = load_of(sizes, static_cast<int>(rank), owners_send);
    most = {std::max(most.rounds, load.rounds), std::max(most.messages, load.messages),
            std::max(most.sent_bytes, load.sent_bytes)};
  }
  return most;
}

struct Split {
  const char* name;
  Sizes sizes;
};

// A mean of 16 KiB a rank.
std::vector<Split> splits(int64_t ranks) {
  const auto n = static_cast<size_t>(ranks);
  const int64_t mean = 64;
  Split even{"even", Sizes(n, mean)}, skewed{"skewed", Sizes(n, mean / 2)}, one{"one has all", Sizes(n, 0)};
  skewed.sizes[0] += ranks * mean / 2;  // half of it on one rank
  one.sizes[0] = ranks * mean;
  return {even, skewed, one};
}

TEST(Schedules, TimeFollowsTheTotalAtAnyScale) {
  fmt::print("| ranks | split | schedule | rounds | messages | MiB sent | model, ms |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int64_t ranks : {1024, 16384}) {
    double even_us = 0;
    for (const Split& split : splits(ranks)) {
      const int64_t total = ranks * 64 * kRowBytes, longest = split.sizes[0] * kRowBytes;
      const auto row = [&](const char* schedule, const Load& load) {
        fmt::print("| {} | {} | {} | {} | {} | {:.1f} | {:.1f} |\n", ranks, split.name, schedule, load.rounds,
                   load.messages, static_cast<double>(load.sent_bytes) / (1 << 20), load.us() / 1000);
      };
      const Load ours = busiest(split.sizes, true);
      row("tessera", ours);
      row("direct", busiest(split.sizes, false));
      // Each rank passes on what is not its neighbour's, in pieces so small that nobody waits for one; where they are whole
      // parts, in each round somebody passes on the longest, as in a gather that pads.
      row("pipelined ring", {static_cast<size_t>(ranks - 1), ranks - 1, total});
      row("ring, padded gather", {static_cast<size_t>(ranks - 1), ranks - 1, longest * (ranks - 1)});
      if (even_us == 0) even_us = ours.us();
      EXPECT_LE(ours.rounds, 2u);
      EXPECT_LE(ours.sent_bytes, 2 * total);
      EXPECT_LE(ours.us(), 2.5 * even_us) << split.name;
    }
  }
}

}  // namespace
}  // namespace tessera
