// The loads of an exchange whose senders do not take turns. Who sends to a rank is then a product: in each dimension the
// pieces that meet its own, and on axes that cut nothing all ranks, one, or its own place. So what comes from the ranks
// that agree with it on the i slowest axes is a product of sums by dimension, and the differences between levels are
// what comes over each axis. What a rank sends is the same with the layouts swapped.
#include "plan/exchange_price.hpp"

#include <algorithm>

namespace tessera {
namespace {

// A mesh's number of axes is a constant in the loops over ranks: the compiler unrolls them.
template <class Fn>
auto with_axes(size_t axes, Fn&& fn) {
  static_assert(kMaxPlanAxes == 5);
  switch (axes) {
    case 0: return fn.template operator()<0>();
    case 1: return fn.template operator()<1>();
    case 2: return fn.template operator()<2>();
    case 3: return fn.template operator()<3>();
    case 4: return fn.template operator()<4>();
    default: return fn.template operator()<5>();
  }
}

}  // namespace

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

// Multiplies what stands in the entries of some tables.
template <size_t axes>
inline void ExchangePricer::multiply(Product<axes>& product, const Entries& entries, size_t first,
                                     size_t behind) const {
  for (size_t d = first; d < behind; ++d) {
    const auto& slot = side_.tables[d]->slot;
    const double* entry = entries[d];
#pragma GCC unroll 6
    for (size_t i = 0; i <= axes; ++i) {
      product.peers[i] *= entry[slot[i]];
      product.bytes[i] *= entry[slot[i] + 1];
    }
  }
}

template <size_t axes>
inline ExchangePricer::Product<axes> ExchangePricer::product_of(const Entries& entries, size_t first) const {
  Product<axes> product;
#pragma GCC unroll 6
  for (size_t i = 0; i <= axes; ++i) {
    product.peers[i] = side_.peers[i];
    product.bytes[i] = side_.bytes[i];
  }
  multiply(product, entries, first, side_.dims);
  return product;
}

template <size_t axes>
inline ExchangePricer::Levels<axes> ExchangePricer::levels_of(const Product<axes>& product) const {
  const auto& [peers, bytes] = product;
  Levels<axes> levels;
#pragma GCC unroll 6
  for (size_t i = 0; i < axes; ++i) {
    const uint8_t a = slow_first_[i];
    const bool none_agree = side_.others_at[a] >= 0 && side_.others_at[a] != receiver_[a];
    levels.latency += (none_agree ? peers[i] : peers[i] - peers[i + 1]) * latency_[a];
    levels.bytes[i] = none_agree ? bytes[i] : bytes[i] - bytes[i + 1];
    if (none_agree) break;
  }
  return levels;
}

template <size_t axes>
ExchangePricer::Levels<axes> ExchangePricer::levels_of(const Load& load) const {
  Levels<axes> levels{load.latency};
  for (size_t i = 0; i < axes; ++i) levels.bytes[i] = load.bytes[slow_first_[i]];
  return levels;
}

template <size_t axes>
ExchangePricer::Load ExchangePricer::load_of(const Levels<axes>& levels) const {
  Load load{levels.latency};
  for (size_t i = 0; i < axes; ++i) load.bytes[slow_first_[i]] = levels.bytes[i];
  return load;
}

ExchangePricer::Entries ExchangePricer::entries_here() const {
  Entries entries;
  for (size_t d = 0; d < side_.dims; ++d) {
    entries[d] = side_.tables[d]->entries();
    for (size_t a = 0; a < axes_; ++a) entries[d] += static_cast<size_t>(receiver_[a]) * side_.tables[d]->stride[a];
  }
  return entries;
}

ExchangePricer::Load ExchangePricer::load_here() const {
  return with_axes(axes_, [&]<size_t axes>() { return load_of(levels_of(product_of<axes>(entries_here(), 0))); });
}

void ExchangePricer::set_to_fullest(bool receives) {
  receiver_ = side_.at;
  for (size_t d = 0; d < graph_.ndim(); ++d) {
    const CutList& list = graph_.lists()[(receives ? after_ : before_)->list[d]];
    set_receiver(list, list.fullest);
  }
}

// The first of the axes on which loads differ becomes the one with which the rows take least time, and its tables the first.
size_t ExchangePricer::put_inner_first() {
  Side& side = side_;
  if (side.varies == 0) return 0;
  const auto effort = [&](uint8_t a) {  // for each place; a row takes about as long as eight tables at one place
    const auto tables = std::count_if(side.tables.begin(), side.tables.begin() + side.dims,
                                      [&](const ShareTable* shares) { return shares->stride[a] != 0; });
    return static_cast<double>(tables) + 8.0 / static_cast<double>(sizes_[a]);
  };
  const auto is_better = [&](uint8_t a, uint8_t b) { return effort(a) < effort(b); };
  const auto best = std::min_element(side.varying.begin(), side.varying.begin() + side.varies, is_better);
  std::swap(*best, side.varying[0]);
  const auto outer = std::partition(side.tables.begin(), side.tables.begin() + side.dims,
                                    [&](const ShareTable* shares) { return shares->stride[side.varying[0]] != 0; });
  return static_cast<size_t>(outer - side.tables.begin());
}

// The places along the first axis on which loads differ. What the other tables have is multiplied before.
template <size_t axes>
bool ExchangePricer::weigh_row(Entries entries, size_t inner_tables, bool receives, double most_us) {
  const Side& side = side_;
  const Product<axes> outer = product_of<axes>(entries, inner_tables);
  const uint8_t a = side.varying[0];
  const int64_t places = side.varies > 0 ? sizes_[a] : 1, first = receiver_[a];
  Levels<axes> heaviest = levels_of<axes>(heaviest_);
  for (int64_t i = 0; i < places; ++i) {
    receiver_[a] = first + i;
    Product<axes> product = outer;
    multiply(product, entries, 0, inner_tables);
    const Levels<axes> levels = levels_of(product);
    bool is_less = levels.latency <= heaviest.latency;
#pragma GCC unroll 6
    for (size_t level = 0; level < axes; ++level) is_less = is_less && levels.bytes[level] <= heaviest.bytes[level];
    if (!is_less) {
      if (!weigh(load_of(levels), receives, most_us)) return false;
      heaviest = levels_of<axes>(heaviest_);
    }
    for (size_t d = 0; d < inner_tables; ++d) entries[d] += side.tables[d]->stride[a];
  }
  receiver_[a] = first;
  return true;
}

// All places whose loads may differ. The one with most comes first: what is less than it has need not be weighed.
template <size_t axes>
bool ExchangePricer::weigh_all(bool receives, double most_us) {
  find_side(receives);
  const Side& side = side_;
  for (size_t d = 0; d < side.dims; ++d) side.tables[d]->want_all();
  set_to_fullest(receives);
  heaviest_ = {};
  if (!weigh(load_of(levels_of(product_of<axes>(entries_here(), 0))), receives, most_us)) return false;
  const size_t inner_tables = put_inner_first();
  receiver_ = side.at;
  while (true) {
    if (!weigh_row<axes>(entries_here(), inner_tables, receives, most_us)) return false;
    size_t v = 1;
    for (; v < side.varies; ++v) {
      const uint8_t a = side.varying[v];
      if (++receiver_[a] < sizes_[a]) break;
      receiver_[a] = 0;
    }
    if (v >= side.varies) return true;
  }
}

// The receiver and the sender that have most.
double ExchangePricer::bound_by_sums(double most_us) {
  double most = 0;
  for (const bool receives : {true, false}) {
    find_side(receives);
    set_to_fullest(receives);
    for (size_t d = 0; d < side_.dims; ++d) side_.tables[d]->want_fullest();
    most = std::max(most, us_of(load_here(), receives));
    if (most > most_us) break;
  }
  return most;
}

PricedExchange ExchangePricer::price_by_sums(double most_us) {
  most_ = {base_us_, 0};
  for (const bool receives : {true, false}) {
    const bool within = with_axes(axes_, [&]<size_t axes>() { return weigh_all<axes>(receives, most_us); });
    if (!within) return {kNever, 0};
  }
  return most_;
}

}  // namespace tessera
