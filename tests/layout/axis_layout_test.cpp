#include "layout/axis_layout.hpp"

#include <map>

#include <tessera/error.hpp>

#include "support/random.hpp"

namespace tessera::testing_support {
namespace {

struct Piece {
  int rank;
  Box box;
};

std::vector<Piece> sources(const AxisLayout& from, const AxisLayout& to, int rank) {
  std::vector<Piece> list;
  for_each_source(from, to, rank, [&](int peer, const Box& box) { list.push_back({peer, box}); });
  return list;
}

std::vector<Piece> destinations(const AxisLayout& from, const AxisLayout& to, int rank) {
  std::vector<Piece> list;
  for_each_destination(from, to, rank, [&](int peer, const Box& box) { list.push_back({peer, box}); });
  return list;
}

AxisPlacement pick_placement(const Cut& c) {
  switch (pick(0, 3)) {
    case 0: {
      // The extent of the dimension is given: cut it at random places.
      const auto dim = static_cast<size_t>(pick(0, static_cast<int64_t>(c.shape.size()) - 1));
      std::vector<int64_t> places = {0, c.shape[dim]};
      for (int r = 1; r < c.ranks; ++r) places.push_back(pick(0, c.shape[dim]));
      std::sort(places.begin(), places.end());
      Sizes sizes;
      for (size_t r = 0; r + 1 < places.size(); ++r) sizes.push_back(places[r + 1] - places[r]);
      return axis_shard(static_cast<int64_t>(dim), sizes);
    }
    case 1: return axis_replicate();
    case 2: return axis_partial();
    default: return axis_at(pick(0, c.ranks - 1));
  }
}

bool inside(const Box& inner, const Box& outer) { return intersect(inner, outer) == inner; }

// How often each element of a box is covered.
std::map<std::vector<int64_t>, int> coverage(const std::vector<Piece>& parts) {
  std::map<std::vector<int64_t>, int> counts;
  for (const Piece& part : parts) {
    Dims index = part.box.offset;
    while (true) {
      ++counts[{index.begin(), index.end()}];
      size_t d = index.size();
      while (d-- > 0 && ++index[d] == part.box.offset[d] + part.box.extent[d]) index[d] = part.box.offset[d];
      if (d == SIZE_MAX) break;
    }
  }
  return counts;
}

RC_GTEST_PROP(Layouts, SourcesAndDestinationsMirrorEachOther, ()) {
  const Cut c = pick_cut();
  const AxisLayout from(c.shape, pick_placement(c), c.ranks), to(c.shape, pick_placement(c), c.ranks);
  std::vector<std::vector<Piece>> given(static_cast<size_t>(c.ranks));
  for (int r = 0; r < c.ranks; ++r) given[static_cast<size_t>(r)] = destinations(from, to, r);
  size_t taken = 0, sent = 0;
  for (const auto& list : given) sent += list.size();
  for (int r = 0; r < c.ranks; ++r) {
    int last = -1;
    for (const Piece& part : sources(from, to, r)) {
      RC_ASSERT(part.rank > last);  // in the order of ranks
      last = part.rank;
      RC_ASSERT(!part.box.empty());
      RC_ASSERT(inside(part.box, to.box(r)) && inside(part.box, from.box(part.rank)));
      const auto& theirs = given[static_cast<size_t>(part.rank)];
      RC_ASSERT(std::count_if(theirs.begin(), theirs.end(),
                              [&](const Piece& o) { return o.rank == r && o.box == part.box; }) == 1);
      ++taken;
    }
  }
  RC_ASSERT(taken == sent);
}

RC_GTEST_PROP(Layouts, SourcesCoverEveryElement, ()) {
  const Cut c = pick_cut();
  const AxisLayout from(c.shape, pick_placement(c), c.ranks), to(c.shape, pick_placement(c), c.ranks);
  for (int r = 0; r < c.ranks; ++r) {
    const auto counts = coverage(sources(from, to, r));
    const int64_t expected = to.holds(r) ? to.box(r).elements() : 0;
    RC_ASSERT(static_cast<int64_t>(counts.size()) == expected);
    for (const auto& entry : counts) RC_ASSERT(entry.second == (from.is_partial() ? c.ranks : 1));
  }
}

RC_GTEST_PROP(Layouts, ChunksAreThoseOfTorch, ()) {
  const int64_t extent = pick(0, 40);
  const int ranks = static_cast<int>(pick(1, 12));
  const Sizes chunks = chunk_sizes(extent, ranks), even = even_sizes(extent, ranks);
  RC_ASSERT(chunks.size() == static_cast<size_t>(ranks) && sum_of(chunks) == extent);
  RC_ASSERT(even.size() == static_cast<size_t>(ranks) && sum_of(even) == extent);
  // torch.chunk: pieces of ceil(extent / ranks) while there is something left.
  const int64_t piece = (extent + ranks - 1) / ranks;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t begin = std::min(extent, r * piece), end = std::min(extent, begin + piece);
    RC_ASSERT(chunks[static_cast<size_t>(r)] == end - begin);
    const int64_t size = even[static_cast<size_t>(r)];
    RC_ASSERT(size == extent / ranks || (size == extent / ranks + 1 && r < extent % ranks));
  }
}

TEST(Layouts, ChunksOfKnownExtents) {
  EXPECT_EQ(chunk_sizes(10, 4), (Sizes{3, 3, 3, 1}));
  EXPECT_EQ(chunk_sizes(5, 4), (Sizes{2, 2, 1, 0}));  // not 2 1 1 1
  EXPECT_EQ(chunk_sizes(2, 4), (Sizes{1, 1, 0, 0}));
  EXPECT_EQ(chunk_sizes(0, 3), (Sizes{0, 0, 0}));
  EXPECT_EQ(chunk_sizes(INT64_MAX, 2), (Sizes{INT64_MAX / 2 + 1, INT64_MAX / 2}));
  EXPECT_EQ(even_sizes(5, 4), (Sizes{2, 1, 1, 1}));
}

TEST(Layouts, ZeroSizesTakeNothingAndGiveNothing) {
  const Dims shape = {5, 2};
  const AxisLayout from(shape, axis_shard(0, Sizes{0, 0, 5, 0}), 4), to(shape, axis_shard(0, Sizes{2, 0, 0, 3}), 4);
  EXPECT_TRUE(sources(from, to, 1).empty());
  EXPECT_TRUE(destinations(from, to, 0).empty());
  const auto parts = sources(from, to, 3);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].rank, 2);
  EXPECT_EQ(parts[0].box, (Box{{2, 0}, {3, 2}}));
  EXPECT_EQ(destinations(from, to, 2).size(), 2u);
}

TEST(Layouts, MoreRanksThanElements) {
  const AxisLayout from({2}, axis_shard(0, chunk_sizes(2, 7)), 7), to({2}, axis_replicate(), 7);
  for (int r = 0; r < 7; ++r) {
    EXPECT_EQ(sources(from, to, r).size(), 2u);
    EXPECT_EQ(destinations(from, to, r).size(), r < 2 ? 7u : 0u);
  }
}

TEST(Layouts, NoDimensionsAtAll) {
  const AxisLayout replica({}, axis_replicate(), 3), term({}, axis_partial(), 3), root({}, axis_at(2), 3);
  EXPECT_EQ(sources(term, replica, 0).size(), 3u);
  EXPECT_EQ(sources(term, root, 2).size(), 3u);
  EXPECT_TRUE(sources(term, root, 0).empty());
  EXPECT_EQ(destinations(root, replica, 2).size(), 3u);
  EXPECT_TRUE(destinations(root, replica, 1).empty());
  EXPECT_EQ(sources(replica, root, 2).size(), 1u);
  EXPECT_EQ(sources(replica, root, 2)[0].rank, 2) << "of a replica everybody takes its own";
}

TEST(Layouts, TotalsPastTheRangeAreErrors) {
  EXPECT_EQ(total(Sizes{}), 0);
  EXPECT_EQ(total(Sizes{INT64_MAX, 0}), INT64_MAX);
  EXPECT_THROW(total(Sizes{INT64_MAX, 1}), ShapeError);
}

}  // namespace
}  // namespace tessera::testing_support
