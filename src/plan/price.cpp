// What the steps of a Graph cost.
#include <algorithm>

#include "plan/graph.hpp"

namespace tessera {

// Rings along one axis after the other, the fastest with the most bytes: of an all-gather the last, of a reduce-scatter
// the first. `bytes` is what the busiest rank receives of all of them.
double Graph::rings_us(uint32_t axes, double bytes, Ring ring) const {
  double ranks = 1;
  for (const uint8_t a : by_speed_) ranks *= has(axes, a) ? static_cast<double>(sizes_[a]) : 1;
  double us = base_us_, left = 1;
  for (const uint8_t a : by_speed_) {
    if (!has(axes, a)) continue;
    const auto n = static_cast<double>(sizes_[a]);
    const double part = bytes * (left * (n - 1) / n / ((ranks - 1) / ranks));
    const Link& link = links_[a];
    const double latency = (n - 1) * link.latency_us;
    left /= n;
    if (ring == Ring::both && !link.all_reduce.knots.empty()) {
      us += 2 * latency + link.all_reduce(part);
      continue;
    }
    if (ring != Ring::scatter) us += latency + link.transfer(part);
    if (ring != Ring::gather) us += latency + link.of_scatter()(part) + link.reduce(part);
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
  std::array<const std::pmr::vector<CutList::Group>*, kMaxDims> changed;
  size_t count = 0;
  for (size_t d = 0; d < shape_.size(); ++d) {
    const size_t tail = lists_[parts.list[d]].depth() - lists_[whole.list[d]].depth();
    if (tail == 0) same *= lists_[parts.list[d]].largest;
    else changed[count++] = &lists_.groups(parts.list[d], tail);
  }
  double most = 0;
  const auto combine = [&](auto& self, size_t i, double all, double least) -> void {
    if (i == count) {
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

// Of every rank, for each other rank of its group at the slowest axis on which they differ.
double Graph::latency_of(const Reshard& move) const {
  double us = 0, left = 1;  // ranks that differ on none of the axes that are slower
  for (const uint8_t a : by_speed_) {
    if (!has(move.axes, a)) continue;
    const double more = left * static_cast<double>(sizes_[a]);
    us += (more - left) * links_[a].latency_us;
    left = more;
  }
  return us;
}

// An all-to-all within groups. Every rank has a latency for each other rank of its group at the slowest axis on which they
// differ, and the bytes of the busiest by axis.
Edge Graph::exchange_move(const Node& before, const Node& after, const Reshard& move) {
  const size_t a = move.from_dim, tail = move.tail, b = move.to_dim;
  const int from = before.list[a], to = after.list[b];
  double same = element_bytes_;
  for (size_t d = 0; d < shape_.size(); ++d) same *= d == a || d == b ? 1 : lists_[before.list[d]].largest;
  Edge& known = exchanges_[{from, to, tail, same}];
  if (known.axes != 0) return known;

  const auto& axes = lists_[from].axes;
  auto& slow_first = slow_first_;
  slow_first.assign(axes.end() - static_cast<ptrdiff_t>(tail), axes.end());
  std::sort(slow_first.begin(), slow_first.end(),
            [&](uint8_t x, uint8_t y) { return slowness_[mesh_axes_[x]] > slowness_[mesh_axes_[y]]; });
  known = {StepKind::all_to_all, move.axes, exchange_base_us_, 0};
  GroupExchange::Load peers = {};  // that differ on an axis, and on none that is slower
  auto left = static_cast<double>(lists_.width(from, tail));
  for (size_t i = 0; i < tail; ++i) {
    const uint8_t axis = slow_first[i];
    const double within = left / static_cast<double>(sizes_[axis]);
    peers[i] = left - within;
    known.us += peers[i] * links_[axis].latency_us;
    left = within;
  }
  double most_us = 0;
  GroupExchange::Load heaviest = {};
  const auto weigh = [&](const GroupExchange::Load& bytes) {
    bool is_more = false;
    for (size_t i = 0; i < tail; ++i) is_more = is_more || bytes[i] > heaviest[i];
    if (!is_more) return;  // curves do not fall
    double us = 0, all = 0;
    for (size_t i = 0; i < tail; ++i) {
      us += links_[slow_first[i]].of_exchange()(bytes[i]);
      all += bytes[i];
    }
    if (us >= most_us) heaviest = bytes;
    most_us = std::max(most_us, us);
    known.bytes = std::max(known.bytes, all);
  };
  if (a != b && lists_[from].even && lists_[to].even) {  // all pairs share the same
    for (double& count : peers) count *= lists_[from].piece(0) * lists_[to].piece(0) * same;
    weigh(peers);
  } else {
    groups_.set(lists_, sizes_, from, tail, to, slow_first);
    groups_.for_each_load(lists_, same, weigh);
  }
  known.us += most_us;
  return known;
}

}  // namespace tessera
