// An all-to-all within groups of ranks: the last axes of one dimension's cut come to cut another, or the same in another
// way.
#pragma once

#include "plan/cut_list.hpp"

namespace tessera {

class GroupExchange {
 public:
  // `slow_first`: the axes that move, the slowest first.
  GroupExchange(CutLists& lists, const std::vector<int64_t>& sizes, int from, size_t tail, int to,
                const std::vector<uint8_t>& slow_first);

  // Calls fn(bytes by axis) for what each rank receives and what each sends, in groups that may be the busiest; `same` is
  // what an element of the dimensions stands for, in bytes.
  template <class Fn>
  void for_each_load(double same, Fn&& fn) {
    const size_t to_tail = lists_[to_].ragged != 0 ? lists_[to_].depth() : tail_;
    if (lists_[from_].dim == lists_[to_].dim) {
      for (const size_t p : lists_.distinct(from_, tail_)) along_one(p, same, fn);
      return;
    }
    for (const size_t p : lists_.distinct(from_, tail_)) {
      for (const size_t q : lists_.distinct(to_, to_tail)) across(p, q, same, fn);
    }
  }

 private:
  // A pair shares before(sender) × after(receiver).
  template <class Fn>
  void across(size_t p, size_t q, double same, Fn&& fn) {
    for (size_t r = 0; r < ranks_; ++r) {
      before_[r] = lists_[from_].piece(p + r);
      after_[r] = lists_[to_].piece(q + after_number_[r]);
    }
    sum_up(before_, before_sums_);
    sum_up(after_, after_sums_);
    std::vector<double>& load = load_;
    for (size_t r = 0; r < ranks_; ++r) {
      for (size_t i = 0; i < levels(); ++i) load[i] = others(before_sums_, r, i) * after_[r] * same;
      fn(load);
      for (size_t i = 0; i < levels(); ++i) load[i] = others(after_sums_, r, i) * before_[r] * same;
      fn(load);
    }
  }

  // A pair shares what two stretches of the one dimension do.
  template <class Fn>
  void along_one(size_t p, double same, Fn&& fn) {
    std::vector<std::vector<double>> sent(ranks_, std::vector<double>(levels()));
    const CutList &cut = lists_[from_], &again = lists_[to_];
    for (size_t r = 0; r < ranks_; ++r) {
      std::fill(load_.begin(), load_.end(), 0);
      const int64_t begin = again.offsets[p + after_number_[r]], end = again.offsets[p + after_number_[r] + 1];
      for (size_t peer = first_behind(cut, p, begin); peer < ranks_ && cut.offsets[p + peer] < end; ++peer) {
        const int64_t shared = std::min(end, cut.offsets[p + peer + 1]) - std::max(begin, cut.offsets[p + peer]);
        if (peer == r || shared <= 0) continue;
        const size_t i = slowest_between(r, peer);
        load_[i] += static_cast<double>(shared) * same;
        sent[peer][i] += static_cast<double>(shared) * same;
      }
      fn(load_);
    }
    for (const auto& load : sent) fn(load);
  }

  size_t levels() const { return keys_.size() - 1; }
  size_t first_behind(const CutList& cut, size_t p, int64_t begin) const;
  size_t slowest_between(size_t rank, size_t peer) const;
  void sum_up(const std::vector<double>& values, std::vector<std::vector<double>>& sums) const;
  // Of those that are at the same place on all slower axes than i, and differ on i.
  double others(const std::vector<std::vector<double>>& sums, size_t rank, size_t i) const {
    return sums[i][keys_[i][rank]] - sums[i + 1][keys_[i + 1][rank]];
  }

  CutLists& lists_;
  int from_, to_;
  size_t tail_, ranks_;
  std::vector<double> sizes_;              // of slow_first
  std::vector<std::vector<size_t>> keys_;  // [i][rank]: its place on the i slowest axes
  std::vector<size_t> after_number_;       // where a rank's piece stands among its group's
  std::vector<double> before_, after_, load_;
  std::vector<std::vector<double>> before_sums_, after_sums_;
};

}  // namespace tessera
