#include "plan/exchange_price.hpp"

#include <algorithm>
#include <span>

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
    : graph_(graph),
      base_us_(base_us),
      axes_(graph.axes()),
      sizes_(axes_),
      meetings_(graph.memory()),
      ranges_(graph.memory()),
      shared_(graph.memory()),
      slow_first_(graph.by_speed().rbegin(), graph.by_speed().rend()),
      tables_(graph.memory()),
      dims_(graph.memory()),
      whole_(graph.memory()),
      terms_(graph.memory()),
      turn_spots_(graph.memory()),
      sent_(graph.memory()) {
  tables_.reserve(64);
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
  turns_ = free_receivers_ = 1;
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
    if (target_[a] == Target::free) free_receivers_ *= sizes_[a];
    reduces_ = reduces_ || source_[a] == Source::reduced;
    if (kept_[a]) kept_bits_ |= bits_of(a);
    if (p == Code::replica) replica_bits_ |= bits_of(a);
  }
}

// What the places on all axes of that kind add, the last axis changing fastest.
void ExchangePricer::list_places(Source source, std::pmr::vector<Spot>& places) const {
  places.assign(1, {});
  for (size_t a = 0; a < axes_; ++a) {
    if (source_[a] != source) continue;
    const auto n = static_cast<size_t>(sizes_[a]);
    size_t k = places.size();
    places.resize(k * n);
    while (k-- > 0) {  // from behind: those before are still needed
      const Spot outer = places[k];
      for (size_t i = n; i-- > 0;) places[k * n + i] = outer + spot(a, static_cast<int64_t>(i));
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
    const bool within = begin <= from.offsets[k] && from.offsets[k + 1] <= end;
    const auto [to_first, to_behind] =
        within ? std::pair(piece, piece + 1) : meets(*dim.to, from.offsets[k], from.offsets[k + 1]);
    shared_.push_back({static_cast<double>(shared), holder, static_cast<int64_t>(to_behind - to_first),
                       static_cast<int64_t>(piece - to_first)});
  }
  range.end = shared_.size();
}

void ExchangePricer::set(const Node& before, const Node& after) {
  before_ = &before;
  after_ = &after;
  find_roles(before, after);
  if (turns_ == 1) return;
  list_places(Source::reduced, terms_);
  list_places(Source::turns, turn_spots_);
  turn_by_piece_ = free_receivers_ % turns_ != 0;
  dims_.clear();
  whole_.clear();
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    if (graph_.lists()[before.list[d]].depth() > 0) dims_.push_back(&meeting(before.list[d], after.list[d]));
    else whole_.push_back(&graph_.lists()[after.list[d]]);
  }
}

bool ExchangePricer::next_receiver() {
  for (size_t a = axes_; a-- > 0;) {
    if (++receiver_[a] < sizes_[a]) return true;
    receiver_[a] = 0;
  }
  return false;
}

bool ExchangePricer::gets_value() const {
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::fixed && receiver_[a] != fixed_target_[a]) return false;
    if (kept_[a] && source_[a] == Source::fixed && receiver_[a] != fixed_source_[a]) return false;
  }
  return true;
}

void ExchangePricer::take(double bytes, Spot holder) {
  for (const Spot& term : terms_) {
    const Spot sender = holder + term;
    if (((sender.bits ^ receiver_spot_.bits) & ~replica_bits_) == 0) continue;  // it has it itself
    const size_t way = slowest_between(sender, receiver_spot_);
    received_.add(way, 1, bytes);
    if (for_senders_) sent_[sender.number].add(way, 1, bytes);
  }
}

// All pieces that meet one of the target, where one axis cuts: over that axis, or a slower one. Only the piece at the
// receiver's own place may come over a faster one, or be there.
void ExchangePricer::take_all(const Meeting& dim, size_t piece, double bytes, Spot holder) {
  const CutList &from = *dim.from, &to = *dim.to;
  const Range range = ranges_[dim.of_first + piece];
  const uint8_t axis = from.axes[0];
  const auto here = static_cast<size_t>(receiver_[axis]);
  const int64_t begin = to.offsets[piece], end = to.offsets[piece + 1];
  const int64_t own = std::min(end, from.offsets[here + 1]) - std::max(begin, from.offsets[here]);
  auto senders = static_cast<double>(range.end - range.begin), elements = static_cast<double>(end - begin);
  for (const Spot& term : terms_) {
    const Spot sender = holder + term;
    const uint64_t differs = (sender.bits ^ receiver_spot_.bits) & ~dim.bits;
    const bool slower = differs > dim.bits;
    const size_t way = slower ? slowest_between({differs}, {}) : axis;
    received_.add(way, senders, bytes * elements);
    if (for_senders_) send_later({&dim, piece, sender.number, way, 1, bytes});
    const bool has_own = (differs & ~replica_bits_) == 0;
    if (own <= 0 || (slower && !has_own)) continue;
    const auto add_own = [&](size_t over, double sign) {
      const double all = sign * bytes * static_cast<double>(own);
      received_.add(over, sign, all);
      if (for_senders_) sent_[sender.number + here * stride_[axis]].add(over, sign, all);
    };
    add_own(way, -1);
    if (!has_own) add_own(slowest_between({differs}, {}), 1);
  }
}

// Receivers that differ in nothing that their senders see are sent to at once.
void ExchangePricer::send_later(const Together& more) {
  Together& all = later_[(more.piece * 8 + more.sender) % later_.size()];
  if (all.dim != more.dim || all.piece != more.piece || all.sender != more.sender || all.way != more.way) {
    send(all);
    all = more;
    return;
  }
  all.receivers += more.receivers;
  all.bytes += more.bytes;
}

void ExchangePricer::send(const Together& all) {
  if (all.dim == nullptr) return;
  const Range range = ranges_[all.dim->of_first + all.piece];
  for (const Shared& shared : std::span(shared_).subspan(range.begin, range.end - range.begin)) {
    sent_[all.sender + shared.holder.number].add(all.way, all.receivers, all.bytes * shared.elements);
  }
}

ExchangePricer::Load ExchangePricer::load_of(const Tally& tally) const {
  Load load{0, tally.bytes};
  for (const uint8_t a : slow_first_) load.latency += tally.peers[a] * latency_[a];
  return load;
}

size_t ExchangePricer::number_in(const CutList& list) const {
  size_t number = 0;
  for (const uint8_t a : list.axes) {
    number = number * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(receiver_[a]);
  }
  return number;
}

const ExchangePricer::Tally& ExchangePricer::receive(bool for_senders) {
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
  double bytes = graph_.element_bytes();
  for (const CutList* list : whole_) bytes *= list->piece(number_in(*list));
  if (bytes == 0) return received_;
  free_number_ = 0;
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::free) free_number_ = free_number_ * sizes_[a] + receiver_[a];
  }
  if (dims_.empty() || !turn_by_piece_) holder = holder + turn_of(free_number_);
  if (dims_.empty()) take(bytes, holder);
  else pieces(0, bytes, holder, 0);
  return received_;
}

// Replicas take turns by the number of the receiver among all that need the piece.
void ExchangePricer::pieces(size_t d, double bytes, Spot holder, int64_t number) {
  const Meeting& dim = *dims_[d];
  const Range range = ranges_[dim.of_first + to_number_[d]];
  const uint64_t kept = kept_bits_ & dim.bits;
  const bool is_last = d + 1 == dims_.size();
  if (is_last && !turn_by_piece_ && kept == 0 && dim.from->depth() == 1) {
    return take_all(dim, to_number_[d], bytes, holder);
  }
  for (const Shared& shared : std::span(shared_).subspan(range.begin, range.end - range.begin)) {
    if (((shared.holder.bits ^ receiver_spot_.bits) & kept) != 0) continue;
    const int64_t here = number * shared.receivers + shared.number;
    Spot there = holder + shared.holder;
    if (!is_last) {
      pieces(d + 1, bytes * shared.elements, there, here);
      continue;
    }
    if (turn_by_piece_) there = there + turn_of(here * free_receivers_ + free_number_);
    take(bytes * shared.elements, there);
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

void ExchangePricer::set_receiver(const CutList& list, size_t piece) {
  const int32_t* place = list.places.data() + piece * list.depth();
  for (const uint8_t a : list.axes) receiver_[a] = *place++;
}

// The first of the replicas of the largest piece serves every turns_-th of those that need it.
ExchangePricer::Load ExchangePricer::sent_by_fullest() {
  Spot sender;
  std::array<int64_t, kMaxPlanAxes> at = {};
  for (const Meeting* dim : dims_) {
    const int32_t* place = dim->from->places.data() + dim->from->fullest * dim->from->depth();
    for (const uint8_t a : dim->from->axes) at[a] = *place++;
  }
  int64_t receivers = free_receivers_;
  for (size_t a = 0; a < axes_; ++a) {
    if (source_[a] == Source::fixed) at[a] = fixed_source_[a];
    sender = sender + spot(a, at[a]);
    receiver_[a] = target_[a] == Target::fixed ? fixed_target_[a] : at[a];
  }
  std::array<std::pair<size_t, size_t>, kMaxDims> needed;
  for (size_t d = 0; d < dims_.size(); ++d) {
    const int64_t* piece = dims_[d]->from->offsets.data() + dims_[d]->from->fullest;
    if (piece[0] == piece[1]) return {};
    needed[d] = meets(*dims_[d]->to, piece[0], piece[1]);
    receivers *= static_cast<int64_t>(needed[d].second - needed[d].first);
  }
  Tally tally;
  for (int64_t number = 0; number < receivers; number += turns_) {
    int64_t left = number;
    for (size_t a = axes_; a-- > 0;) {
      if (target_[a] != Target::free) continue;
      receiver_[a] = left % sizes_[a];
      left /= sizes_[a];
    }
    double elements = graph_.element_bytes();
    for (size_t d = dims_.size(); d-- > 0;) {
      const CutList &from = *dims_[d]->from, &to = *dims_[d]->to;
      const auto count = static_cast<int64_t>(needed[d].second - needed[d].first);
      const size_t piece = needed[d].first + static_cast<size_t>(left % count);
      left /= count;
      set_receiver(to, piece);
      elements *= static_cast<double>(std::min(to.offsets[piece + 1], from.offsets[from.fullest + 1]) -
                                      std::max(to.offsets[piece], from.offsets[from.fullest]));
    }
    for (const CutList* list : whole_) elements *= list->piece(number_in(*list));
    Spot receiver;
    for (size_t a = 0; a < axes_; ++a) receiver = receiver + spot(a, receiver_[a]);
    const uint64_t differs = sender.bits ^ receiver.bits;
    if (elements <= 0 || (differs & ~replica_bits_) == 0) continue;  // or it has it itself
    tally.add(slowest_between(sender, receiver), 1, elements);
  }
  return load_of(tally);
}

double ExchangePricer::bound(double most_us) {
  if (turns_ == 1) return bound_by_sums(most_us);
  for (size_t a = 0; a < axes_; ++a) {
    receiver_[a] = target_[a] == Target::fixed               ? fixed_target_[a]
                   : kept_[a] && source_[a] == Source::fixed ? fixed_source_[a]
                                                             : 0;
  }
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    const CutList& list = graph_.lists()[after_->list[d]];
    set_receiver(list, list.fullest);
  }
  const double received = us_of(load_of(receive(false)), true);
  return received > most_us ? received : std::max(received, us_of(sent_by_fullest(), false));
}

bool ExchangePricer::weigh(const Load& load, bool receives, double most_us) {
  const auto is_less = [&] {
    if (load.latency > heaviest_.latency) return false;
    for (size_t a = 0; a < axes_; ++a) {
      if (load.bytes[a] > heaviest_.bytes[a]) return false;
    }
    return true;
  };
  if (is_less()) return true;  // curves do not fall
  const double us = us_of(load, receives);
  double bytes = 0;
  for (size_t a = 0; a < axes_; ++a) bytes += load.bytes[a];
  if (us >= most_.us) heaviest_ = load;
  most_.us = std::max(most_.us, us);
  most_.bytes = std::max(most_.bytes, bytes);
  return most_.us <= most_us;
}

// Most have no more of anything than one before.
bool ExchangePricer::weigh(const Tally& tally, bool receives, double most_us) {
  bool is_less = true;
  for (size_t a = 0; a < axes_; ++a) {
    is_less = is_less && tally.peers[a] <= heaviest_tally_.peers[a] && tally.bytes[a] <= heaviest_tally_.bytes[a];
  }
  if (is_less) return true;
  const double before = most_.us;
  const bool within = weigh(load_of(tally), receives, most_us);
  if (most_.us > before) heaviest_tally_ = tally;
  return within;
}

PricedExchange ExchangePricer::price(double most_us) {
  if (base_us_ > most_us) return {kNever, 0};
  return turns_ == 1 ? price_by_sums(most_us) : price_one_by_one(most_us);
}

PricedExchange ExchangePricer::price_one_by_one(double most_us) {
  most_ = {base_us_, 0};
  heaviest_ = {};
  heaviest_tally_ = {};
  sent_.assign(static_cast<size_t>(graph_.mesh().size()), Tally());
  later_.fill({});
  receiver_ = {};
  do {
    if (gets_value() && !weigh(receive(true), true, most_us)) return {kNever, 0};
  } while (next_receiver());
  for (const Together& all : later_) send(all);
  heaviest_ = {};
  heaviest_tally_ = {};
  for (const Tally& sent : sent_) {
    if (!weigh(sent, false, most_us)) return {kNever, 0};
  }
  return most_;
}

}  // namespace tessera
