// How a gather goes between hosts: that every schedule brings every row to every rank, once over each way, and which one is
// taken.
#include <bit>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "collective/schedule_cases.hpp"

namespace tessera {
namespace {

// Ranks of one host that are not neighbours.
Network dealt_out(int ranks, int hosts) {
  std::vector<std::string> keys;
  for (int r = 0; r < ranks; ++r) keys.push_back(std::to_string(r % hosts));
  return {Hosts(keys), {}};
}

using Rows = std::vector<int>;  // how often each has come

void add(Rows& rows, Stretch stretch) {
  for (int64_t i = stretch.begin; i < stretch.end; ++i) ++rows[static_cast<size_t>(i)];
}

bool holds(const Rows& rows, Stretch stretch) {
  return std::all_of(rows.begin() + stretch.begin, rows.begin() + stretch.end, [](int count) { return count == 1; });
}

using Key = std::tuple<size_t, int, int, int64_t, int64_t, bool>;
Key key_of(const Hop& hop) { return {hop.round, hop.from, hop.to, hop.rows.begin, hop.rows.end, hop.first_hand}; }

// Runs the hops in their order.
void check_schedule(const GatherSchedules& schedules, const Schedule& schedule, const Network& network) {
  const int ranks = network.hosts.ranks();
  const auto total = static_cast<size_t>(schedules.own(ranks - 1).end);
  std::set<Key> sent, came;
  std::map<size_t, std::vector<Hop>> rounds;
  std::vector<Rows> have(static_cast<size_t>(ranks), Rows(total, 0)),
      to_host(static_cast<size_t>(network.hosts.count()), Rows(total, 0));
  std::set<std::tuple<size_t, int, int, int64_t, int64_t>> across;
  for (int r = 0; r < ranks; ++r) {
    add(have[static_cast<size_t>(r)], schedules.own(r));
    for (const Hop& hop : schedules.hops_from(schedule, r)) EXPECT_TRUE(sent.insert(key_of(hop)).second);
    for (const Hop& hop : schedules.hops_to(schedule, r)) {
      came.insert(key_of(hop));
      rounds[hop.round].push_back(hop);
      const int host = network.hosts.host_of(r);
      // What several ranks of a host want of one other comes once.
      if (network.hosts.host_of(hop.from) != host &&
          across.insert({hop.round, hop.from, host, hop.rows.begin, hop.rows.end}).second) {
        add(to_host[static_cast<size_t>(host)], hop.rows);
      }
    }
  }
  EXPECT_EQ(sent, came);
  for (const auto& [number, hops] : rounds) {
    EXPECT_LT(number, static_cast<size_t>(schedule.rounds));
    const std::vector<Rows> before = have;
    for (const Hop& hop : hops) {
      const auto from = static_cast<size_t>(hop.from);
      EXPECT_TRUE(holds(before[from], hop.rows)) << hop.from << " has not what it passes on in round " << number;
      if (hop.first_hand) {
        EXPECT_EQ(intersect(schedules.own(hop.from), hop.rows).length(), hop.rows.length());
      }
      add(have[static_cast<size_t>(hop.to)], hop.rows);
    }
  }
  for (const Rows& rows : have) EXPECT_TRUE(holds(rows, {0, static_cast<int64_t>(total)}));
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = schedules.own(r).begin; i < schedules.own(r).end; ++i) {
      for (int h = 0; h < network.hosts.count(); ++h) {
        EXPECT_EQ(to_host[static_cast<size_t>(h)][static_cast<size_t>(i)], h == network.hosts.host_of(r) ? 0 : 1);
      }
    }
  }
}

std::vector<Sizes> some_sizes(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  Sizes even(n, 3), ragged, one(n, 0), most(n, 1);
  for (size_t r = 0; r < n; ++r) ragged.push_back(static_cast<int64_t>((r * 7) % 5));
  one[n / 2] = 37;
  most[0] = 40;
  return {even, ragged, one, most};
}

TEST(Schedules, EveryRowComesToEveryRankAndOnceToEveryHost) {
  std::set<Way> seen;
  for (const auto& [ranks, hosts] : {std::pair(3, 3), {4, 4}, {7, 7}, {16, 16}, {7, 3}, {8, 4}, {12, 5}}) {
    for (const Network& network : {network_of(ranks, hosts), dealt_out(ranks, hosts)}) {
      for (const Sizes& sizes : some_sizes(ranks)) {
        const GatherSchedules schedules(sizes, kRowBytes, network);
        for (const Schedule& schedule : schedules.all()) {
          if (schedule.way == Way::direct) continue;  // is no hops, but a move between layouts
          SCOPED_TRACE(fmt::format("{} ranks on {} hosts, sizes {}, way {}", ranks, hosts, fmt::join(sizes, ","),
                                   static_cast<int>(schedule.way)));
          check_schedule(schedules, schedule, network);
          seen.insert(schedule.way);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u);
}

Way taken(const Sizes& sizes, int64_t row_bytes, const Prices& prices, bool packs = false) {
  const Network network = network_of(static_cast<int>(sizes.size()), static_cast<int>(sizes.size()), prices);
  return cheapest(GatherSchedules(sizes, row_bytes, network, packs).all()).way;
}

TEST(Schedules, TheCheapestIsTaken) {
  Sizes even(8, 4), one(8, 0);
  one[3] = 1 << 16;
  EXPECT_EQ(taken(even, 64, {}), Way::direct);                            // few hosts, little to send
  EXPECT_EQ(taken(even, 64, {.message_us = 100}), Way::logarithmic);      // messages are dear
  EXPECT_EQ(taken(Sizes(1024, 4), 64, {}), Way::logarithmic);             // or there are many
  EXPECT_EQ(taken(one, 1024, {}), Way::ring);                             // 64 MiB on one rank
  EXPECT_EQ(taken(one, 16, {}), Way::spread);                             // 1 MiB: rounds count for more
  EXPECT_EQ(taken(one, 16, {.round_us = 1000}), Way::direct);             // rounds are dear
  EXPECT_EQ(taken({1 << 20, 5}, 1024, {.message_us = 10}), Way::direct);  // between two hosts there is one way
  EXPECT_EQ(taken(Sizes(8, 0), 64, {.message_us = 10}), Way::direct);     // of nothing too
  const Network network = network_of(8, 8, {2, 0.5, 1e-4});
  EXPECT_EQ(cheapest(SumSchedules(network, true).kept_apart(one, 1024)).way, Way::spread);
  EXPECT_EQ(cheapest(SumSchedules(network, true).kept_apart(even, 1024)).way, Way::direct);
  EXPECT_EQ(explain(GatherSchedules(even, 64, network).all()),
            "direct, 1 round: 5.68 us (spread 7.68, ring 18.4, logarithmic 7.68)");
}

// A message that waits for an answer first is dearer: fewer of them are taken where they wait.
TEST(Schedules, WhatWaitsForAnAnswerIsDearer) {
  const auto prices = [](double answer_us, int64_t unanswered_bytes) {
    return Prices{.round_us = 3, .answer_us = answer_us, .unanswered_bytes = unanswered_bytes};
  };
  const Sizes even(8, 32);
  EXPECT_EQ(taken(even, 256, {.round_us = 3}), Way::direct);
  EXPECT_EQ(taken(even, 256, prices(2, 8192)), Way::direct);  // only what is passed on together waits
  EXPECT_EQ(taken(even, 256, prices(2, 8191)), Way::logarithmic);
  const Network network = network_of(8, 8, prices(8, 8191));
  const auto way_of_sum = [&](int64_t rows) {
    return cheapest(SumSchedules(network, true).kept_apart(Sizes(8, rows), 256)).way;
  };
  EXPECT_EQ(way_of_sum(31), Way::direct);
  EXPECT_EQ(way_of_sum(32), Way::logarithmic);
}

// Along an inner dimension an owner sends its tensor as it is, and whoever sends a part of one packs it first.
TEST(Schedules, WhatIsPackedIsDearer) {
  const Sizes ragged{3000, 1000, 2000, 1500}, one{0, 1 << 16, 0, 0};
  EXPECT_EQ(taken(ragged, 1024, {}), Way::spread);
  EXPECT_EQ(taken(ragged, 1024, {}, true), Way::direct);
  EXPECT_EQ(taken(ragged, 1024, {.byte_us = 1e-3}, true),
            Way::spread);  // the network is so slow that it does not matter
  EXPECT_NE(taken(one, 1024, {}, true), Way::direct);
  const Network two = network_of(2, 2);
  EXPECT_EQ(GatherSchedules({3, 5}, 64, two, true).all()[0].us, GatherSchedules({3, 5}, 64, two).all()[0].us);
}

Way way_of_gather(const Dims& shape, int64_t dim, const Sizes& sizes, const Network& network) {
  Arranged gather;
  gather.op = OpCode::all_gather;
  gather.moves = true;
  gather.dim = dim;
  gather.sizes = sizes;
  gather.from = AxisLayout(shape, axis_shard(dim, sizes), static_cast<int>(sizes.size()));
  gather.to = AxisLayout(shape, axis_replicate(), static_cast<int>(sizes.size()));
  return cheapest(choose(gather, 0, &network).gather).way;
}

TEST(Schedules, GathersAlongAnInnerDimensionPack) {
  const Network network = network_of(4, 4);
  for (const auto& [shape, dim, way] : {std::tuple(Dims{1024, 7500}, int64_t{1}, Way::direct),
                                        {Dims{7500, 1024}, 0, Way::spread},
                                        {Dims{1, 7500, 1024}, 1, Way::spread}}) {
    EXPECT_EQ(way_of_gather(shape, dim, {3000, 1000, 2000, 1500}, network), way) << fmt::format("{} {}", shape, dim);
  }
}

// ((0 1) (2 3)) ((4 5) 6)
std::string order_of_sums(int first, int count) {
  if (count == 1) return std::to_string(first);
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  return "(" + order_of_sums(first, left) + " " + order_of_sums(first + left, count - left) + ")";
}

TEST(Schedules, SumsInLogarithmicRoundsHaveTheirOrder) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 23, 32, 33, 63, 100}) {
    const SumRounds rounds(ranks);
    std::vector<std::string> have;
    for (int r = 0; r < ranks; ++r) have.push_back(std::to_string(r));
    std::vector<int> sums(static_cast<size_t>(ranks), 0);
    for (int k = 0; k < rounds.count(); ++k) {
      const std::vector<std::string> before = have;
      std::multiset<std::pair<int, int>> sent, came;
      int64_t most = 1;
      for (int r = 0; r < ranks; ++r) {
        const auto targets = rounds.targets(r, k);
        for (const int to : targets) sent.insert({r, to});
        most = std::max(most, static_cast<int64_t>(targets.size()));
        EXPECT_EQ(rounds.sums_before(r, k), sums[static_cast<size_t>(r)]);
        const int from = rounds.source(r, k);
        if (from < 0) continue;
        came.insert({from, r});
        ++sums[static_cast<size_t>(r)];
        const std::string &own = before[static_cast<size_t>(r)], &other = before[static_cast<size_t>(from)];
        const bool first = rounds.is_first(r, k);
        have[static_cast<size_t>(r)] = "(" + (first ? own : other) + " " + (first ? other : own) + ")";
      }
      EXPECT_EQ(sent, came) << ranks << " ranks, round " << k;
      EXPECT_EQ(rounds.most_targets(k), most) << ranks << " ranks, round " << k;
    }
    for (const std::string& sum : have) EXPECT_EQ(sum, order_of_sums(0, ranks));
  }
}

// So it stays in the cache: see reduce_boxes().
TEST(Rounds, WhatAnAllReduceSumsUpIsReadByOthersNext) {
  const Tensor mine[2];
  for (const OpCode op : {OpCode::all_reduce, OpCode::reduce_scatter}) {
    const Arranged sum = sum_of(op, even_sizes(1 << 20, 3));
    Rounds rounds;
    append_moves(sum, choose(sum, 1, nullptr), nullptr, 1, {0, 2}, mine, rounds);
    ASSERT_EQ(rounds.all().size(), op == OpCode::all_reduce ? 2 : 1);
    for (const Receive& receive : rounds.all()[0].receives) EXPECT_EQ(receive.read_next, op == OpCode::all_reduce);
  }
}

// With other numbers of ranks one that has made no sum before the last round sends its own elements in it.
TEST(Schedules, SumsInPlaceTakeNoLogarithmicRounds) {
  const Network network = network_of(1024, 1024, {2, 0.5, 1e-4});
  Arranged sum = sum_of(OpCode::all_reduce, even_sizes(1024, 1024));
  EXPECT_TRUE(choose(sum, 0, &network).sums_in_rounds());
  sum.shares_elements = true;
  EXPECT_FALSE(choose(sum, 0, &network).sums_in_rounds());
}

}  // namespace
}  // namespace tessera
