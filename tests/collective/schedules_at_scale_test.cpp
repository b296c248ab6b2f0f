// Schedules of very many hosts, worked out without data: what the busiest rank sends is what was priced, and the time follows the
// total. Their tables are docs/schedules-at-scale.md; with TESSERA_WRITE_DOCS set that is written.
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "collective/schedule_cases.hpp"

namespace tessera {
namespace {

struct Load {  // of the rank that has most of it
  int64_t rounds = 0, messages = 0, sent_bytes = 0;
  void add(const Load& other) {
    messages = std::max(messages, other.messages);
    sent_bytes = std::max(sent_bytes, other.sent_bytes);
  }
  double us(const Prices& prices) const {
    return static_cast<double>(rounds) * prices.round_us + static_cast<double>(messages) * prices.message_us +
           static_cast<double>(sent_bytes) * prices.byte_us;
  }
};

constexpr Prices kNobodyComesLate{.round_us = 2, .message_us = 0.5, .byte_us = 1e-4};

// What the busiest of some ranks sends; the first has most.
Load busiest(const Sizes& sizes, const Schedule& schedule, const Network& network) {
  const GatherSchedules schedules(sizes, kRowBytes, network);
  const size_t n = sizes.size();
  Load most{schedule.rounds};
  for (const size_t rank : {size_t{0}, size_t{1}, n / 2, n - 1}) {
    if (schedule.way == Way::direct) {
      const auto others = static_cast<int64_t>(n) - 1;
      most.add({1, others, sizes[rank] * kRowBytes * others});
      continue;
    }
    Load load;
    for (const Hop& hop : schedules.hops_from(schedule, static_cast<int>(rank))) {
      ++load.messages;
      load.sent_bytes += hop.rows.length() * kRowBytes;
    }
    most.add(load);
  }
  return most;
}

// In the moves of a sum of f32: of all for all, or of a part for each.
Load busiest_of_sum(const Arranged& sum, const Choice& choice, const Network& network) {
  Load most;
  const int n = network.hosts.ranks();
  const Tensor mine[4];  // never touched
  const int last_block = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  for (const int rank : {0, 1, n / 2, last_block, n - 1}) {
    Rounds rounds;
    append_moves(sum, choice, &network, rank, {0, 2}, mine, rounds);
    Load load;
    for (const Move& round : rounds.all()) {
      for (const Send& send : round.sends) {
        ++load.messages;
        load.sent_bytes += send.box.elements() * 4;
      }
    }
    most.rounds = static_cast<int64_t>(rounds.all().size());
    most.add(load);
  }
  return most;
}

struct Split {
  const char* name;
  Sizes sizes;
};

std::vector<Split> splits(int64_t ranks, int64_t mean) {
  const auto n = static_cast<size_t>(ranks);
  Split even{"even", Sizes(n, mean)}, skewed{"skewed", Sizes(n, mean / 2)}, one{"one has all", Sizes(n, 0)};
  skewed.sizes[0] += ranks * mean / 2;  // half of it on one rank
  one.sizes[0] = ranks * mean;
  return {even, skewed, one};
}

// A table of the page stands there as it is here.
void expect_on_page(const std::string& table) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  const auto path = root / "docs/schedules-at-scale.md";
  std::stringstream page;
  page << std::ifstream(path).rdbuf();
  std::string text = page.str();
  if (text.find("\n\n" + table + "\n") != std::string::npos) return;
  if (std::getenv("TESSERA_WRITE_DOCS") == nullptr) {
    ADD_FAILURE() << path << " is not what these schedules are: run this with TESSERA_WRITE_DOCS=1";
    return;
  }
  const size_t begin = text.find(table.substr(0, table.find('\n')));
  ASSERT_NE(begin, std::string::npos) << "no table begins so there";
  text.replace(begin, text.find("|\n\n", begin) + 2 - begin, table);
  std::ofstream(path) << text;
}

TEST(SchedulesAtScale, TimeFollowsTheTotal) {
  constexpr const char* kNames[] = {"direct", "spread", "ring", "logarithmic"};
  std::string table =
      "| ranks | KiB a rank | split | schedule | rounds | messages | MiB sent | model, ms |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& [ranks, mean] : {std::pair(1024, 64), {1024, 2}, {16384, 64}, {16384, 2}}) {
    const Network network = network_of(ranks, ranks, kNobodyComesLate);
    double even_us = 0;
    for (const Split& split : splits(ranks, mean)) {
      const auto add_row = [&, ranks = ranks, mean = mean](const std::string& name, const Load& load, double us) {
        table += fmt::format("| {} | {:.3g} | {} | {} | {} | {} | {:.1f} | {:.2f} |\n", ranks,
                             static_cast<double>(mean * kRowBytes) / 1024, split.name, name, load.rounds, load.messages,
                             static_cast<double>(load.sent_bytes) / (1 << 20), us / 1000);
      };
      const auto all = GatherSchedules(split.sizes, kRowBytes, network).all();
      const Schedule& best = cheapest(all);
      for (const Schedule& schedule : all) {
        const Load load = busiest(split.sizes, schedule, network);
        const std::string name = kNames[static_cast<size_t>(schedule.way)];
        add_row(schedule.way == best.way ? name + ", taken" : name, load, schedule.us);
        EXPECT_LE(load.us(network.prices), 1.01 * schedule.us) << split.name << name;  // not dearer than was said
      }
      // As a gather that pads, or a ring of whole parts, where in each round somebody passes on the longest.
      const int64_t longest = *std::max_element(split.sizes.begin(), split.sizes.end()) * kRowBytes;
      const Load padded{ranks - 1, ranks - 1, longest * (ranks - 1)};
      add_row("padded ring", padded, padded.us(network.prices));
      if (even_us == 0) even_us = best.us;
      // But for the messages with which one rank spreads it over all, and those of all to it.
      EXPECT_LE(best.us, 2.5 * even_us + 2 * ranks * network.prices.message_us) << split.name;
    }
  }
  expect_on_page(table);
}

TEST(SchedulesAtScale, ShortSumsTakeLogarithmicRoundsAndTimeFollowsTheTotal) {
  std::string table =
      "| ranks | sum | KiB | kept | rounds | messages | KiB sent | schedule, and the others |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  const auto add_case = [&](OpCode op, const Split& split, bool is_short, double most_us) {
    const auto ranks = static_cast<int>(split.sizes.size());
    const Network network = network_of(ranks, ranks, kNobodyComesLate);
    const Arranged sum = sum_of(op, split.sizes);
    const Choice choice = choose(sum, 0, &network);
    const Schedule& best = cheapest(choice.sum);
    const Load load = busiest_of_sum(sum, choice, network);
    table += fmt::format("| {} | `{}` | {} | {} | {} | {} | {:.0f} | {} |\n", ranks, name(op),
                         volume(sum.from.shape()) / 256, op == OpCode::all_reduce ? "by all" : split.name, load.rounds,
                         load.messages, static_cast<double>(load.sent_bytes) / 1024, choice.text());
    EXPECT_EQ(best.way == Way::logarithmic, is_short);
    EXPECT_LE(best.us, most_us) << split.name;
    if (op == OpCode::all_reduce && !is_short) return best.us;  // what is gathered then is priced by itself
    EXPECT_LE(load.us(network.prices), 1.01 * best.us) << split.name;
    EXPECT_TRUE(!is_short || load.rounds == SumRounds(ranks).count());
    return best.us;
  };
  for (const int ranks : {1024, 1030, 16384}) {
    for (const int64_t elements : {1024, 1 << 22}) {
      add_case(OpCode::all_reduce, {"", even_sizes(elements, ranks)}, elements == 1024, INFINITY);
    }
    add_case(OpCode::reduce_scatter, splits(ranks, 1)[0], true, INFINITY);
    double even_us = INFINITY;
    for (const Split& split : splits(ranks, 1 << 12)) {
      const double us = add_case(OpCode::reduce_scatter, split, false, 2.5 * even_us + ranks);
      even_us = std::min(even_us, us);
    }
  }
  expect_on_page(table);
}

// 2,048 hosts of 8: out of each goes one term of all that the others keep.
TEST(SchedulesAtScale, RanksOfAHostFold) {
  constexpr int kHosts = 2048, kRanks = 8 * kHosts;
  const Network network = network_of(kRanks, kHosts, kNobodyComesLate);
  for (const OpCode op : {OpCode::reduce_scatter, OpCode::all_reduce}) {
    const Arranged sum = sum_of(op, Sizes(kRanks, 64));
    const Choice choice = choose(sum, 0, &network);
    EXPECT_EQ(cheapest(choice.sum).block, 8) << choice.text();
    Rounds rounds;
    const Tensor mine[4];  // never touched
    append_moves(sum, choice, &network, 3, {0, 2}, mine, rounds);
    int64_t elements = 0;
    for (const Send& send : rounds.all()[1].sends) {  // after what is added up within hosts
      EXPECT_FALSE(network.hosts.together(3, send.rank));
      elements += send.box.elements();
    }
    EXPECT_EQ(elements, (kHosts - 1) * 64) << choice.text();
  }
}

}  // namespace
}  // namespace tessera
