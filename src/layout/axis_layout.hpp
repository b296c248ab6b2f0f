// Which box of a global tensor each rank of one axis holds.
#pragma once

#include <span>
#include <vector>

#include <tessera/dims.hpp>

namespace tessera {

// Where the parts of a dimension that is cut into sizes[r] begin, one for each
// rank, and where the last one ends. Throws ShapeError past 2^63 - 1.
std::vector<int64_t> offsets_of(std::span<const int64_t> sizes);
int64_t total(std::span<const int64_t> sizes);

// The cut that torch.chunk makes: pieces of ceil(extent / ranks), the last ones
// smaller or empty.
Sizes chunk_sizes(int64_t extent, int ranks);
// As equal as can be: the first ones have one more.
Sizes even_sizes(int64_t extent, int ranks);

struct AxisPlacement {
  enum Kind { shard, replicate, partial, at } kind = replicate;
  int64_t dim = 0;               // shard
  std::vector<int64_t> offsets;  // shard
  int64_t index = 0;             // at
};
AxisPlacement axis_shard(int64_t dim,
                         std::span<const int64_t> sizes);  // sizes[r] elements of dim
AxisPlacement axis_replicate();                            // the whole, everywhere
AxisPlacement axis_partial();                              // a term of a pending reduction, everywhere
AxisPlacement axis_at(int64_t index);                      // the whole at one rank, nothing elsewhere

// A global shape and where its parts are. The sizes of a shard add up to the
// extent of its dimension (unchecked).
class AxisLayout {
 public:
  AxisLayout() = default;
  AxisLayout(const Dims& shape, AxisPlacement placement, int ranks)
      : shape_(shape), placement_(std::move(placement)), ranks_(ranks) {}

  const Dims& shape() const { return shape_; }
  int ranks() const { return ranks_; }
  bool is_partial() const { return placement_.kind == AxisPlacement::partial; }
  bool is_replicated() const { return placement_.kind == AxisPlacement::replicate; }
  // Whether the placement gives the rank a part at all (which may be empty);
  // false beside an At.
  bool holds(int rank) const { return placement_.kind != AxisPlacement::at || placement_.index == rank; }
  // The part of a rank that holds one.
  Box box(int rank) const;

  // Those whose parts may meet the box: ranks first to last - 1.
  struct Ranks {
    int first, last;
  };
  Ranks holders(const Box& box) const;

 private:
  Dims shape_;
  AxisPlacement placement_;
  int ranks_ = 1;
};

// A move from one layout to another, as one rank sees it: what it gets from
// whom, and what it gives to whom, in the order of ranks. They mirror each
// other. fn(peer, box): the box is in global coordinates and not empty. Of a
// replica everybody takes its own; of a pending reduction everybody's term.
template <class Fn>
void for_each_overlap(const Box& own, const AxisLayout& theirs, AxisLayout::Ranks peers, Fn&& fn) {
  for (int peer = peers.first; peer < peers.last; ++peer) {
    const Box box = intersect(own, theirs.box(peer));
    if (!box.empty()) fn(peer, box);
  }
}

template <class Fn>
void for_each_source(const AxisLayout& from, const AxisLayout& to, int rank, Fn&& fn) {
  if (!to.holds(rank)) return;
  const Box own = to.box(rank);
  for_each_overlap(own, from, from.is_replicated() ? AxisLayout::Ranks{rank, rank + 1} : from.holders(own), fn);
}

template <class Fn>
void for_each_destination(const AxisLayout& from, const AxisLayout& to, int rank, Fn&& fn) {
  if (!from.holds(rank) || (from.is_replicated() && !to.holds(rank))) return;
  const Box own = from.box(rank);
  for_each_overlap(own, to, from.is_replicated() ? AxisLayout::Ranks{rank, rank + 1} : to.holders(own), fn);
}

}  // namespace tessera
