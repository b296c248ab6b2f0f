// What the rest of a way costs at least, and what an exchange does, before either is priced.
#include <algorithm>

#include "plan/search.hpp"

namespace tessera {
namespace {

Interval piece_of(Graph& graph, const Node& node, size_t d, const Dims& coordinate) {
  const CutList& list = graph.lists()[node.list[d]];
  size_t number = 0;
  for (const uint8_t a : list.axes) {
    const size_t axis = graph.mesh_axis(a);
    number = number * static_cast<size_t>(graph.size(a)) + static_cast<size_t>(coordinate[axis]);
  }
  return {list.offsets[number], list.offsets[number + 1]};
}

double shared_by(const Interval& p, const Interval& q) {
  return static_cast<double>(std::max<int64_t>(std::min(p.end, q.end) - std::max(p.begin, q.begin), 0));
}

bool has_at(const Graph& graph, const Node& node) {
  for (size_t a = 0; a < graph.axes(); ++a) {
    if (node.code[a] == Code::at_source || node.code[a] == Code::at_target) return true;
  }
  return false;
}

}  // namespace

void Search::find_places() {
  Graph& end = graph(one_mesh_ ? 0 : 1);
  for (Place& place : places_) {
    const int rank = end.mesh().rank_at(place.at);
    place.own = {one_.mesh().coordinate(rank), end.mesh().coordinate(rank)};
    place.whole = end.box_at(end.target(), place.at);
    for (size_t d = 0; d < shape_.size(); ++d) place.wanted[d] = piece_of(end, end.target(), d, place.at);
  }
}

// What the ranks that differ from a place on the `near` axes only miss together of what they then have together: of the
// place's part of the target, or of all their parts.
double Search::missing_near(const Visit& visit, const Place& place, uint32_t near, bool of_all) {
  const Node& end = visits_[static_cast<size_t>(target_)].node;
  const auto is_near = [&](size_t a) { return has(near, a); };
  double held = 1, wanted = 1;
  for (size_t a = 0; a < one_.axes(); ++a) {
    const Code code = visit.node.code[a];
    if (is_near(a) || code == Code::replica || code == Code::cut) continue;
    const bool at = code == Code::at_source || code == Code::at_target;
    if (at ? one_.at_index(visit.node, a) != place.at[one_.mesh_axis(a)] : code != end.code[a]) held = 0;
  }
  // Calls fn(piece) for what they have of one dimension.
  const auto for_each_piece = [&](const CutList& list, auto&& fn) {
    const auto visit_axis = [&](auto& self, size_t i, size_t number) -> void {
      if (i == list.depth()) return fn(Interval{list.offsets[number], list.offsets[number + 1]});
      const size_t axis = one_.mesh_axis(list.axes[i]);
      const auto n = static_cast<size_t>(one_.mesh().size(axis)), own = static_cast<size_t>(place.at[axis]);
      const bool all = is_near(list.axes[i]);
      for (size_t k = all ? 0 : own; k < (all ? n : own + 1); ++k) self(self, i + 1, number * n + k);
    };
    visit_axis(visit_axis, 0, 0);
  };
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList &before = one_.lists()[visit.node.list[d]], &after = one_.lists()[end.list[d]];
    const bool have_all = std::ranges::all_of(before.axes, is_near);
    const bool want_all = of_all && std::ranges::all_of(after.axes, is_near);
    double need = 0, have = 0;
    const auto add = [&](const Interval& part) {
      need += static_cast<double>(part.length());
      if (have_all) have += static_cast<double>(part.length());
      else for_each_piece(before, [&](const Interval& piece) { have += shared_by(piece, part); });
    };
    if (want_all) add({0, shape_[d]});
    else if (of_all) for_each_piece(after, add);
    else add(place.wanted[d]);
    wanted *= need;
    held *= have;
  }
  return wanted - held;
}

// What a visit's layout has, at a coordinate of its mesh, of a place's part of the target.
double Search::held_at(const Visit& visit, const Dims& coordinate, const Place& place) {
  Graph& here = graph(visit.graph);
  for (size_t a = 0; a < here.axes(); ++a) {
    const Code code = visit.node.code[a];
    const bool at = code == Code::at_source || code == Code::at_target;
    if (at && here.at_index(visit.node, a) != coordinate[here.mesh_axis(a)]) return 0;
  }
  double elements = 1;
  for (size_t d = 0; d < shape_.size(); ++d) {
    elements *= shared_by(piece_of(here, visit.node, d, coordinate), place.wanted[d]);
  }
  return elements;
}

// Whatever comes, a rank must still receive what it misses, and of a sum that is not done all of it.
double Search::ahead_of(int number) {
  const Visit& visit = visits_[static_cast<size_t>(number)];
  const Visit& target = visits_[static_cast<size_t>(target_)];
  Graph &here = graph(visit.graph), &end = graph(target.graph);
  if (mode_ == Mode::peak || !with_bounds_ || end.may_reenter()) return 0;
  const uint32_t embedded = axes_with(target.node, end.axes(), Code::embedded);
  if (embedded != 0 && !one_mesh_) return 0;
  const uint32_t terms = axes_with(visit.node, here.axes(), Code::term);
  const bool unfinished = terms != (one_mesh_ ? axes_with(target.node, end.axes(), Code::term) : 0);
  double us = 0;
  for (const Place& place : places_) {
    const auto& own = place.own[static_cast<size_t>(visit.graph)];
    const double missing = embedded != 0 ? 0 : place.whole - (own && !unfinished ? held_at(visit, *own, place) : 0);
    us = std::max(us, missing * any_slope_);
    if (one_mesh_) us = std::max(us, from_afar(visit, place, embedded, missing));
  }
  if (us <= 0) return 0;
  return (std::min(topology_.base_us, topology_.exchange_base_us) + us * one_.element_bytes()) * (1 - 1e-12);
}

// What a rank's neighbours on fast axes do not have either must come over a slow axis to one of them; they may share that. So
// must all that they miss together, and the busiest of them has no less than its share of it. Of what is entered as a term
// any rank along that axis may hold any part: those are neighbours too. Of n ranks along slow axes the ring of a step gives
// ragged parts (n - 1) / n of what the largest needs, if not more: that is what `uneven` allows for. At the first place it
// need not: of each cut by torch.chunk the first piece is the largest, so its neighbours never hold less than their share.
double Search::from_afar(const Visit& visit, const Place& place, uint32_t embedded, double missing) {
  const bool is_largest = chunked_ && &place == &places_[0];
  double us = 0, slope = embedded != 0 ? 0 : any_slope_;
  uint32_t near = embedded;
  for (size_t fast = 0; fast < place_in_speed_.size(); ++fast) {
    if (fast > 0) near |= 1u << one_.by_speed()[fast - 1];
    double neighbours = 1, least = kNever, fewest = kNever;
    for (size_t a = 0; a < one_.axes(); ++a) {
      const auto n = static_cast<double>(one_.size(a));
      if (has(near, a)) {
        neighbours *= n;
        continue;
      }
      least = std::min(least, slopes_[a]);
      fewest = std::min(fewest, n);
    }
    if (least <= slope || least == kNever) continue;
    slope = least;
    const double uneven = is_even_ ? 1 : 1 - 1 / fewest;
    if (embedded == 0) {
      const double share = missing_near(visit, place, near, false) / neighbours * (is_largest ? 1 : uneven);
      us = std::max(us, missing * any_slope_ + share * (slope - any_slope_));
    }
    us = std::max(us, missing_near(visit, place, near, true) / neighbours * uneven * slope);
  }
  return us;
}

// What the box of one place shares with that of another.
double Search::shared(int a, const Dims& at, int b, const Dims& other_at) {
  const Visit &x = visits_[static_cast<size_t>(a)], &y = visits_[static_cast<size_t>(b)];
  if (graph(x.graph).box_at(x.node, at) == 0 || graph(y.graph).box_at(y.node, other_at) == 0) return 0;
  double elements = 1;
  for (size_t d = 0; d < shape_.size(); ++d) {
    const Interval p = piece_of(graph(x.graph), x.node, d, at), q = piece_of(graph(y.graph), y.node, d, other_at);
    elements *= shared_by(p, q);
  }
  return elements;
}

// What the first place that has a part of it then misses before, where each rank holds one of so many terms.
double Search::missing_at_first(int from, int to, double terms) {
  const Visit &before = visits_[static_cast<size_t>(from)], &after = visits_[static_cast<size_t>(to)];
  Graph &start = graph(before.graph), &end = graph(after.graph);
  if (within(from, to) && !has_at(start, before.node) && !has_at(end, after.node)) {  // the first piece of each cut
    double whole = 1, own = 1;
    for (size_t d = 0; d < shape_.size(); ++d) {
      const double held = start.lists()[before.node.list[d]].piece(0),
                   needed = end.lists()[after.node.list[d]].piece(0);
      whole *= needed;
      own *= std::min(held, needed);
    }
    return whole * terms - own;
  }
  Dims place = Dims::filled(end.mesh().ndim(), 0);
  for (size_t a = 0; a < end.axes(); ++a) {
    const Code code = after.node.code[a];
    const bool at = code == Code::at_source || code == Code::at_target;
    if (at) place[end.mesh_axis(a)] = end.at_index(after.node, a);
  }
  const auto own = start.mesh().coordinate(end.mesh().rank_at(place));
  return end.box_at(after.node, place) * terms - (own ? shared(from, *own, to, place) : 0);
}

// An exchange with that much latency costs no less than what one receiver misses takes on the fastest way.
double Search::bound(int from, int to, double latency_us) {
  if (!with_bounds_) return 0;
  const Visit &before = visits_[static_cast<size_t>(from)], &after = visits_[static_cast<size_t>(to)];
  Graph& end = graph(after.graph);
  if (axes_with(after.node, end.axes(), Code::embedded) != 0 || end.may_reenter()) {
    return topology_.exchange_base_us;  // parts may stay as they are, as terms
  }
  double terms = 1;
  Graph& start = graph(before.graph);
  for (size_t a = 0; a < start.axes(); ++a) {
    const bool kept = within(from, to) && after.node.code[a] == Code::term;
    if (before.node.code[a] == Code::term && !kept) terms *= static_cast<double>(start.mesh().size(start.mesh_axis(a)));
  }
  const double missing = missing_at_first(from, to, terms);
  if (missing <= 0) return topology_.exchange_base_us;
  return topology_.exchange_base_us + latency_us + missing * one_.element_bytes() * least_slope_[way_of(from, to)];
}

}  // namespace tessera
