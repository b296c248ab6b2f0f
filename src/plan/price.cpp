// What the steps of a Graph cost.
#include <algorithm>

#include "plan/graph.hpp"

namespace tessera {

// Rings along one axis after the other, the fastest with the most bytes: of an all-gather the last, of a reduce-scatter
// the first. `bytes` is what the busiest rank receives of all of them.
double Graph::rings_us(uint32_t axes, double bytes, double times, bool reduces) const {
  double ranks = 1;
  for (const uint8_t a : by_speed_) ranks *= has(axes, a) ? static_cast<double>(sizes_[a]) : 1;
  double us = base_us_, left = 1;
  for (const uint8_t a : by_speed_) {
    if (!has(axes, a)) continue;
    const auto n = static_cast<double>(sizes_[a]);
    const double part = bytes * (left * (n - 1) / n / ((ranks - 1) / ranks));
    us += times * ((n - 1) * links_[a].latency_us + links_[a].transfer(part));
    if (reduces) us += links_[a].reduce(part);
    left /= n;
  }
  return us;
}

// All bytes go through every rank of a chain along each axis.
double Graph::chain_us(uint32_t axes, double bytes, bool reduces) const {
  double us = base_us_;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    if (!has(axes, a)) continue;
    us += static_cast<double>(sizes_[a] - 1) * links_[a].latency_us + links_[a].transfer(bytes);
    if (reduces) us += links_[a].reduce(bytes);
  }
  return us;
}

double Graph::copy_us(const Node& after) const {
  return copy_.knots.empty() ? 0 : copy_(largest_box(after) * element_bytes_);
}

// The most that a rank of a group misses of what the group has together.
double Graph::group_bytes(const Node& whole, const Node& parts) {
  double same = 1;
  std::vector<const std::vector<CutList::Group>*> changed;
  for (size_t d = 0; d < shape_.size(); ++d) {
    const size_t tail = lists_[parts.list[d]].depth() - lists_[whole.list[d]].depth();
    if (tail == 0) same *= lists_[parts.list[d]].largest;
    else changed.push_back(&lists_.groups(parts.list[d], tail));
  }
  double most = 0;
  const auto combine = [&](auto& self, size_t i, double all, double least) -> void {
    if (i == changed.size()) {
      most = std::max(most, all - least);
      return;
    }
    for (const CutList::Group& group : *changed[i]) self(self, i + 1, all * group.whole, least * group.least);
  };
  combine(combine, 0, 1, 1);
  return most * same * element_bytes_;
}

// The most that a root misses of what its group has together.
double Graph::root_bytes(const Node& whole, const Node& parts) {
  std::vector<std::vector<CutList::Group>> changed;
  double same = 1;
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList& list = lists_[parts.list[d]];
    const size_t tail = list.depth() - lists_[whole.list[d]].depth();
    if (tail == 0) {
      same *= list.largest;
      continue;
    }
    size_t root = 0;
    for (size_t i = list.depth() - tail; i < list.depth(); ++i) {
      const uint8_t a = list.axes[i];
      const Placement& at = whole.code[a] == Code::at_target ? target_at_[a] : source_at_[a];
      root = root * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(at.index);
    }
    const size_t w = lists_.width(parts.list[d], tail);
    changed.emplace_back();
    for (size_t p = 0; p < list.pieces(); p += w) {
      changed.back().push_back({static_cast<double>(list.offsets[p + w] - list.offsets[p]), list.piece(p + root)});
    }
  }
  double most = 0;
  const auto combine = [&](auto& self, size_t i, double all, double own) -> void {
    if (i == changed.size()) {
      most = std::max(most, all - own);
      return;
    }
    for (const CutList::Group& group : changed[i]) self(self, i + 1, all * group.whole, own * group.least);
  };
  combine(combine, 0, 1, 1);
  return most * same * element_bytes_;
}

// An all-to-all within groups: what dimension a's last axes cut, b's do. Every rank has a latency for each other rank of
// its group at the slowest axis on which they differ, and the bytes of the busiest by axis.
Move Graph::exchange_move(const Node& before, const Node& after, size_t a, size_t tail, size_t b) {
  const int from = before.list[a], to = after.list[b];
  // The group's ranks, by their coordinates on the axes that move, in the order of the source's list.
  const size_t ranks = lists_.width(from, tail);
  std::vector<uint8_t> moved(lists_[from].axes.end() - static_cast<ptrdiff_t>(tail), lists_[from].axes.end());
  std::vector<uint8_t> slow_first = moved;
  std::sort(slow_first.begin(), slow_first.end(),
            [&](uint8_t x, uint8_t y) { return slowness_[mesh_axes_[x]] > slowness_[mesh_axes_[y]]; });
  uint32_t axes = 0;
  for (const uint8_t axis : moved) axes |= 1u << axis;
  const size_t to_tail = lists_[to].ragged != 0 ? lists_[to].depth() : tail;

  const auto coordinate = [&](size_t rank, uint8_t axis) {
    for (size_t i = moved.size(); i-- > 0;) {
      const auto n = static_cast<size_t>(sizes_[moved[i]]);
      if (moved[i] == axis) return rank % n;
      rank /= n;
    }
    return size_t{0};
  };
  std::vector<size_t> piece_after(ranks);  // where a rank's piece stands among its group's
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t i = lists_[to].depth() - to_tail; i < lists_[to].depth(); ++i) {
      const uint8_t axis = lists_[to].axes[i];
      piece_after[r] = piece_after[r] * static_cast<size_t>(sizes_[axis]) + coordinate(r, axis);
    }
  }
  const auto slowest_between = [&](size_t r, size_t peer) {
    for (size_t i = 0; i < slow_first.size(); ++i) {
      if (coordinate(r, slow_first[i]) != coordinate(peer, slow_first[i])) return i;
    }
    return slow_first.size();
  };

  double same = element_bytes_;
  for (size_t d = 0; d < shape_.size(); ++d) same *= d == a || d == b ? 1 : lists_[before.list[d]].largest;
  double latency = 0;
  for (size_t r = 1; r < ranks; ++r) latency += links_[slow_first[slowest_between(0, r)]].latency_us;

  const CutList &cut = lists_[from], &again = lists_[to];
  if (a != b && cut.even && again.even) {  // all pairs share the same
    const double pair = cut.piece(0) * again.piece(0) * same;
    double us = exchange_base_us_ + latency, left = static_cast<double>(ranks);
    for (const uint8_t axis : slow_first) {
      const auto n = static_cast<double>(sizes_[axis]);
      us += links_[axis].transfer(pair * (left - left / n));
      left /= n;
    }
    return {StepKind::all_to_all, axes, us, pair * static_cast<double>(ranks - 1)};
  }
  double most_us = 0, most_bytes = 0;
  std::vector<double> received(slow_first.size()), sent(slow_first.size());
  const auto weigh = [&](const std::vector<double>& bytes) {
    double us = 0, all = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      us += links_[slow_first[i]].transfer(bytes[i]);
      all += bytes[i];
    }
    most_us = std::max(most_us, us);
    most_bytes = std::max(most_bytes, all);
  };
  // A pair shares before(sender) × after(receiver), or what the two stretches of the one dimension share.
  const auto group = [&](size_t p, size_t q) {
    const auto shared = [&](size_t sender, size_t receiver) {
      const size_t x = p + sender, y = q + piece_after[receiver];
      if (a != b) return cut.piece(x) * again.piece(y) * same;
      const int64_t begin = std::max(cut.offsets[x], again.offsets[y]);
      const int64_t end = std::min(cut.offsets[x + 1], again.offsets[y + 1]);
      return static_cast<double>(std::max<int64_t>(end - begin, 0)) * same;
    };
    for (size_t r = 0; r < ranks; ++r) {
      std::fill(received.begin(), received.end(), 0);
      std::fill(sent.begin(), sent.end(), 0);
      for (size_t peer = 0; peer < ranks; ++peer) {
        if (peer == r) continue;
        const size_t i = slowest_between(r, peer);
        received[i] += shared(peer, r);
        sent[i] += shared(r, peer);
      }
      weigh(received);
      weigh(sent);
    }
  };
  if (a == b) {
    for (const size_t p : lists_.distinct(from, tail)) group(p, p);
  } else {
    for (const size_t p : lists_.distinct(from, tail)) {
      for (const size_t q : lists_.distinct(to, to_tail)) group(p, q);
    }
  }
  return {StepKind::all_to_all, axes, exchange_base_us_ + latency + most_us, most_bytes};
}

}  // namespace tessera
