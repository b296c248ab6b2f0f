#include "plan/group_exchange.hpp"

#include <algorithm>

namespace tessera {

void GroupExchange::set(const CutLists& lists, const std::vector<int64_t>& sizes, int from, size_t tail, int to,
                        std::span<const uint8_t> slow_first) {
  from_ = from;
  to_ = to;
  tail_ = tail;
  ranks_ = lists.width(from, tail);
  levels_ = slow_first.size();
  // Ranks of a group are numbered as their pieces are before, and those of the first group stand for all.
  const CutList &cut = lists[from], &again = lists[to];
  const auto coordinates = [&](uint8_t axis) {
    const auto at = std::find(cut.axes.begin(), cut.axes.end(), axis) - cut.axes.begin();
    return [first = cut.places.data() + at, depth = cut.depth()](size_t rank) {
      return static_cast<size_t>(first[rank * depth]);
    };
  };
  keys_.assign((levels_ + 1) * ranks_, 0);
  size_t begin = 0, places = 1;
  for (size_t i = 0; i < levels_; ++i) {
    const auto n = static_cast<size_t>(sizes[slow_first[i]]);
    const size_t next = begin + places;
    const auto coordinate = coordinates(slow_first[i]);
    for (size_t r = 0; r < ranks_; ++r) {
      keys_[(i + 1) * ranks_ + r] = next + (key(i, r) - begin) * n + coordinate(r);
    }
    begin = next;
    places *= n;
  }
  places_ = begin + places;
  after_number_.assign(ranks_, 0);
  for (size_t i = again.depth() - levels_; i < again.depth(); ++i) {
    const auto n = static_cast<size_t>(sizes[again.axes[i]]);
    const auto coordinate = coordinates(again.axes[i]);
    for (size_t r = 0; r < ranks_; ++r) after_number_[r] = after_number_[r] * n + coordinate(r);
  }
  before_.resize(ranks_);
  after_.resize(ranks_);
}

size_t GroupExchange::first_behind(const CutList& cut, size_t p, int64_t begin) const {
  const auto ends = cut.offsets.begin() + static_cast<ptrdiff_t>(p) + 1;
  return static_cast<size_t>(std::upper_bound(ends, ends + static_cast<ptrdiff_t>(ranks_), begin) - ends);
}

size_t GroupExchange::slowest_between(size_t rank, size_t peer) const {
  size_t i = 0;
  while (key(i + 1, rank) == key(i + 1, peer)) ++i;
  return i;
}

void GroupExchange::sum_up(const std::vector<double>& values, std::vector<double>& sums) const {
  sums.assign(places_, 0);
  for (size_t i = 0; i <= levels_; ++i) {
    for (size_t r = 0; r < ranks_; ++r) sums[key(i, r)] += values[r];
  }
}

}  // namespace tessera
