// How a sum goes between hosts: every schedule of it, run with names for elements. So the order in which they are added up is
// seen, what comes from where, and that nobody reads what is being written.
#include <bit>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "collective/sum_moves.hpp"

namespace tessera {
namespace {

using Elements = std::vector<std::string>;

struct Case {
  Hosts hosts;
  Arranged sum;
  bool in_place = false;
  int ranks() const { return hosts.ranks(); }
  int64_t rows() const { return sum.to.shape()[0]; }
};

// ((0 1) (2 3)) ((4 5) 6)
std::string tree(const Elements& terms) {
  if (terms.size() == 1) return terms[0];
  const auto middle = terms.begin() + static_cast<ptrdiff_t>(std::bit_floor(terms.size() - 1));
  return "(" + tree({terms.begin(), middle}) + " " + tree({middle, terms.end()}) + ")";
}

std::string name_of(int rank, int64_t row) { return fmt::format("{}@{}", rank, row); }

std::string sum_of(int ranks, int64_t row) {
  Elements terms;
  for (int r = 0; r < ranks; ++r) terms.push_back(name_of(r, row));
  return tree(terms);
}

Choice choice_of(const Case& c, const Schedule& schedule, int rank) {
  Choice choice;
  choice.sum = {schedule};
  choice.in_one_round = c.sum.op == OpCode::all_reduce && schedule.way == Way::direct && schedule.block == 1;
  choice.has_scratch = choice.sums_in_rounds();
  if (choice.has_scratch) choice.scratch = SumMoves(c.sum, choice.sum[0], c.hosts, rank).scratch();
  if (choice.has_scratch || schedule.way != Way::spread || c.sum.op == OpCode::all_reduce) return choice;
  choice.has_scratch = true;
  choice.scratch = {even_stretches(summing_of(c.sum)->sizes)[static_cast<size_t>(rank)]};
  return choice;
}

struct Rank {
  std::vector<Tensor> tensors;  // only where they lie matters
  std::vector<Elements> elements;
  Rounds rounds;
};

using Sent = std::tuple<size_t, int, int, int, int64_t, int64_t>;

class Run {
 public:
  Run(const Case& c, const Schedule& schedule) : case_(c), ranks_(static_cast<size_t>(c.ranks())) {
    const Network network{c.hosts, {}};
    for (int r = 0; r < c.ranks(); ++r) {
      Rank& rank = ranks_[static_cast<size_t>(r)];
      const Choice choice = choice_of(c, schedule, r);
      const Tensor x = Tensor::empty(DType::i8, {c.rows()});
      const int64_t kept = c.sum.to.holds(r) ? c.sum.to.box(r).extent[0] : 0;
      rank.tensors = {x, c.in_place ? x : Tensor::empty(DType::i8, {kept})};
      if (choice.has_scratch) rank.tensors.push_back(Tensor::empty(DType::i8, choice.scratch));
      for (const Tensor& tensor : rank.tensors)
        rank.elements.emplace_back(static_cast<size_t>(tensor.elements()), "nothing");
      for (int64_t row = 0; row < c.rows(); ++row) rank.elements[0][static_cast<size_t>(row)] = name_of(r, row);
      append_moves(c.sum, choice, &network, r, {0, 2}, rank.tensors, rank.rounds);
      rank.rounds.finish();
    }
    for (size_t k = 0; k < ranks_[0].rounds.all().size(); ++k) round(k);
  }

  size_t rounds() const { return ranks_[0].rounds.all().size(); }
  // Rows that came to a host from others.
  int64_t came_to(int host) const {
    const auto found = came_.find(host);
    return found == came_.end() ? 0 : found->second;
  }
  const Elements& result(int rank) { return elements(rank, 1); }
  bool mirrors() const { return sent_ == taken_; }
  // Rows of other ranks' own memory that were read on one host.
  int64_t kept_read_near() const { return kept_read_near_; }

 private:
  Elements& elements(int rank, int tensor) {
    const bool is_x = case_.in_place && tensor == 1;
    return ranks_[static_cast<size_t>(rank)].elements[is_x ? 0 : static_cast<size_t>(tensor)];
  }
  static Stretch rows(const Box& box) { return {box.offset[0], box.offset[0] + box.extent[0]}; }

  void take(size_t k, int to, const Term& term) {
    const Stretch stretch = rows(term.box);
    if (term.rank == to) return;
    taken_.insert({k, term.rank, to, term.tensor, stretch.begin, stretch.end});
    const int host = case_.hosts.host_of(to);
    if (case_.hosts.host_of(term.rank) != host) came_[host] += stretch.length();
    else if (term.tensor == 2) kept_read_near_ += stretch.length();
  }

  // That no row which others read is written.
  void check_apart(int rank, const Move& move, size_t k) {
    for (const Receive& receive : move.receives) {
      for (const auto& [round, from, to, tensor, begin, end] : sent_) {
        const bool same = tensor == receive.tensor || (case_.in_place && tensor < 2 && receive.tensor < 2);
        if (round != k || from != rank || !same) continue;
        EXPECT_TRUE(intersect(rows(receive.box), {begin, end}).empty())
            << "rank " << rank << " writes over what it sends";
      }
    }
  }

  void round(size_t k) {
    for (int r = 0; r < case_.ranks(); ++r) {
      const auto moves = ranks_[static_cast<size_t>(r)].rounds.all();
      ASSERT_EQ(moves.size(), rounds());
      EXPECT_EQ(moves[k].shares_wishes, ranks_[0].rounds.all()[k].shares_wishes);
      for (const Send& send : moves[k].sends) {
        sent_.insert({k, r, send.rank, send.tensor, rows(send.box).begin, rows(send.box).end});
      }
    }
    const std::vector<Rank>& now = ranks_;
    std::vector<std::tuple<int, int, size_t, std::string>> writes;
    for (int r = 0; r < case_.ranks(); ++r) {
      const Move& move = now[static_cast<size_t>(r)].rounds.all()[k];
      check_apart(r, move, k);
      for (const Receive& receive : move.receives) {
        const auto terms = std::span(move.terms).subspan(receive.first_term, receive.terms);
        for (const Term& term : terms) take(k, r, term);
        for (int64_t i = 0; i < receive.box.extent[0]; ++i) {
          Elements added;
          for (const Term& term : terms)
            added.push_back(elements(term.rank, term.tensor).at(static_cast<size_t>(term.box.offset[0] + i)));
          writes.emplace_back(r, receive.tensor, static_cast<size_t>(receive.box.offset[0] + i), tree(added));
        }
      }
    }
    for (const auto& [rank, tensor, row, sum] : writes) elements(rank, tensor).at(row) = sum;
  }

  const Case& case_;
  std::vector<Rank> ranks_;
  std::multiset<Sent> sent_, taken_;
  std::map<int, int64_t> came_;
  int64_t kept_read_near_ = 0;
};

Arranged sum_over(OpCode op, const Sizes& sizes) {
  const auto ranks = static_cast<int>(sizes.size());
  Arranged sum;
  sum.op = op;
  sum.moves = true;
  sum.dtype = DType::i8;
  sum.sizes = sizes;
  const Dims shape{total(sizes)};
  sum.from = AxisLayout(shape, axis_partial(), ranks);
  if (op == OpCode::all_reduce) sum.to = AxisLayout(shape, axis_replicate(), ranks);
  if (op == OpCode::reduce_scatter) sum.to = AxisLayout(shape, axis_shard(0, sizes), ranks);
  if (op == OpCode::reduce) sum.to = AxisLayout(shape, axis_at(ranks - 1), ranks);
  return sum;
}

std::vector<Schedule> schedules_of(const Case& c) {
  const Network network{c.hosts, {}};
  const SumSchedules sums(network, true);
  if (c.sum.op == OpCode::all_reduce) return sums.kept_by_all(double(c.rows()), true, c.in_place, {});
  return sums.kept_apart(summing_of(c.sum)->sizes, 1);
}

// Ranks per host.
Hosts hosts_of(const std::vector<int>& counts) {
  std::vector<std::string> keys;
  for (size_t h = 0; h < counts.size(); ++h) keys.insert(keys.end(), static_cast<size_t>(counts[h]), std::to_string(h));
  return Hosts(keys);
}

void check(const Case& c, const Schedule& schedule) {
  Run run(c, schedule);
  EXPECT_TRUE(run.mirrors());
  EXPECT_EQ(static_cast<int64_t>(run.rounds()), schedule.rounds);
  EXPECT_TRUE(schedule.way == Way::spread || run.kept_read_near() == 0);
  for (int r = 0; r < c.ranks(); ++r) {
    if (!c.sum.to.holds(r)) continue;
    const Box box = c.sum.to.box(r);
    for (int64_t i = 0; i < box.extent[0]; ++i)
      ASSERT_EQ(run.result(r).at(static_cast<size_t>(i)), sum_of(c.ranks(), box.offset[0] + i)) << "on rank " << r;
  }
  if (schedule.way != Way::direct || schedule.block == 1) return;
  // Of each row that a host is to have, one term for each block elsewhere.
  const Blocks blocks(c.hosts, schedule.block);
  for (int h = 0; h < c.hosts.count(); ++h) {
    int64_t kept = c.sum.op == OpCode::all_reduce ? c.rows() : 0;
    for (const int r : c.hosts.ranks_on(h)) {
      if (c.sum.op != OpCode::all_reduce && c.sum.to.holds(r)) kept += c.sum.to.box(r).extent[0];
    }
    EXPECT_EQ(run.came_to(h), kept * (blocks.count() - static_cast<int>(blocks.on(h).size()))) << "to host " << h;
  }
}

const std::vector<std::vector<int>> kHosts{{2, 2},    {4, 3},       {2, 2, 2, 1}, {4, 2},
                                           {2, 4},    {6, 6},       {1, 1, 1},    {4, 4, 4},
                                           {4, 8, 2}, {6, 2, 4, 1}, {2, 1, 3, 1}, {8, 8, 8, 8, 3}};

TEST(Sums, EverySchedulesBitsAreThoseOfOne) {
  std::set<std::pair<Way, bool>> seen;
  for (const auto& counts : kHosts) {
    Case c{hosts_of(counts), {}};
    const auto n = static_cast<size_t>(c.ranks());
    Sizes even(n, 3), ragged, one(n, 0), few(n, 0);
    for (size_t r = 0; r < n; ++r) ragged.push_back(static_cast<int64_t>((r * 7) % 5));
    one[n / 2] = 37;
    few[0] = few[n - 1] = 1;
    for (const Sizes& sizes : {even, ragged, one, few}) {
      for (const OpCode op : {OpCode::all_reduce, OpCode::reduce_scatter, OpCode::reduce}) {
        for (const bool in_place : {false, true}) {
          if (in_place && op != OpCode::all_reduce) continue;
          c.sum = sum_over(op, sizes);
          c.sum.shares_elements = c.in_place = in_place;
          for (const Schedule& schedule : schedules_of(c)) {
            // Over itself it is never taken so.
            if (in_place && schedule.way == Way::direct && schedule.block == 1) continue;
            SCOPED_TRACE(fmt::format("{} of [{}] on [{}]{}: {}", name(op), fmt::join(sizes, " "),
                                     fmt::join(counts, " "), in_place ? " in place" : "", explain({schedule})));
            check(c, schedule);
            seen.insert({schedule.way, schedule.block > 1});
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST(Sums, BlocksLieOnOneHost) {
  for (const auto& [counts, length] : {std::pair(std::vector{4, 3}, 4),
                                       {{4, 4}, 4},
                                       {{3, 4}, 1},
                                       {{6, 6}, 2},
                                       {{12, 12}, 4},
                                       {{1, 1, 1}, 1},
                                       {{8, 2}, 8},
                                       {{8, 2, 8}, 2},
                                       {{7}, 4},
                                       {{96, 96}, 32}}) {
    EXPECT_EQ(Blocks::longest(hosts_of(counts)), length) << fmt::format("{}", fmt::join(counts, " "));
  }
  const std::string dealt[] = {"a", "b", "a", "b"};
  EXPECT_EQ(Blocks::longest(Hosts(dealt)), 1);
}

// Of more than one block on a host a rank gets several terms one after the other: long ones a few megabytes at a time.
TEST(Sums, TermsOfOneHostComeSideBySide) {
  const Hosts hosts = hosts_of({6, 6});
  const int64_t rows = int64_t{3} << 20;
  const Folding folding(hosts, Blocks(hosts, 2), Folding::each_rank, Sizes(12, rows), 4);
  for (int c = 0; c < folding.classes(); ++c) {
    int64_t next = 0;
    for (const size_t piece : folding.pieces_of(c)) {
      EXPECT_LE(folding.rows(piece).length() * 4, int64_t{4} << 20);
      for (const int block : folding.blocks().on(0)) {
        EXPECT_EQ(folding.place(piece, block).begin, next);
        next = folding.place(piece, block).end;
      }
    }
    EXPECT_EQ(next, 2 * 3 * rows);  // for a rank of either host
  }
}

Way way_of(const Schedule& schedule, int* block) {
  *block = schedule.block;
  return schedule.way;
}

TEST(Sums, HostsWithSeveralRanksAddUpFirst) {
  int block = 0;
  const Network two{hosts_of({4, 4}), {}}, many{hosts_of(std::vector<int>(64, 8)), {2, 0.5, 1e-4}};
  const SumSchedules of_two(two, true), of_many(many, true);
  const auto schedule_of_all = [&](const SumSchedules& sums, double bytes) {
    return cheapest(
        sums.kept_by_all(bytes, bytes <= kOneRoundBytes, false, {Way::direct, 0, 1, 2 + 32 + bytes * 1e-4}));
  };
  EXPECT_EQ(way_of(schedule_of_all(of_two, 1 << 20), &block), Way::direct);
  EXPECT_EQ(block, 4);
  EXPECT_EQ(way_of(schedule_of_all(of_many, 4096), &block), Way::logarithmic);
  EXPECT_EQ(block, 8);
  EXPECT_EQ(way_of(schedule_of_all(of_many, 1 << 24), &block), Way::spread);
  EXPECT_EQ(block, 8);
  EXPECT_EQ(way_of(cheapest(of_two.kept_apart(Sizes(8, 1 << 16), 4)), &block), Way::direct);
  EXPECT_EQ(block, 4);
  EXPECT_EQ(way_of(cheapest(of_two.kept_apart(Sizes(8, 1), 4)), &block), Way::direct);
  // Of one that a single rank is to have, one rank of each host would add up all: in even stretches all of them do.
  Sizes at_one(8, 0);
  at_one[3] = 1 << 24;
  EXPECT_EQ(way_of(cheapest(of_two.kept_apart(at_one, 4)), &block), Way::spread);
  EXPECT_EQ(block, 4);
  // What cannot be added up in parts, such as short floats, goes as ever.
  EXPECT_EQ(SumSchedules(two, false).kept_apart(Sizes(8, 1 << 16), 4).size(), 2u);
}

}  // namespace
}  // namespace tessera
