// The cheapest way by brute force, which shares no code with the planner: all layouts, all steps between any two of them by
// the rules of plan.hpp, priced from the boxes of every rank.
#pragma once

#include <cmath>
#include <map>
#include <set>

#include <tessera/error.hpp>

#include "plan/simulate.hpp"

namespace tessera::testing_support {
namespace {  // of the one test that includes it

using Kind = Placement::Kind;
constexpr double kNever = std::numeric_limits<double>::infinity();

struct World {
  Layout from, to;
  Dims shape;
  DType dtype;
  Topology topology;

  const Mesh& mesh() const { return from.mesh(); }
  double bytes(double elements) const { return elements * static_cast<double>(size_bytes(dtype)); }
  double held(const Layout& layout, int rank) const {
    const auto box = layout.box(shape, rank);
    return box ? static_cast<double>(box->elements()) : 0;
  }
};

std::vector<size_t> list_of(const Layout& layout, size_t dim) {
  for (const auto& cut : layout.cuts()) {
    if (cut.dim == static_cast<int64_t>(dim)) return cut.axes;
  }
  return {};
}
Sizes sizes_of(const Layout& layout, size_t dim) {
  for (const auto& cut : layout.cuts()) {
    if (cut.dim == static_cast<int64_t>(dim)) return cut.sizes;
  }
  return {};
}

// Every layout that may stand in between.
std::vector<Layout> all_layouts(const World& w) {
  std::vector<Layout> list;
  std::vector<Placement> placements(w.mesh().ndim());
  const auto add = [&] {
    // Every order of the axes: all permutations of all cutting axes, each result once.
    std::vector<std::string> order;
    for (size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].kind == Kind::shard) order.push_back(w.mesh().axes()[a].name);
    }
    std::sort(order.begin(), order.end());
    do {
      try {
        const Layout layout = Layout(w.mesh(), placements, order).resolved(w.shape);
        bool own = true;
        for (const auto& cut : layout.cuts()) {
          const auto d = static_cast<size_t>(cut.dim);
          const auto is_of = [&](const Layout& l) { return sizes_of(l, d) == cut.sizes && list_of(l, d) == cut.axes; };
          own = own && (cut.sizes.empty() || is_of(w.from) || is_of(w.to));
        }
        if (own && std::find(list.begin(), list.end(), layout) == list.end()) list.push_back(layout);
      } catch (const ShapeError&) {  // ragged cuts that do not go together, or two operations
      }
    } while (std::next_permutation(order.begin(), order.end()));
  };
  const auto choose = [&](auto& self, size_t a) -> void {
    if (a == placements.size()) return add();
    std::vector<Placement> options = {Replicate()};
    for (size_t d = 0; d < w.shape.size(); ++d) options.push_back(Shard(static_cast<int64_t>(d)));
    for (const Layout* end : {&w.from, &w.to}) {
      const Placement& p = end->placements()[a];
      if (std::find(options.begin(), options.end(), p) == options.end()) options.push_back(p);
    }
    for (const Placement& p : options) {
      placements[a] = p;
      self(self, a + 1);
    }
  };
  choose(choose, 0);
  return list;
}

// Whether `shorter` is `longer` without axes of the set at its end; a ragged cut goes whole.
bool drops_tail(const Layout& longer, const Layout& shorter, size_t d, const std::set<size_t>& axes) {
  const auto x = list_of(longer, d), y = list_of(shorter, d);
  if (x == y) return sizes_of(longer, d) == sizes_of(shorter, d);
  if (y.size() > x.size() || !std::equal(y.begin(), y.end(), x.begin())) return false;
  if (!sizes_of(longer, d).empty() ? !y.empty() : !sizes_of(shorter, d).empty()) return false;
  return std::all_of(x.begin() + static_cast<ptrdiff_t>(y.size()), x.end(), [&](size_t a) { return axes.contains(a); });
}

// Ranks that differ on these axes only.
std::map<std::vector<int64_t>, std::vector<int>> groups(const Mesh& mesh, const std::set<size_t>& axes) {
  std::map<std::vector<int64_t>, std::vector<int>> list;
  for (const int rank : mesh.ranks()) {
    Dims at = *mesh.coordinate(rank);
    for (const size_t a : axes) at[a] = 0;
    list[key_of(at)].push_back(rank);
  }
  return list;
}

std::vector<size_t> fastest_first(const World& w, const std::set<size_t>& axes) {
  std::vector<size_t> order(axes.begin(), axes.end());
  const double whole = w.bytes(static_cast<double>(volume(w.shape)));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Link &x = w.topology.axes[a].link, &y = w.topology.axes[b].link;
    return std::pair(x.transfer(whole), x.latency_us) < std::pair(y.transfer(whole), y.latency_us);
  });
  return order;
}

double rings(const World& w, const std::set<size_t>& axes, double bytes, double times, bool reduces) {
  double us = w.topology.base_us, ranks = 1, left = 1;
  for (const size_t a : axes) ranks *= static_cast<double>(w.mesh().size(a));
  for (const size_t a : fastest_first(w, axes)) {
    const auto n = static_cast<double>(w.mesh().size(a));
    const Link& link = w.topology.axes[a].link;
    const double part = bytes * left * (1 - 1 / n) / (1 - 1 / ranks);
    left /= n;
    us += times * (n - 1) * link.latency_us;
    if (times == 2 && !link.all_reduce.knots.empty()) {
      us += link.all_reduce(part);
      continue;
    }
    us += reduces ? link.of_scatter()(part) + link.reduce(part) : 0;
    if (!reduces || times == 2) us += link.transfer(part);
  }
  return us;
}

// All to all, or the direct exchange: by the boxes of every pair.
double exchange_us(const World& w, const Layout& before, const Layout& after, bool whole_groups,
                   const std::set<size_t>& axes) {
  const Exchange exchange(before, after, w.shape);
  const auto order = fastest_first(w, {[&] {
                                     std::set<size_t> all;
                                     for (size_t a = 0; a < w.mesh().ndim(); ++a) all.insert(a);
                                     return all;
                                   }()});
  const auto way = [&](int rank, int peer) {
    const Dims x = *w.mesh().coordinate(rank), y = *w.mesh().coordinate(peer);
    size_t slowest = 0;
    for (const size_t a : order) slowest = x[a] != y[a] ? a : slowest;
    return slowest;
  };
  double most = 0;
  for (const auto& [place, members] : groups(w.mesh(), axes)) {
    for (const int rank : w.mesh().ranks()) {
      for (const bool receives : {true, false}) {
        double us = 0;
        std::map<size_t, double> bytes;
        std::set<int> peers;
        for (const Overlap& o : receives ? exchange.receives(rank) : exchange.sends(rank)) {
          if (o.rank == rank) continue;
          bytes[way(rank, o.rank)] += w.bytes(static_cast<double>(o.box.elements()));
          peers.insert(o.rank);
        }
        if (whole_groups) {
          if (std::find(members.begin(), members.end(), rank) == members.end()) continue;
          peers = {members.begin(), members.end()};
          peers.erase(rank);
        }
        for (const int peer : peers) us += w.topology.axes[way(rank, peer)].link.latency_us;
        for (const auto& [axis, count] : bytes) {
          const Link& link = w.topology.axes[axis].link;
          us += (exchange.terms() > 1 ? link.of_scatter() : link.of_exchange())(count);
          if (receives && exchange.terms() > 1) us += link.reduce(count);
        }
        most = std::max(most, us);
      }
    }
    if (!whole_groups) break;
  }
  return w.topology.exchange_base_us + most;
}

// The most that a rank of a group, or a root, misses of what all hold together.
double missing(const World& w, const Layout& whole, const Layout& parts, const std::set<size_t>& axes, bool roots) {
  double most = 0;
  for (const auto& [place, members] : groups(w.mesh(), axes)) {
    double all = 0, least = kNever;
    for (const int rank : members) {
      all = std::max(all, w.held(whole, rank));
      if (!roots || whole.holds(*w.mesh().coordinate(rank))) least = std::min(least, w.held(parts, rank));
    }
    if (least != kNever) most = std::max(most, all - least);
  }
  return w.bytes(most);
}

double largest(const World& w, const Layout& layout) {
  double most = 0;
  for (const int rank : w.mesh().ranks()) most = std::max(most, w.held(layout, rank));
  return w.bytes(most);
}

double chain(const World& w, const std::set<size_t>& axes, double bytes, bool reduces) {
  double us = w.topology.base_us;
  for (const size_t a : axes) {
    const Link& link = w.topology.axes[a].link;
    us += static_cast<double>(w.mesh().size(a) - 1) * link.latency_us + link.transfer(bytes) +
          (reduces ? link.reduce(bytes) : 0);
  }
  return us;
}

// float32 is summed last axis first, integers in any order; and those may be reduced and become pending again.
bool any_order(const World& w) { return w.dtype == DType::i32; }
bool order_is_kept(const World& w, const Layout& before, const std::set<size_t>& axes) {
  if (any_order(w)) return true;
  for (const size_t a : before.axes(Kind::partial)) {
    const bool term = w.from.placements()[a].kind == Kind::partial && !(w.to.placements()[a] == w.from.placements()[a]);
    if (term && !axes.contains(a) && a > *axes.begin()) return false;
  }
  return true;
}

// The cost of the one step from a layout to another; infinite where there is none.
double step_us(const World& w, const Layout& x, const Layout& y) {
  std::set<size_t> axes;
  for (size_t a = 0; a < w.mesh().ndim(); ++a) {
    bool moved = !(x.placements()[a] == y.placements()[a]);
    if (x.placements()[a].kind == Kind::shard && !moved) {
      const auto d = static_cast<size_t>(x.placements()[a].dim);
      const auto p = list_of(x, d), q = list_of(y, d);
      const auto i = std::find(p.begin(), p.end(), a) - p.begin(), j = std::find(q.begin(), q.end(), a) - q.begin();
      // An axis has moved where what lies outside of it has.
      moved = i != j || !std::equal(p.begin(), p.begin() + i, q.begin()) || sizes_of(x, d) != sizes_of(y, d);
    }
    if (moved) axes.insert(a);
  }
  if (axes.empty()) return kNever;
  const auto all = [&](const Layout& layout, Kind kind) {
    return std::all_of(axes.begin(), axes.end(), [&](size_t a) { return layout.placements()[a].kind == kind; });
  };
  const auto tails = [&](const Layout& longer, const Layout& shorter) {
    for (size_t d = 0; d < w.shape.size(); ++d) {
      if (!drops_tail(longer, shorter, d, axes)) return false;
    }
    return true;
  };
  const auto only_target = [&](Kind kind) {
    return std::all_of(axes.begin(), axes.end(), [&](size_t a) {
      return w.to.placements()[a].kind == kind && w.to.placements()[a] == y.placements()[a];
    });
  };
  const bool at_source =
      std::all_of(axes.begin(), axes.end(), [&](size_t a) { return x.placements()[a] == w.from.placements()[a]; });
  const bool reducible = all(x, Kind::partial) && at_source && order_is_kept(w, x, axes) &&
                         (any_order(w) || std::none_of(axes.begin(), axes.end(), [&](size_t a) {
                            return w.to.placements()[a] == w.from.placements()[a];
                          }));
  const double written = w.topology.copy(largest(w, y));

  if (all(x, Kind::replicate) && all(y, Kind::shard) && tails(y, x)) return 0;
  if (all(x, Kind::replicate) && all(y, Kind::at) && only_target(Kind::at)) return 0;
  if (all(x, Kind::shard) && all(y, Kind::replicate) && tails(x, y))
    return rings(w, axes, missing(w, y, x, axes, false), 1, false);
  if (all(x, Kind::shard) && all(y, Kind::at) && only_target(Kind::at) && tails(x, y)) {
    return rings(w, axes, missing(w, y, x, axes, true), 1, false);
  }
  if (all(y, Kind::partial) && only_target(Kind::partial) && tails(x, y)) {
    const bool from_terms =
        std::any_of(axes.begin(), axes.end(), [&](size_t a) { return x.placements()[a].kind == Kind::partial; });
    const bool from_target = std::any_of(axes.begin(), axes.end(), [&](size_t a) {
      return x.placements()[a].kind == Kind::at && !(x.placements()[a] == w.from.placements()[a]);
    });
    if (!from_terms && !from_target) return written;
  }
  if (all(x, Kind::at) && at_source && all(y, Kind::replicate)) return chain(w, axes, largest(w, x), false);
  if (all(x, Kind::at) && at_source && all(y, Kind::shard) && tails(y, x))
    return rings(w, axes, missing(w, x, y, axes, true), 1, false);
  if (reducible && all(y, Kind::replicate)) {
    double ranks = 1;
    for (const size_t a : axes) ranks *= static_cast<double>(w.mesh().size(a));
    return rings(w, axes, largest(w, x) * (1 - 1 / ranks), 2, true);
  }
  if (reducible && all(y, Kind::at) && only_target(Kind::at)) return chain(w, axes, largest(w, x), true);
  if (reducible && all(y, Kind::shard) && tails(y, x)) return rings(w, axes, missing(w, x, y, axes, false), 1, true);
  if (all(x, Kind::shard) && all(y, Kind::shard)) {
    std::set<size_t> from_dims, to_dims;
    for (const size_t a : axes) {
      from_dims.insert(static_cast<size_t>(x.placements()[a].dim));
      to_dims.insert(static_cast<size_t>(y.placements()[a].dim));
    }
    if (from_dims.size() != 1 || to_dims.size() != 1) return kNever;
    // Both become the same where the axes are taken out of the end.
    for (size_t d = 0; d < w.shape.size(); ++d) {
      auto p = list_of(x, d), q = list_of(y, d);
      const auto moves = [&](size_t a) { return axes.contains(a); };
      const auto stay_p = std::find_if(p.begin(), p.end(), moves), stay_q = std::find_if(q.begin(), q.end(), moves);
      if (!std::all_of(stay_p, p.end(), moves) || !std::all_of(stay_q, q.end(), moves)) return kNever;
      if (!std::equal(p.begin(), stay_p, q.begin(), stay_q)) return kNever;
      if (stay_p == p.end() && stay_q == q.end()) continue;
      if ((!sizes_of(x, d).empty() && stay_p != p.begin()) || (!sizes_of(y, d).empty() && stay_q != q.begin()))
        return kNever;
    }
    return exchange_us(w, x, y, true, axes);
  }
  return kNever;
}

bool may_be_direct(const World& w, const Layout& x, const Layout& y) {
  std::set<size_t> reduced;
  for (size_t a = 0; a < w.mesh().ndim(); ++a) {
    const Placement &p = x.placements()[a], &q = y.placements()[a];
    const bool term = p.kind == Kind::partial && p == w.from.placements()[a];
    const bool carried = w.from.placements()[a].kind == Kind::partial && w.from.placements()[a] == w.to.placements()[a];
    if (carried && !any_order(w) && p == w.from.placements()[a] && !(p == q)) return false;
    if (term && !(p == q)) reduced.insert(a);
  }
  return reduced.empty() || order_is_kept(w, x, reduced);
}

// A layout that says P where the source's sum is reduced already is none that the planner meets, unless the target says so.
bool pending_makes_sense(const World& w, const Layout& x) {
  for (const size_t a : x.axes(Kind::partial)) {
    if (!(x.placements()[a] == w.from.placements()[a]) && !(x.placements()[a] == w.to.placements()[a])) return false;
  }
  return true;
}

double peak(const World& w, const Layout& x, const Layout& y) {
  double most = 0;
  for (const int rank : w.mesh().ranks()) {
    most = std::max(most, w.held(w.from, rank) + (x == w.from ? 0 : w.held(x, rank)) + w.held(y, rank));
  }
  return w.bytes(most);
}

double brute_force(const World& w, double limit) {
  std::vector<Layout> all = all_layouts(w);
  std::erase_if(all, [&](const Layout& x) { return !pending_makes_sense(w, x); });
  std::vector<double> cost(all.size(), kNever);
  for (size_t i = 0; i < all.size(); ++i) cost[i] = all[i] == w.from ? 0 : kNever;
  std::map<std::pair<size_t, size_t>, double> steps;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      if (i == j || peak(w, all[i], all[j]) > limit) continue;
      double us = step_us(w, all[i], all[j]);
      if ((all[i] == w.from || all[j] == w.to) && may_be_direct(w, all[i], all[j])) {
        us = std::min(us, exchange_us(w, all[i], all[j], false, {}));
      }
      if (us != kNever) steps[{i, j}] = us;
    }
  }
  for (bool better = true; better;) {  // until no sequence of steps, however long, is cheaper
    better = false;
    for (const auto& [ends, us] : steps) {
      if (cost[ends.first] + us < cost[ends.second]) {
        cost[ends.second] = cost[ends.first] + us;
        better = true;
      }
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == w.to) return cost[i];
  }
  return kNever;
}

}  // namespace
}  // namespace tessera::testing_support
