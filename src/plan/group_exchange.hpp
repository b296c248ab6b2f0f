// An all-to-all within groups of ranks: the last axes of one dimension's cut come to cut another, or the same in another
// way.
#pragma once

#include <algorithm>
#include <span>

#include "plan/cut_list.hpp"

namespace tessera {

// Reused from pair to pair for its memory.
class GroupExchange {
 public:
  using Load = std::array<double, kMaxPlanAxes>;  // bytes, by axis of slow_first

  // `slow_first`: the axes that move, the slowest first.
  void set(const CutLists& lists, const std::vector<int64_t>& sizes, int from, size_t tail, int to,
           std::span<const uint8_t> slow_first);

  // Calls fn(load) for what each rank receives and what each sends, in groups that may be the busiest; of equal
  // ranks, for one at least. `same` is what an element of the dimensions stands for, in bytes.
  template <class Fn>
  void for_each_load(CutLists& lists, double same, Fn&& fn) {
    const CutList &from = lists[from_], &to = lists[to_];
    if (from.dim == to.dim) {
      for (const size_t p : lists.distinct(from_, tail_)) along_one(from, to, p, same, fn);
      return;
    }
    const size_t to_tail = to.ragged != 0 ? to.depth() : tail_;
    for (const size_t p : lists.distinct(from_, tail_)) {
      for (const size_t q : lists.distinct(to_, to_tail)) across(from, to, p, q, same, fn);
    }
  }

 private:
  // A pair shares before(sender) × after(receiver).
  template <class Fn>
  void across(const CutList& from, const CutList& to, size_t p, size_t q, double same, Fn&& fn) {
    for (size_t r = 0; r < ranks_; ++r) {
      before_[r] = from.piece(p + r);
      after_[r] = to.piece(q + after_number_[r]);
    }
    if (levels_ == 1) return across_one_axis(same, fn);
    sum_up(before_, before_sums_);
    sum_up(after_, after_sums_);
    const auto weigh = [&](const std::vector<double>& sums, const std::vector<double>& own, size_t r) {
      Load load = {};
      for (size_t i = 0; i < levels_; ++i) load[i] = others(sums, r, i) * own[r] * same;
      fn(load);
    };
    for (size_t r = 0; r < ranks_; ++r) {
      weigh(before_sums_, after_, r);
      weigh(after_sums_, before_, r);
    }
  }

  template <class Fn>
  void across_one_axis(double same, Fn&& fn) {
    double before = 0, after = 0;
    for (size_t r = 0; r < ranks_; ++r) {
      before += before_[r];
      after += after_[r];
    }
    for (size_t r = 0; r < ranks_; ++r) {
      // Neighbours mostly have as much.
      if (r > 0 && before_[r] == before_[r - 1] && after_[r] == after_[r - 1]) continue;
      fn(Load{(before - before_[r]) * after_[r] * same});
      fn(Load{(after - after_[r]) * before_[r] * same});
    }
  }

  // A pair shares what two stretches of the one dimension do.
  template <class Fn>
  void along_one(const CutList& cut, const CutList& again, size_t p, double same, Fn&& fn) {
    sent_.assign(ranks_, {});
    for (size_t r = 0; r < ranks_; ++r) {
      Load load = {};
      const int64_t begin = again.offsets[p + after_number_[r]], end = again.offsets[p + after_number_[r] + 1];
      for (size_t peer = first_behind(cut, p, begin); peer < ranks_ && cut.offsets[p + peer] < end; ++peer) {
        const int64_t shared = std::min(end, cut.offsets[p + peer + 1]) - std::max(begin, cut.offsets[p + peer]);
        if (peer == r || shared <= 0) continue;
        const size_t i = slowest_between(r, peer);
        load[i] += static_cast<double>(shared) * same;
        sent_[peer][i] += static_cast<double>(shared) * same;
      }
      fn(load);
    }
    for (const Load& load : sent_) fn(load);
  }

  size_t first_behind(const CutList& cut, size_t p, int64_t begin) const;
  size_t slowest_between(size_t rank, size_t peer) const;
  void sum_up(const std::vector<double>& values, std::vector<double>& sums) const;
  // Of those that are at the same place on all slower axes than i, and differ on i.
  double others(const std::vector<double>& sums, size_t rank, size_t i) const {
    return sums[key(i, rank)] - sums[key(i + 1, rank)];
  }
  size_t key(size_t i, size_t rank) const { return keys_[i * ranks_ + rank]; }

  int from_ = 0, to_ = 0;
  size_t tail_ = 0, ranks_ = 0, levels_ = 0;
  std::vector<size_t> keys_;          // by level and rank: a number for its place on so many of the slowest axes
  size_t places_ = 0;                 // how many of those there are
  std::vector<size_t> after_number_;  // where a rank's piece stands among its group's
  std::vector<double> before_, after_, before_sums_, after_sums_;
  std::vector<Load> sent_;
};

}  // namespace tessera
