#include "plan/search.hpp"

#include <algorithm>
#include <cmath>

#include <tessera/overlap.hpp>

#include "collective/moves.hpp"

namespace tessera {
namespace {

// No number of bytes goes faster than at this many µs a byte.
double least_slope(const Curve& curve) {
  double slope = kNever;
  for (const Curve::Knot& knot : curve.knots) slope = std::min(slope, knot.us / knot.bytes);
  const size_t n = curve.knots.size();
  if (n == 0) return 0;
  const Curve::Knot before = n > 1 ? curve.knots[n - 2] : Curve::Knot{};
  return std::min(slope, (curve.knots[n - 1].us - before.us) / (curve.knots[n - 1].bytes - before.bytes));
}

// Whichever step it goes by.
double least_slope(const Link& link) {
  const double half = link.all_reduce.knots.empty() ? kNever : least_slope(link.all_reduce) / 2;
  return std::min({least_slope(link.transfer), least_slope(link.of_exchange()), least_slope(link.of_scatter()), half});
}

// Whether a bound is below a cost by more than rounding.
bool below(double bound, double cost) { return bound < cost - 1e-12 * cost || (cost == kNever && bound < kNever); }

}  // namespace

Search::Search(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
               const PlanOptions& options)
    : from_(from),
      to_(to),
      shape_(shape),
      topology_(topology),
      options_(options),
      one_mesh_(from.mesh() == to.mesh()),
      one_(from.mesh(), &from_, one_mesh_ ? &to_ : nullptr, shape, dtype, topology.links(from.mesh()), topology,
           options.any_order),
      pricer_(one_, topology.exchange_base_us) {
  any_slope_ = kNever;
  for (size_t a = 0; a < one_.axes(); ++a) any_slope_ = std::min(any_slope_, least_slope(one_.link(a)));
  Dims first = Dims::filled(to.mesh().ndim(), 0), last = first;
  for (size_t a = 0; a < to.mesh().ndim(); ++a) {
    const Placement& p = to.placements()[a];
    first[a] = p.kind == Placement::Kind::at ? p.index : 0;
    last[a] = p.kind == Placement::Kind::at ? p.index : to.mesh().size(a) - 1;
  }
  for (const Dims& at : {first, last}) places_.push_back({at, {}, 0, {}});
  const auto take_links = [&](const Graph& graph, size_t way) {
    least_latency_[way] = least_slope_[way] = graph.axes() > 0 ? kNever : 0;
    for (size_t axis = 0; axis < graph.axes(); ++axis) {
      least_latency_[way] = std::min(least_latency_[way], graph.link(axis).latency_us);
      least_slope_[way] = std::min(least_slope_[way], least_slope(graph.link(axis)));
    }
  };
  take_links(one_, 0);
  if (!one_mesh_) {
    const auto ranks = to.mesh().ranks();
    are_disjoint_ = std::none_of(ranks.begin(), ranks.end(), [&](int rank) { return from.mesh().contains(rank); });
    other_.emplace(to.mesh(), nullptr, &to_, shape, dtype, topology.links(to.mesh(), true), topology,
                   options.any_order);
    other_pricer_.emplace(*other_, topology.exchange_base_us);
    take_links(*other_, 1);
    least_latency_[2] = topology.between.latency_us;
    least_slope_[2] = least_slope(topology.between.transfer);
    for (size_t a = 0; a < other_->axes(); ++a) any_slope_ = std::min(any_slope_, least_slope(other_->link(a)));
    any_slope_ = std::min(any_slope_, least_slope_[2]);
    return;
  }
  is_even_ = one_.is_even_handed(one_.source()) && one_.is_even_handed(one_.target());
  place_in_speed_.resize(one_.axes());
  for (size_t i = 0; i < one_.axes(); ++i) place_in_speed_[one_.by_speed()[i]] = i;
  for (size_t a = 0; a < one_.axes(); ++a) slopes_.push_back(least_slope(one_.link(a)));
  for (const int64_t extent : shape) is_even_ = is_even_ && extent % one_.mesh().size() == 0;
  const auto is_chunked = [&](const Layout& layout) {
    for (size_t a = 0; a < one_.axes(); ++a) {
      const Placement& p = layout.placements()[one_.mesh_axis(a)];
      const bool chunks = p.kind == Placement::Kind::shard && p.sizes.empty();
      const bool near = p.kind == Placement::Kind::at && place_in_speed_[a] == 0;  // all its places are neighbours
      if (p.kind != Placement::Kind::replicate && !chunks && !near) return false;
    }
    return true;
  };
  chunked_ = is_chunked(from) && is_chunked(to);
}

int Search::visit_of(int graph, const Node& node) {
  const auto [place, fresh] = numbers_[graph].try_emplace(node.key, static_cast<int>(visits_.size()));
  if (fresh) {
    visits_.emplace_back();
    visits_.back().node = node;
    visits_.back().graph = graph;
    if (target_ >= 0) visits_.back().ahead = ahead_of(place->second);
  }
  return place->second;
}

void Search::run(Mode mode) {
  mode_ = mode;
  visits_.clear();
  visits_.reserve(64);
  for (auto& numbers : numbers_) numbers.clear();
  numbers_[0].reserve(64);
  moves_.clear();
  while (!queue_.empty()) queue_.pop();
  target_ = -1;
  const int source = visit_of(0, one_.source());
  const int target = one_mesh_ ? visit_of(0, one_.target()) : visit_of(1, other_->target());
  find_places();
  target_ = target;
  visits_[static_cast<size_t>(source)].cost = 0;
  queue_.push({0, 0, Item::visit, source});
  queue_.push({mode == Mode::cost && with_bounds_ ? topology_.exchange_base_us : 0, 1, Item::all_out, source});
  while (!queue_.empty()) {
    const Queued next = queue_.top();
    queue_.pop();
    switch (next.item) {
      case Item::visit: {
        Visit& visit = visits_[static_cast<size_t>(next.visit)];
        if (visit.done) break;
        visit.done = true;
        if (next.visit == target) return;
        expand(next.visit);
        break;
      }
      case Item::all_out: queue_exchanges_out(); break;
      case Item::out: bound_closer(next, source, next.visit); break;
      case Item::in: bound_closer(next, next.visit, target); break;
      case Item::close_out: take_exchange(next, source, next.visit); break;
      case Item::close_in: take_exchange(next, next.visit, target); break;
      case Item::move: take_move(moves_[static_cast<size_t>(next.visit)]); break;
    }
  }
}

void Search::expand(int number) {
  const Node node = visits_[static_cast<size_t>(number)].node;
  const int here = visits_[static_cast<size_t>(number)].graph;
  graph(here).for_each_step(
      node, [&](const Node& next, const Edge& edge) { relax(number, visit_of(here, next), edge); },
      [&](const Node& next, const Reshard& reshard) { offer(number, visit_of(here, next), reshard); });
  if (visits_[static_cast<size_t>(number)].parent >= 0) queue_exchange_in(number);
}

// An all-to-all is queued by a bound too, where that would be a better way there, and there can be on the best way: mostly
// there is a cheaper way by the time it is taken, and it need not be priced.
void Search::offer(int parent, int next, const Reshard& reshard) {
  const Visit &before = visits_[static_cast<size_t>(parent)], &after = visits_[static_cast<size_t>(next)];
  if (after.done) return;
  const Move move{parent, next, reshard};
  if (mode_ == Mode::peak) return take_move(move);
  const double cost = before.cost + bound(parent, next, graph(before.graph).latency_of(reshard)) * (1 - 1e-12);
  if (cost > after.cost || (next != target_ && !below(cost + after.ahead, best()))) return;
  queue_.push({cost + after.ahead, before.steps + 1, Item::move, static_cast<int>(moves_.size())});
  moves_.push_back(move);
}

void Search::take_move(const Move& move) {
  const Visit &before = visits_[static_cast<size_t>(move.from)], &after = visits_[static_cast<size_t>(move.to)];
  if (after.done) return;
  relax(move.from, move.to, graph(before.graph).exchange_move(before.node, after.node, move.reshard));
}

void Search::relax(int parent, int next, const Edge& edge) {
  const Visit& before = visits_[static_cast<size_t>(parent)];
  Visit& after = visits_[static_cast<size_t>(next)];
  if (after.done || next == parent) return;
  double cost = before.cost + edge.us;
  if (mode_ == Mode::peak) cost = std::max(before.cost, peak(parent, next, edge));
  const int steps = before.steps + 1;
  if (mode_ == Mode::cost && next != target_ && !below(cost + after.ahead, best())) return;
  if (cost > after.cost || (cost == after.cost && steps >= after.steps)) return;
  if (mode_ == Mode::cost && options_.max_bytes != PlanOptions{}.max_bytes &&
      peak(parent, next, edge) > static_cast<double>(options_.max_bytes)) {
    return;
  }
  after.cost = cost;
  after.steps = steps;
  after.parent = parent;
  after.edge = edge;
  queue_.push({cost + after.ahead, steps, Item::visit, next});
}

bool Search::may_exchange(int from, int to) {
  if (!within(from, to)) return true;  // everything pending is reduced
  const Visit &before = visits_[static_cast<size_t>(from)], &after = visits_[static_cast<size_t>(to)];
  return graph(before.graph).may_exchange(before.node, after.node);
}

// Exchanges are queued by a bound, and priced only when nothing else is cheaper than that.
void Search::queue_exchanges_out() {
  for (int number = 0; number < (one_mesh_ ? 1 : 2); ++number) {
    graph(number).for_each_node([&](const Node& node) { queue_exchange_out(number, node); });
  }
}

void Search::queue_exchange_out(int number, const Node& node) {
  const int next = visit_of(number, node);
  if (next == 0 || visits_[static_cast<size_t>(next)].done || !may_exchange(0, next)) return;
  const double least = mode_ == Mode::cost ? bound(0, next, least_latency_[way_of(0, next)]) : 0;
  const double ahead = visits_[static_cast<size_t>(next)].ahead;
  if (below(least, visits_[static_cast<size_t>(next)].cost) && below(least + ahead, best())) {
    queue_.push({least + ahead, 1, Item::out, next});
  }
}

void Search::queue_exchange_in(int number) {
  const int target = target_;
  const Visit& visit = visits_[static_cast<size_t>(number)];
  if (!may_exchange(number, target)) return;
  const double latency_us = least_latency_[way_of(number, target)];
  const double least =
      visit.cost + (mode_ == Mode::cost ? std::max(bound(number, target, latency_us), visit.ahead) : 0);
  if (below(least, visits_[static_cast<size_t>(target)].cost)) queue_.push({least, visit.steps + 1, Item::in, number});
}

void Search::bound_closer(const Queued& item, int from, int to) {
  if (!below(item.cost, best())) return;
  Queued closer = item;
  closer.item = item.item == Item::out ? Item::close_out : Item::close_in;
  if (mode_ == Mode::cost && with_bounds_) {
    const Visit &before = visits_[static_cast<size_t>(from)], &after = visits_[static_cast<size_t>(to)];
    const bool across = !within(from, to);
    if (!across) pricer(from).set(before.node, after.node);
    const double most_us = std::min(after.cost, best() - after.ahead) - before.cost;
    const double cost = before.cost + (across ? bound_between_meshes(from, to) : pricer(from).bound(most_us));
    if (!below(cost, after.cost)) return;
    closer.cost = std::max(item.cost, cost + after.ahead);
  }
  if (below(closer.cost, best())) queue_.push(closer);
}

void Search::take_exchange(const Queued& item, int from, int to) {
  const Visit& after = visits_[static_cast<size_t>(to)];
  if (after.done) return;
  if (mode_ == Mode::cost && !below(item.cost - after.ahead, after.cost)) return;  // there is as good a way by now
  Edge edge{StepKind::direct, 0, 0, 0};
  if (mode_ == Mode::cost) {
    const double most = std::min(after.cost, best() - after.ahead);
    const PricedExchange priced = price(from, to, most - visits_[static_cast<size_t>(from)].cost);
    if (priced.us == kNever) return;
    edge.us = priced.us;
    edge.bytes = priced.bytes;
  }
  relax(from, to, edge);
}

// Infinite where it costs more than most_us.
PricedExchange Search::price(int from, int to, double most_us) {
  if (!within(from, to)) return price_between_meshes(from, to, most_us);
  pricer(from).set(visits_[static_cast<size_t>(from)].node, visits_[static_cast<size_t>(to)].node);
  return pricer(from).price(most_us);
}

double Search::us_between(const ExchangeBetween::Load& load, bool reduces) const {
  const Link& link = topology_.between;
  const double bytes = load.elements * one_.element_bytes();
  const double us = topology_.exchange_base_us + load.peers * link.latency_us + link.transfer(bytes);
  return reduces ? us + link.reduce(bytes) : us;
}

// No more than the price: what one receiver of each kind takes, had it one piece of what it needs.
double Search::bound_between_meshes(int from, int to) {
  const Layout before = layout_of(from), after = layout_of(to);
  const ExchangeBetween between(before, after, shape_);
  double most = topology_.exchange_base_us;
  for (const auto& load : between.received()) {
    most = std::max(most, us_between(between.least_of(load), between.terms() > 1));
  }
  return most;
}

PricedExchange Search::price_between_meshes(int from, int to, double most_us) {
  using Load = ExchangeBetween::Load;
  const Layout before = layout_of(from), after = layout_of(to);
  const ExchangeBetween between(before, after, shape_);
  const bool reduces = between.terms() > 1;
  PricedExchange most{topology_.exchange_base_us, 0};
  const auto weigh = [&](const Load& load, bool receives) {
    most.us = std::max(most.us, us_between(load, receives && reduces));
    most.bytes = std::max(most.bytes, load.elements * one_.element_bytes());
    return most.us <= most_us;
  };
  if (are_disjoint_) {
    for (const Load& load : between.received()) {
      if (!weigh(load, true)) return {kNever, 0};
    }
    for (const Load& load : between.sent()) {
      if (!weigh(load, false)) return {kNever, 0};
    }
    return most;
  }
  const Exchange exchange(before, after, shape_);
  std::unordered_map<int, Load> senders;
  for (const int rank : to_.mesh().ranks()) {
    Load received;
    for (const Overlap& o : exchange.receives(rank)) {
      if (o.rank == rank) continue;
      for (Load* load : {&received, &senders[o.rank]}) {
        ++load->peers;
        load->elements += static_cast<double>(o.box.elements());
      }
    }
    if (!weigh(received, true)) return {kNever, 0};
  }
  for (const auto& [rank, sent] : senders) {
    if (!weigh(sent, false)) return {kNever, 0};
  }
  return most;
}

Layout Search::layout_of(int visit) {
  const Visit& v = visits_[static_cast<size_t>(visit)];
  return graph(v.graph).layout_of(v.node);
}

// One that is long enough for all of them, or else the longest.
std::optional<size_t> halfway_dim(const std::vector<int64_t>& lengths, int64_t ranks) {
  const auto enough = std::ranges::find_if(lengths, [&](int64_t length) { return length >= ranks; });
  const auto found = enough != lengths.end() ? enough : std::ranges::max_element(lengths);
  if (found == lengths.end() || *found < 2) return {};
  return static_cast<size_t>(found - lengths.begin());
}

// What a rank holds between the two halves of an all_reduce, in elements; 0 where it has but one (see halfway() in plan.cpp).
double Search::halfway(const Graph& graph, const Node& before, uint32_t axes) {
  const double whole = graph.largest_box(before);
  if (whole * graph.element_bytes() <= static_cast<double>(kOneRoundBytes)) return 0;
  int64_t ranks = 1;
  for (const size_t axis : graph.mesh_axes(axes)) ranks *= graph.mesh().size(axis);
  std::vector<int64_t> lengths;
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList& list = graph.lists()[before.list[d]];
    lengths.push_back(list.ragged != 0 ? 0 : static_cast<int64_t>(list.largest));
  }
  const auto dim = halfway_dim(lengths, ranks);
  if (!dim) return 0;
  const int64_t length = lengths[*dim];
  return whole / static_cast<double>(length) * static_cast<double>((length + ranks - 1) / ranks);
}

// The caller's input, and the step's input and output, on the rank that has most of them together.
double Search::peak(int from, int to, const Edge& edge) {
  const Visit &before = visits_[static_cast<size_t>(from)], &after = visits_[static_cast<size_t>(to)];
  Graph &x = graph(before.graph), &y = graph(after.graph);
  const bool first = before.node.key == one_.source().key && before.graph == 0;
  const double middle = edge.kind == StepKind::all_reduce ? halfway(x, before.node, edge.axes) : 0;
  const auto at = [&](const Dims* here, const Dims* there, const Dims* then) {
    const double input = here != nullptr ? one_.box_at(one_.source(), *here) : 0;
    const double in = middle > 0 ? middle : there != nullptr && !first ? x.box_at(before.node, *there) : 0;
    return input + in + (then != nullptr ? y.box_at(after.node, *then) : 0);
  };
  if (one_mesh_) {
    const bool even = x.is_even_handed(one_.source()) && x.is_even_handed(before.node) && x.is_even_handed(after.node);
    Dims place = Dims::filled(x.mesh().ndim(), 0);
    double most = at(&place, &place, &place);
    while (!even && x.next_place(place)) most = std::max(most, at(&place, &place, &place));
    return most * one_.element_bytes();
  }
  double most = 0;
  for (const Mesh* mesh : {&from_.mesh(), &to_.mesh()}) {
    for (const int rank : mesh->ranks()) {
      const auto here = from_.mesh().coordinate(rank), there = x.mesh().coordinate(rank),
                 then = y.mesh().coordinate(rank);
      most = std::max(most, at(here ? &*here : nullptr, there ? &*there : nullptr, then ? &*then : nullptr));
    }
  }
  return most * one_.element_bytes();
}

double Search::least_bytes() {
  run(Mode::peak);
  return visits_[static_cast<size_t>(target_)].cost;
}

std::optional<std::vector<Step>> Search::cheapest(bool with_bounds) {
  with_bounds_ = with_bounds;
  run(Mode::cost);
  const int target = target_;
  if (visits_[static_cast<size_t>(target)].cost == kNever) return {};
  return steps_to(target);
}

std::vector<Step> Search::steps_to(int number) {
  std::vector<Step> steps;
  while (visits_[static_cast<size_t>(number)].parent >= 0) {
    const Visit& after = visits_[static_cast<size_t>(number)];
    const Visit& before = visits_[static_cast<size_t>(after.parent)];
    Step step;
    step.kind = after.edge.kind;
    step.axes = graph(after.graph).mesh_axes(after.edge.axes);
    step.before = graph(before.graph).layout_of(before.node);
    step.after = graph(after.graph).layout_of(after.node);
    step.cost_us = after.edge.us;
    step.bytes = std::llround(after.edge.bytes);
    step.peak_bytes = std::llround(peak(after.parent, number, after.edge));
    steps.push_back(std::move(step));
    number = after.parent;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace tessera
