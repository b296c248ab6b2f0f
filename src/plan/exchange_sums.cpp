// The loads of an exchange whose senders do not take turns. Who sends to a rank is then a product: in each dimension the
// pieces that meet its own, and on axes that cut nothing all ranks, one, or its own place. So what comes from the ranks
// that agree with it on the i slowest axes is a product of sums by dimension, and the differences between levels are
// what comes over each axis. What a rank sends is the same with the layouts swapped.
#include "plan/exchange_price.hpp"

#include <algorithm>

namespace tessera {

ShareTable& ExchangePricer::table(int own, int other, uint32_t agreed) {
  const uint64_t key = (static_cast<uint64_t>(own) << 16 | static_cast<uint64_t>(other)) << kMaxPlanAxes | agreed;
  const auto known = tables_.find(key);
  if (known != tables_.end()) return known->second;
  const CutLists& lists = graph_.lists();
  return tables_.try_emplace(key, lists[own], lists[other], agreed, sizes_, slow_first_, scratch_, graph_.memory())
      .first->second;
}

void ExchangePricer::find_side(bool receives) {
  Side& side = side_;
  side = {};
  uint32_t agreed = 0, cutting = 0;
  const Node &own = receives ? *after_ : *before_, &other = receives ? *before_ : *after_;
  for (size_t a = 0; a < axes_; ++a) {
    if (target_[a] == Target::same) agreed |= 1u << a;
  }
  side.peers.fill(1);
  side.bytes.fill(graph_.element_bytes());
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    for (const uint8_t a : graph_.lists()[other.list[d]].axes) cutting |= 1u << a;
    ShareTable& shares = table(own.list[d], other.list[d], agreed);
    if (!shares.is_constant()) {
      side.tables[side.dims++] = &shares;
      continue;
    }
    for (size_t i = 0; i <= axes_; ++i) {
      side.peers[i] *= shares.entries()[shares.slot[i]];
      side.bytes[i] *= shares.entries()[shares.slot[i] + 1];
    }
  }
  for (size_t a = 0; a < axes_; ++a) {
    const bool source_fixed = source_[a] == Source::fixed, target_fixed = target_[a] == Target::fixed;
    const bool pinned = receives ? target_fixed || (kept_[a] && source_fixed) : source_fixed;
    const bool one_place = receives ? source_fixed && !kept_[a] : target_fixed;
    side.at[a] = !pinned ? 0 : receives && target_fixed ? fixed_target_[a] : fixed_source_[a];
    side.others_at[a] = !one_place ? -1 : receives ? fixed_source_[a] : fixed_target_[a];
    bool varies = one_place;
    for (size_t d = 0; d < side.dims; ++d) varies = varies || side.tables[d]->stride[a] != 0;
    if (varies && !pinned) side.varying[side.varies++] = static_cast<uint8_t>(a);
  }
  uint32_t level_set = agreed;
  for (size_t i = 0; i <= axes_; ++i) {
    if (i > 0) level_set |= 1u << slow_first_[i - 1];
    double ranks = 1;
    for (size_t a = 0; a < axes_; ++a) {
      const bool all = receives ? source_[a] == Source::reduced : target_[a] == Target::free && !has(cutting, a);
      if (all && !has(level_set, a)) ranks *= static_cast<double>(sizes_[a]);
    }
    side.peers[i] *= ranks;
    side.bytes[i] *= ranks;
  }
}

// Of a mesh with so many axes: the compiler unrolls it.
template <size_t axes>
ExchangePricer::Load ExchangePricer::load_of(const Entries& entries) const {
  std::array<double, axes + 1> peers, bytes;
  for (size_t i = 0; i <= axes; ++i) {
    peers[i] = side_.peers[i];
    bytes[i] = side_.bytes[i];
  }
  for (size_t d = 0; d < side_.dims; ++d) {
    const auto& slot = side_.tables[d]->slot;
    for (size_t i = 0; i <= axes; ++i) {
      peers[i] *= entries[d][slot[i]];
      bytes[i] *= entries[d][slot[i] + 1];
    }
  }
  Load load;
  for (size_t i = 0; i < axes; ++i) {
    const uint8_t a = slow_first_[i];
    const bool none_agree = side_.others_at[a] >= 0 && side_.others_at[a] != receiver_[a];
    load.latency += (none_agree ? peers[i] : peers[i] - peers[i + 1]) * latency_[a];
    load.bytes[a] = none_agree ? bytes[i] : bytes[i] - bytes[i + 1];
    if (none_agree) break;
  }
  return load;
}

ExchangePricer::Load ExchangePricer::load_at(const Entries& entries) const {
  static_assert(kMaxPlanAxes == 5);
  switch (axes_) {
    case 0: return load_of<0>(entries);
    case 1: return load_of<1>(entries);
    case 2: return load_of<2>(entries);
    case 3: return load_of<3>(entries);
    case 4: return load_of<4>(entries);
    default: return load_of<5>(entries);
  }
}

ExchangePricer::Entries ExchangePricer::entries_here() const {
  Entries entries = {};
  for (size_t d = 0; d < side_.dims; ++d) {
    entries[d] = side_.tables[d]->entries();
    for (size_t a = 0; a < axes_; ++a) entries[d] += static_cast<size_t>(receiver_[a]) * side_.tables[d]->stride[a];
  }
  return entries;
}

// Calls fn(load) for all places whose loads may differ, until it returns false.
template <class Fn>
bool ExchangePricer::for_each_load(bool receives, Fn&& fn) {
  find_side(receives);
  const Side& side = side_;
  receiver_ = side.at;
  for (size_t d = 0; d < side.dims; ++d) side_.tables[d]->want_all();
  Entries entries = entries_here();
  while (true) {
    if (!fn(load_at(entries))) return false;
    size_t v = 0;
    for (; v < side.varies; ++v) {
      const uint8_t a = side.varying[v];
      const bool wraps = ++receiver_[a] == sizes_[a];
      const int64_t steps = wraps ? 1 - sizes_[a] : 1;
      for (size_t d = 0; d < side.dims; ++d) entries[d] += steps * static_cast<int64_t>(side.tables[d]->stride[a]);
      if (!wraps) break;
      receiver_[a] = 0;
    }
    if (v == side.varies) return true;
  }
}

// The receiver and the sender that have most.
double ExchangePricer::bound_by_sums(double most_us) {
  double most = 0;
  for (const bool receives : {true, false}) {
    find_side(receives);
    receiver_ = side_.at;
    for (size_t d = 0; d < graph_.ndim(); ++d) {
      const CutList& list = graph_.lists()[(receives ? after_ : before_)->list[d]];
      set_receiver(list, list.fullest);
    }
    for (size_t d = 0; d < side_.dims; ++d) side_.tables[d]->want_fullest();
    most = std::max(most, us_of(load_at(entries_here()), receives));
    if (most > most_us) break;
  }
  return most;
}

PricedExchange ExchangePricer::price_by_sums(double most_us) {
  most_ = {base_us_, 0};
  for (const bool receives : {true, false}) {
    heaviest_ = {};
    if (!for_each_load(receives, [&](const Load& load) { return weigh(load, receives, most_us); })) return {kNever, 0};
  }
  return most_;
}

}  // namespace tessera
