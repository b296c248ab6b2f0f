#include "plan/exchange_price.hpp"

#include <algorithm>

namespace tessera {
namespace {

// From the first to behind the last piece that shares something with a stretch that is not empty.
std::pair<size_t, size_t> meeting(const CutList& list, int64_t begin, int64_t end) {
  if (list.pieces() == 1) return {0, 1};
  const auto& offsets = list.offsets;
  const auto first = std::upper_bound(offsets.begin() + 1, offsets.end(), begin) - (offsets.begin() + 1);
  const auto behind = std::lower_bound(offsets.begin(), offsets.end() - 1, end) - offsets.begin();
  return {static_cast<size_t>(first), static_cast<size_t>(behind)};
}

}  // namespace

ExchangePricer::ExchangePricer(Graph& graph, double base_us)
    : graph_(graph), base_us_(base_us), axes_(graph.axes()), by_speed_(graph.by_speed()) {
  for (size_t a = 0; a < axes_; ++a) sizes_.push_back(static_cast<int32_t>(graph.mesh().size(graph.mesh_axis(a))));
}

// The same as Exchange finds; see there.
void ExchangePricer::find_roles(const Node& before, const Node& after) {
  turns_ = 1;
  reduces_ = false;
  const auto cuts_dim = [&](const Node& node, size_t d) { return graph_.lists()[node.list[d]].depth() > 0; };
  std::array<bool, kMaxPlanAxes> in_block = {};
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    if (!cuts_dim(before, d)) continue;
    for (const uint8_t a : graph_.lists()[after.list[d]].axes) in_block[a] = true;
  }
  for (size_t a = 0; a < axes_; ++a) {
    const Code p = before.code[a], q = after.code[a];
    const bool enters = (q == Code::embedded || q == Code::term) && p != q;
    const bool embeds = enters && !graph_.embeds_average();
    const bool at = q == Code::at_source || q == Code::at_target;
    const bool all_need_it = q == Code::replica || (q == Code::cut && !in_block[a]) || (enters && !embeds);
    replica_[a] = p == Code::replica;
    source_[a] = p == Code::cut                                 ? Source::cut
                 : p == Code::at_source || p == Code::at_target ? Source::fixed
                 : p == Code::term || p == Code::embedded       ? (q == p ? Source::same : Source::reduced)
                 : all_need_it                                  ? Source::same
                                                                : Source::turns;
    kept_[a] = embeds && (source_[a] == Source::cut || source_[a] == Source::fixed);
    target_[a] = source_[a] == Source::same || kept_[a] ? Target::same
                 : q == Code::cut && in_block[a]        ? Target::block
                 : at || embeds                         ? Target::fixed
                                                        : Target::free;
    fixed_source_[a] = source_[a] == Source::fixed ? static_cast<int32_t>(graph_.at_index(before, a)) : 0;
    fixed_target_[a] = at ? static_cast<int32_t>(graph_.at_index(after, a)) : 0;
    if (source_[a] == Source::turns) turns_ *= sizes_[a];
    reduces_ = reduces_ || source_[a] == Source::reduced;
  }
}

void ExchangePricer::set(const Node& before, const Node& after) {
  find_roles(before, after);
  dims_.clear();
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    Dim dim{&graph_.lists()[before.list[d]], &graph_.lists()[after.list[d]], false, false, 0};
    dim.block = dim.from->depth() > 0 && dim.to->depth() > 0;
    for (const uint8_t a : dim.from->axes) dim.has_kept = dim.has_kept || kept_[a];
    dims_.push_back(dim);
  }
}

size_t ExchangePricer::linear(const Place& place) const {
  size_t index = 0;
  for (size_t a = 0; a < axes_; ++a) index = index * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(place[a]);
  return index;
}

void ExchangePricer::set_receiver(size_t index) {
  for (size_t a = axes_; a-- > 0;) {
    receiver_[a] = static_cast<int32_t>(index % static_cast<size_t>(sizes_[a]));
    index /= static_cast<size_t>(sizes_[a]);
  }
}

bool ExchangePricer::gets_value() const {
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::fixed && receiver_[a] != fixed_target_[a]) return false;
    if (kept_[a] && source_[a] == Source::fixed && receiver_[a] != fixed_source_[a]) return false;
  }
  return true;
}

void ExchangePricer::receive(Load& load, bool for_senders) {
  for (size_t a = 0; a < axes_; ++a) holder_[a] = source_[a] == Source::fixed ? fixed_source_[a] : receiver_[a];
  for (Dim& dim : dims_) {
    dim.to_number = 0;
    for (const uint8_t a : dim.to->axes) {
      dim.to_number = dim.to_number * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(receiver_[a]);
    }
    if (dim.to->offsets[dim.to_number] == dim.to->offsets[dim.to_number + 1]) return;  // an empty part
  }
  pieces(0, graph_.element_bytes(), load, for_senders);
}

void ExchangePricer::pieces(size_t d, double elements, Load& load, bool for_senders) {
  if (d == dims_.size()) return terms(0, elements, load, for_senders);
  const Dim& dim = dims_[d];
  const int64_t begin = dim.to->offsets[dim.to_number], end = dim.to->offsets[dim.to_number + 1];
  const auto [first, behind] = meeting(*dim.from, begin, end);
  for (size_t k = first; k < behind; ++k) {
    const int64_t shared = std::min(end, dim.from->offsets[k + 1]) - std::max(begin, dim.from->offsets[k]);
    if (shared <= 0) continue;
    bool own = true;
    const int32_t* place = dim.from->places.data() + k * dim.from->depth();
    for (const uint8_t a : dim.from->axes) {
      holder_[a] = *place++;
      own = own && (!kept_[a] || holder_[a] == receiver_[a]);
    }
    if (!own) continue;
    from_number_[d] = k;
    pieces(d + 1, elements * static_cast<double>(shared), load, for_senders);
  }
}

void ExchangePricer::terms(size_t axis, double elements, Load& load, bool for_senders) {
  while (axis < axes_ && source_[axis] != Source::reduced) ++axis;
  if (axis == axes_) return take(elements, load, for_senders);
  for (int32_t i = 0; i < sizes_[axis]; ++i) {
    holder_[axis] = i;
    terms(axis + 1, elements, load, for_senders);
  }
}

void ExchangePricer::take(double elements, Load& load, bool for_senders) {
  if (turns_ > 1) {
    bool own = true;
    for (size_t a = 0; a < axes_; ++a) own = own && (replica_[a] || holder_[a] == receiver_[a]);
    if (own) return;
    set_turn();
  }
  size_t left = axes_;  // of the slowest axes first
  while (left > 0 && holder_[by_speed_[left - 1]] == receiver_[by_speed_[left - 1]]) --left;
  if (left == 0) return;
  const size_t way = by_speed_[left - 1];
  const double latency = graph_.link(way).latency_us;
  load.latency += latency;
  load.bytes[way] += elements;
  if (!for_senders) return;
  Load& sent = sent_[linear(holder_)];
  sent.latency += latency;
  sent.bytes[way] += elements;
}

// Replicas take turns by the number of the receiver among all that need the piece.
void ExchangePricer::set_turn() {
  int64_t number = 0;
  for (size_t d = 0; d < dims_.size(); ++d) {
    const Dim& dim = dims_[d];
    if (!dim.block) continue;
    const auto& offsets = dim.from->offsets;
    const auto [first, behind] = meeting(*dim.to, offsets[from_number_[d]], offsets[from_number_[d] + 1]);
    number = number * static_cast<int64_t>(behind - first) + static_cast<int64_t>(dim.to_number - first);
  }
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::free) number = number * sizes_[a] + receiver_[a];
  }
  int64_t turn = number % turns_;
  for (size_t a = axes_; a-- > 0;) {
    if (source_[a] != Source::turns) continue;
    holder_[a] = static_cast<int32_t>(turn % sizes_[a]);
    turn /= sizes_[a];
  }
}

double ExchangePricer::us_of(const Load& load, bool receives) const {
  double us = base_us_ + load.latency;
  for (size_t a = 0; a < axes_; ++a) {
    if (load.bytes[a] == 0) continue;
    const Link& link = graph_.link(a);
    us += (reduces_ ? link.of_scatter() : link.of_exchange())(load.bytes[a]);
    if (receives && reduces_) us += link.reduce(load.bytes[a]);
  }
  return us;
}

double ExchangePricer::bound() {
  for (size_t a = 0; a < axes_; ++a) {
    receiver_[a] = target_[a] == Target::fixed               ? fixed_target_[a]
                   : kept_[a] && source_[a] == Source::fixed ? fixed_source_[a]
                                                             : 0;
  }
  Load load;
  receive(load, false);
  return us_of(load, true);
}

PricedExchange ExchangePricer::price(double most_us) {
  PricedExchange most{base_us_, 0};
  const auto weigh = [&](const Load& load, bool receives) {
    double bytes = 0;
    for (size_t a = 0; a < axes_; ++a) bytes += load.bytes[a];
    most.us = std::max(most.us, us_of(load, receives));
    most.bytes = std::max(most.bytes, bytes);
    return most.us <= most_us;
  };
  const auto ranks = static_cast<size_t>(graph_.mesh().size());
  sent_.assign(ranks, Load());
  for (size_t r = 0; r < ranks; ++r) {
    set_receiver(r);
    if (!gets_value()) continue;
    Load received;
    receive(received, true);
    if (!weigh(received, true)) return {kNever, 0};
  }
  for (const Load& sent : sent_) {
    if (!weigh(sent, false)) return {kNever, 0};
  }
  return most;
}

}  // namespace tessera
