#include "plan/group_exchange.hpp"

#include <algorithm>

namespace tessera {

GroupExchange::GroupExchange(CutLists& lists, const std::vector<int64_t>& sizes, int from, size_t tail, int to,
                             const std::vector<uint8_t>& slow_first)
    : lists_(lists), from_(from), to_(to), tail_(tail), ranks_(lists.width(from, tail)) {
  // Ranks of a group are numbered as their pieces are before.
  const auto& axes = lists[from].axes;
  std::vector<std::vector<size_t>> coordinate(kMaxPlanAxes);
  size_t below = 1;
  for (size_t i = axes.size(); i-- > axes.size() - tail;) {
    const auto n = static_cast<size_t>(sizes[axes[i]]);
    for (size_t r = 0; r < ranks_; ++r) coordinate[axes[i]].push_back(r / below % n);
    below *= n;
  }
  keys_.emplace_back(ranks_, 0);
  for (const uint8_t a : slow_first) {
    const auto n = static_cast<size_t>(sizes[a]);
    sizes_.push_back(static_cast<double>(n));
    keys_.push_back(keys_.back());
    for (size_t r = 0; r < ranks_; ++r) keys_.back()[r] = keys_.back()[r] * n + coordinate[a][r];
  }
  after_number_.resize(ranks_);
  const CutList& again = lists[to];
  for (size_t i = again.depth() - slow_first.size(); i < again.depth(); ++i) {
    const uint8_t a = again.axes[i];
    for (size_t r = 0; r < ranks_; ++r) {
      after_number_[r] = after_number_[r] * static_cast<size_t>(sizes[a]) + coordinate[a][r];
    }
  }
  before_.resize(ranks_);
  after_.resize(ranks_);
  load_.resize(levels());
}

size_t GroupExchange::first_behind(const CutList& cut, size_t p, int64_t begin) const {
  const auto ends = cut.offsets.begin() + static_cast<ptrdiff_t>(p) + 1;
  return static_cast<size_t>(std::upper_bound(ends, ends + static_cast<ptrdiff_t>(ranks_), begin) - ends);
}

size_t GroupExchange::slowest_between(size_t rank, size_t peer) const {
  size_t i = 0;
  while (keys_[i + 1][rank] == keys_[i + 1][peer]) ++i;
  return i;
}

void GroupExchange::sum_up(const std::vector<double>& values, std::vector<std::vector<double>>& sums) const {
  sums.resize(keys_.size());
  double places = 1;
  for (size_t i = 0; i < keys_.size(); ++i) {
    sums[i].assign(static_cast<size_t>(places), 0);
    for (size_t r = 0; r < ranks_; ++r) sums[i][keys_[i][r]] += values[r];
    if (i < sizes_.size()) places *= sizes_[i];
  }
}

}  // namespace tessera
