#include "plan/exchange_price.hpp"

#include <algorithm>

namespace tessera {
namespace {

// From the first to behind the last piece that shares something with a stretch that is not empty.
std::pair<size_t, size_t> meets(const CutList& list, int64_t begin, int64_t end) {
  if (list.pieces() == 1) return {0, 1};
  const auto& offsets = list.offsets;
  const auto first = std::upper_bound(offsets.begin() + 1, offsets.end(), begin) - (offsets.begin() + 1);
  const auto behind = std::lower_bound(offsets.begin(), offsets.end() - 1, end) - offsets.begin();
  return {static_cast<size_t>(first), static_cast<size_t>(behind)};
}

}  // namespace

ExchangePricer::ExchangePricer(Graph& graph, double base_us)
    : graph_(graph), base_us_(base_us), axes_(graph.axes()), sizes_(axes_) {
  size_t stride = 1;
  for (size_t a = axes_; a-- > 0;) {
    sizes_[a] = graph.mesh().size(graph.mesh_axis(a));
    stride_[a] = stride;
    latency_[a] = graph.link(a).latency_us;
    stride *= static_cast<size_t>(sizes_[a]);
  }
  int bits = 0;
  for (const uint8_t a : graph.by_speed()) {
    shift_[a] = bits;
    const int width = std::bit_width(static_cast<uint64_t>(sizes_[a] - 1));
    for (int i = 0; i < width; ++i) axis_of_bit_[static_cast<size_t>(bits++)] = a;
  }
}

// The same as Exchange finds; see there.
void ExchangePricer::find_roles(const Node& before, const Node& after) {
  turns_ = 1;
  reduces_ = false;
  kept_bits_ = replica_bits_ = 0;
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
    fixed_source_[a] = source_[a] == Source::fixed ? graph_.at_index(before, a) : 0;
    fixed_target_[a] = at ? graph_.at_index(after, a) : 0;
    if (source_[a] == Source::turns) turns_ *= sizes_[a];
    reduces_ = reduces_ || source_[a] == Source::reduced;
    if (kept_[a]) kept_bits_ |= bits_of(a);
    if (p == Code::replica) replica_bits_ |= bits_of(a);
  }
}

void ExchangePricer::find_terms() {
  terms_.assign(1, {});
  for (size_t a = 0; a < axes_; ++a) {
    if (source_[a] != Source::reduced) continue;
    const auto n = static_cast<size_t>(sizes_[a]);
    size_t k = terms_.size();
    terms_.resize(k * n);
    while (k-- > 0) {  // from behind: those before are still needed
      const Spot outer = terms_[k];
      for (size_t i = n; i-- > 0;) terms_[k * n + i] = outer + spot(a, static_cast<int64_t>(i));
    }
  }
}

const ExchangePricer::Meeting& ExchangePricer::meeting(int from, int to) {
  const auto [place, fresh] = meetings_.try_emplace(static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to));
  Meeting& dim = place->second;
  if (!fresh) return dim;
  dim.from = &graph_.lists()[from];
  dim.to = &graph_.lists()[to];
  dim.of_first = ranges_.size();
  ranges_.resize(ranges_.size() + dim.to->pieces());
  for (const uint8_t a : dim.from->axes) dim.bits |= bits_of(a);
  return dim;
}

void ExchangePricer::work_out(const Meeting& dim, size_t piece) {
  const CutList& from = *dim.from;
  const int64_t begin = dim.to->offsets[piece], end = dim.to->offsets[piece + 1];
  if (begin == end) return;
  const auto [first, behind] = meets(from, begin, end);
  Range& range = ranges_[dim.of_first + piece];
  range.begin = shared_.size();
  for (size_t k = first; k < behind; ++k) {
    const int64_t shared = std::min(end, from.offsets[k + 1]) - std::max(begin, from.offsets[k]);
    if (shared <= 0) continue;
    Spot holder;
    const int32_t* place = from.places.data() + k * from.depth();
    for (const uint8_t a : from.axes) holder = holder + spot(a, *place++);
    shared_.push_back({static_cast<double>(shared), holder, k});
  }
  range.end = shared_.size();
}

void ExchangePricer::set(const Node& before, const Node& after) {
  find_roles(before, after);
  find_terms();
  dims_.clear();
  whole_.clear();
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    if (graph_.lists()[before.list[d]].depth() > 0) dims_.push_back(&meeting(before.list[d], after.list[d]));
    else whole_.push_back(&graph_.lists()[after.list[d]]);
  }
}

void ExchangePricer::set_receiver(size_t index) {
  for (size_t a = axes_; a-- > 0;) {
    receiver_[a] = static_cast<int64_t>(index % static_cast<size_t>(sizes_[a]));
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

inline void ExchangePricer::take(double elements, Spot holder) {
  if (turns_ > 1) {
    if (((holder.bits ^ receiver_spot_.bits) & ~replica_bits_) == 0) return;  // it has it itself
    holder = holder + turn();
  }
  const uint64_t differs = holder.bits ^ receiver_spot_.bits;
  if (differs == 0) return;
  const size_t way = axis_of_bit_[static_cast<size_t>(std::bit_width(differs)) - 1];  // the slowest
  const double latency = latency_[way];
  received_.latency += latency;
  received_.bytes[way] += elements;
  if (!for_senders_) return;
  Load& sent = sent_[holder.number];
  sent.latency += latency;
  sent.bytes[way] += elements;
}

inline void ExchangePricer::take_terms(double elements, Spot holder) {
  for (const Spot& term : terms_) take(elements, holder + term);
}

size_t ExchangePricer::number_in(const CutList& list) const {
  size_t number = 0;
  for (const uint8_t a : list.axes) {
    number = number * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(receiver_[a]);
  }
  return number;
}

ExchangePricer::Load ExchangePricer::receive(bool for_senders) {
  Spot holder;
  receiver_spot_ = {};
  for (size_t a = 0; a < axes_; ++a) {
    const Spot own = spot(a, receiver_[a]);
    receiver_spot_ = receiver_spot_ + own;
    if (source_[a] == Source::same) holder = holder + own;
    if (source_[a] == Source::fixed) holder = holder + spot(a, fixed_source_[a]);
  }
  for (size_t d = 0; d < dims_.size(); ++d) {
    to_number_[d] = number_in(*dims_[d]->to);
    if (ranges_[dims_[d]->of_first + to_number_[d]].end == 0) work_out(*dims_[d], to_number_[d]);
  }
  received_ = {};
  for_senders_ = for_senders;
  double elements = graph_.element_bytes();
  for (const CutList* list : whole_) elements *= list->piece(number_in(*list));
  if (elements == 0) return received_;
  if (dims_.empty()) take_terms(elements, holder);
  else pieces(0, elements, holder);
  return received_;
}

void ExchangePricer::pieces(size_t d, double elements, Spot holder) {
  const Meeting& dim = *dims_[d];
  const Range range = ranges_[dim.of_first + to_number_[d]];
  for (size_t i = range.begin; i < range.end; ++i) {
    const Shared& shared = shared_[i];
    if (((shared.holder.bits ^ receiver_spot_.bits) & kept_bits_ & dim.bits) != 0) continue;
    from_number_[d] = shared.from;
    if (d + 1 == dims_.size()) take_terms(elements * shared.elements, holder + shared.holder);
    else pieces(d + 1, elements * shared.elements, holder + shared.holder);
  }
}

// Replicas take turns by the number of the receiver among all that need the piece.
ExchangePricer::Spot ExchangePricer::turn() const {
  int64_t number = 0;
  for (size_t d = 0; d < dims_.size(); ++d) {
    const Meeting& dim = *dims_[d];
    if (dim.to->depth() == 0) continue;
    const int64_t* piece = dim.from->offsets.data() + from_number_[d];
    const auto [first, behind] = meets(*dim.to, piece[0], piece[1]);
    number = number * static_cast<int64_t>(behind - first) + static_cast<int64_t>(to_number_[d] - first);
  }
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::free) number = number * sizes_[a] + receiver_[a];
  }
  int64_t left = number % turns_;
  Spot turn;
  for (size_t a = axes_; a-- > 0;) {
    if (source_[a] != Source::turns) continue;
    turn = turn + spot(a, left % sizes_[a]);
    left /= sizes_[a];
  }
  return turn;
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
  return us_of(receive(false), true);
}

PricedExchange ExchangePricer::price(double most_us) {
  PricedExchange most{base_us_, 0};
  if (most.us > most_us) return {kNever, 0};
  Load last;
  const auto weigh = [&](const Load& load, bool receives) {
    if (load == last) return true;
    last = load;
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
    if (!weigh(receive(true), true)) return {kNever, 0};
  }
  last = {};
  for (const Load& sent : sent_) {
    if (!weigh(sent, false)) return {kNever, 0};
  }
  return most;
}

}  // namespace tessera
