#include <tessera/overlap.hpp>

#include <map>
#include <set>

#include "layout/random_layout.hpp"

namespace tessera::testing_support {
namespace {

std::set<int> all_ranks(const Exchange& exchange) {
  std::set<int> ranks;
  for (const int rank : exchange.from().mesh().ranks()) ranks.insert(rank);
  for (const int rank : exchange.to().mesh().ranks()) ranks.insert(rank);
  return ranks;
}

void require_mirrored(const Exchange& exchange) {
  std::map<std::pair<int, int>, Overlap> sent;
  size_t received = 0;
  for (const int rank : all_ranks(exchange)) {
    for (const Overlap& o : exchange.sends(rank)) {
      RC_ASSERT(sent.emplace(std::pair(rank, o.rank), o).second);  // one box for each pair
    }
  }
  for (const int rank : all_ranks(exchange)) {
    for (const Overlap& o : exchange.receives(rank)) {
      ++received;
      const auto found = sent.find({o.rank, rank});
      RC_ASSERT(found != sent.end());
      RC_ASSERT(found->second.box == o.box && found->second.term == o.term && !o.box.empty());
    }
  }
  RC_ASSERT(received == sent.size());
}

// Whether the holder's coordinate along the reduced axes is that of the term.
int64_t term_at(const Exchange& exchange, int rank) {
  const Dims at = *exchange.from().mesh().coordinate(rank);
  int64_t term = 0;
  for (const size_t a : exchange.reduced_axes()) term = term * exchange.from().mesh().size(a) + at[a];
  return term;
}

// Each element comes once for each term, from a rank that holds it: to everyone who needs it, or, along axes that become
// pending, to one of them.
void require_complete(const Exchange& exchange, const Dims& shape) {
  using Key = std::pair<std::vector<int64_t>, std::vector<int64_t>>;  // place and element
  std::map<Key, std::vector<int64_t>> terms;
  size_t needed = 0;
  const Layout& to = exchange.to();
  const bool one_mesh = exchange.from().mesh() == to.mesh();
  for (const int rank : to.mesh().ranks()) {
    const auto own = to.box(shape, rank);
    Dims place = *to.mesh().coordinate(rank);
    bool first = true;
    for (size_t a = 0; a < place.size(); ++a) {
      const Placement& q = to.placements()[a];
      const bool becomes = q.kind == Placement::Kind::partial && !(one_mesh && exchange.from().placements()[a] == q);
      if (!becomes || q.op == ReduceOp::avg) continue;
      first = first && place[a] == 0;
      place[a] = 0;
    }
    if (own && first) needed += static_cast<size_t>(own->elements());
    int64_t received = 0;
    for (const Overlap& o : exchange.receives(rank)) {
      const auto theirs = exchange.from().box(shape, o.rank);
      RC_ASSERT(theirs.has_value() && intersect(*theirs, o.box) == o.box);
      RC_ASSERT(term_at(exchange, o.rank) == o.term);
      received += o.box.elements();
      for_each_in(o.box, [&](const Dims& at) { terms[{key_of(place), key_of(at)}].push_back(o.term); });
    }
    const int64_t all = own ? own->elements() * exchange.terms() : 0;
    RC_ASSERT(received == all || (received < all && exchange.embeds(rank)));
  }
  RC_ASSERT(terms.size() == needed);
  for (const auto& [at, list] : terms) {
    RC_ASSERT(static_cast<int64_t>(list.size()) == exchange.terms());
    RC_ASSERT(std::is_sorted(list.begin(), list.end()) && list.back() == exchange.terms() - 1);
  }
}

RC_GTEST_PROP(OverlapProperty, OnOneMeshMirroredAndComplete, ()) {
  const Mesh mesh = pick_mesh();
  const Dims shape = pick_shape();
  const auto op = pick(0, 3) == 0 ? ReduceOp::avg : ReduceOp::sum;
  const Exchange exchange(pick_layout(mesh, shape, {.op = op}), pick_layout(mesh, shape), shape);
  RC_LOG() << fmt::format("{} {}: {} to {}\n", mesh, shape, exchange.from(), exchange.to());
  require_mirrored(exchange);
  require_complete(exchange, shape);
}

RC_GTEST_PROP(OverlapProperty, BetweenMeshesMirroredAndComplete, ()) {
  const Mesh mesh = pick_mesh(), other = pick_mesh(2, 8, static_cast<int>(pick(0, 14)));
  const Dims shape = pick_shape();
  const Exchange exchange(pick_layout(mesh, shape), pick_layout(other, shape), shape);
  RC_LOG() << fmt::format("{} {} {}: {} to {}\n", mesh, other, shape, exchange.from(), exchange.to());
  require_mirrored(exchange);
  require_complete(exchange, shape);
}

// What a rank already holds it takes from nobody else.
RC_GTEST_PROP(OverlapProperty, NothingCrossesThatIsThere, ()) {
  const Mesh mesh = pick_mesh(), other = pick(0, 1) == 0 ? mesh : pick_mesh();
  const Dims shape = pick_shape();
  const LayoutOptions no_sum{.partial = false};
  const Exchange exchange(pick_layout(mesh, shape, no_sum), pick_layout(other, shape, no_sum), shape);
  RC_LOG() << fmt::format("{} {} {}: {} to {}\n", mesh, other, shape, exchange.from(), exchange.to());
  for (const int rank : exchange.to().mesh().ranks()) {
    const auto had = exchange.from().box(shape, rank), wanted = exchange.to().box(shape, rank);
    int64_t stayed = 0;
    for (const Overlap& o : exchange.receives(rank)) stayed += o.rank == rank ? o.box.elements() : 0;
    RC_ASSERT(stayed == (had && wanted ? intersect(*had, *wanted).elements() : 0));
  }
}

std::map<int, size_t> loads(const Exchange& exchange) {
  std::map<int, size_t> counts;
  for (const int rank : all_ranks(exchange)) {
    for (const Overlap& o : exchange.sends(rank)) counts[rank] += o.rank != rank;
  }
  return counts;
}

TEST(Overlaps, ReplicasShareTheLoad) {
  // 4 replicas of each piece; the piece of tp = k is needed by the row dp = k alone.
  const Mesh mesh({{"dp", 4}, {"tp", 4}});
  const Exchange diagonal(Layout::parse(mesh, "R,S0"), Layout::parse(mesh, "S0,S1"), {16, 16});
  for (const auto& [rank, count] : loads(diagonal)) EXPECT_LE(count, 1u) << rank;
  // A trainer's 8 replicas to a server of 4 other ranks: half of them send once each.
  const Exchange away(Layout(Mesh({{"dp", 8}}), {Replicate()}), Layout(Mesh({{"tp", 4}}, {8, 9, 10, 11}), {Shard(0)}),
                      {8, 8});
  for (const auto& [rank, count] : loads(away)) EXPECT_EQ(count, rank < 4 ? 1u : 0u) << rank;
}

TEST(Overlaps, ReplicasAreTakenFromTheOwnRow) {
  const Mesh mesh({{"dp", 2}, {"tp", 4}});
  for (const char* to : {"R,R", "S1,R"}) {
    const Exchange gather(Layout::parse(mesh, "R,S0"), Layout::parse(mesh, to), {8, 8});
    for (const int rank : mesh.ranks()) {
      for (const Overlap& o : gather.receives(rank)) EXPECT_EQ(o.rank / 4, rank / 4) << to;
    }
  }
}

TEST(Overlaps, WhatBecomesPendingStaysWhereItIs) {
  const Mesh mesh({{"dp", 3}});
  const Exchange shards(Layout(mesh, {Shard(0)}), Layout(mesh, {Partial()}), {6});
  const Exchange replicas(Layout(mesh, {Replicate()}), Layout(mesh, {Partial()}), {6});
  const Exchange one(Layout(mesh, {At(1)}), Layout(mesh, {Partial()}), {6});
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(shards.embeds(rank));
    EXPECT_EQ(shards.receives(rank), (std::vector<Overlap>{{rank, 0, {{2 * rank}, {2}}}}));
    EXPECT_EQ(replicas.embeds(rank), rank != 0);
    EXPECT_EQ(replicas.receives(rank).size(), rank == 0 ? 1u : 0u);
    EXPECT_EQ(one.embeds(rank), rank != 1);
  }
  const Exchange average(Layout(mesh, {Shard(0)}), Layout(mesh, {Partial(ReduceOp::avg)}), {6});
  EXPECT_FALSE(average.embeds(2));
  EXPECT_EQ(average.receives(2).size(), 3u);
}

TEST(Overlaps, WhatStaysPendingStaysApart) {
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  const Exchange exchange(Layout::parse(mesh, "P,S0"), Layout::parse(mesh, "P,S1"), {4, 4});
  EXPECT_EQ(exchange.terms(), 1);
  for (const int rank : mesh.ranks()) {
    for (const Overlap& o : exchange.receives(rank)) EXPECT_EQ(o.rank / 2, rank / 2);
  }
  const Exchange other(Layout::parse(mesh, "P,S0"), Layout::parse(mesh, "P(max),S1"), {4, 4});
  EXPECT_EQ(other.terms(), 2);
  EXPECT_TRUE(other.embeds(3));
}

// Were anything of it listed by rank, this would take memory and minutes for every rank.
TEST(Overlaps, OfAHugeMeshConcernOnlyNeighbours) {
  const Mesh mesh({{"dp", 256}, {"tp", 256}});
  const Dims shape{1 << 20, 1 << 20};
  const Exchange exchange(Layout::parse(mesh, "S0,S1"), Layout::parse(mesh, "S1,S0"), shape);
  const Exchange nested(Layout::parse(mesh, "S0,S0"), Layout::parse(mesh, "S0@tp,dp"), shape);
  for (const int rank : {0, 1, 255, 256, 40000, 65535}) {
    EXPECT_EQ(exchange.receives(rank).size(), 1u);
    EXPECT_EQ(exchange.sends(rank).size(), 1u);
    EXPECT_EQ(nested.receives(rank).size(), 1u);
    EXPECT_EQ(nested.sends(rank).size(), 1u);
  }
}

}  // namespace
}  // namespace tessera::testing_support
