#include "plan/share_table.hpp"

#include <algorithm>

namespace tessera {
namespace {

bool begins_with(const std::vector<uint8_t>& list, const std::vector<uint8_t>& start) {
  return start.size() <= list.size() && std::equal(start.begin(), start.end(), list.begin());
}

}  // namespace

ShareTable::ShareTable(const CutList& own, const CutList& other, uint32_t agreed, const std::vector<int64_t>& sizes,
                       const std::vector<uint8_t>& slow_first)
    : own_(own), other_(other), sizes_(sizes) {
  uint32_t cutting = 0;
  for (const uint8_t a : other.axes) cutting |= 1u << a;
  sets_[set_count_++] = agreed & cutting;
  for (size_t i = 0; i < slow_first.size(); ++i) {
    const uint32_t last = sets_[set_count_ - 1], more = last | (cutting & 1u << slow_first[i]);
    if (more != last) sets_[set_count_++] = more;
    slot[i + 1] = static_cast<uint8_t>(2 * (set_count_ - 1));
  }
  width_ = 2 * set_count_;
  size_t weight = 1, places = 1;
  for (size_t k = other.depth(); k-- > 0;) {
    weight_[other.axes[k]] = weight;
    weight *= static_cast<size_t>(sizes_[other.axes[k]]);
  }
  is_constant_ = own.even && other.even && (begins_with(own.axes, other.axes) || begins_with(other.axes, own.axes));
  if (is_constant_) {
    there_ = {0};
    values_ = std::make_unique_for_overwrite<double[]>(width_);
    work_out(0, 1);
    has_all_ = has_fullest_ = true;
    return;
  }
  there_.reserve(weight);
  there_ = {0};
  for (const uint8_t a : other.axes) {
    if (std::find(own.axes.begin(), own.axes.end(), a) != own.axes.end()) continue;
    stride[a] = places * width_;
    const auto n = static_cast<size_t>(sizes_[a]);
    for (size_t i = places; i < places * n; ++i) there_.push_back(there_[i - places] + weight_[a]);
    places *= n;
  }
  size_t step = places * width_;
  for (size_t k = own.depth(); k-- > 0; step *= static_cast<size_t>(sizes_[own.axes[k]])) stride[own.axes[k]] = step;
  values_ = std::make_unique_for_overwrite<double[]>(step);
}

void ShareTable::want_all() {
  if (has_all_) return;
  work_out(0, own_.pieces());
  has_all_ = has_fullest_ = true;
}

void ShareTable::want_fullest() {
  if (has_fullest_) return;
  work_out(own_.fullest, own_.fullest + 1);
  has_fullest_ = true;
}

void ShareTable::work_out(size_t first_piece, size_t behind_piece) {
  const auto& ends = other_.offsets;
  size_t first = 0;  // of the other's pieces that ends behind the beginning of this one
  if (first_piece > 0) {
    first = static_cast<size_t>(std::upper_bound(ends.begin() + 1, ends.end(), own_.offsets[first_piece]) -
                                (ends.begin() + 1));
  }
  for (size_t x = first_piece; x < behind_piece; ++x) {
    while (first < other_.pieces() && ends[first + 1] <= own_.offsets[x]) ++first;
    size_t behind = first;
    while (behind < other_.pieces() && ends[behind] < own_.offsets[x + 1]) ++behind;
    for (size_t j = 0; j < set_count_; ++j) add_up(sets_[j], 2 * j, x, first, behind);
  }
}

void ShareTable::add_up(uint32_t set, size_t column, size_t piece, size_t first, size_t behind) {
  const int64_t begin = own_.offsets[piece], end = own_.offsets[piece + 1];
  const auto shared_with = [&](size_t y) {
    return std::max<int64_t>(std::min(end, other_.offsets[y + 1]) - std::max(begin, other_.offsets[y]), 0);
  };
  double* entry = values_.get() + piece * there_.size() * width_ + column;
  if (set == 0) {
    double count = 0;
    for (size_t y = first; y < behind; ++y) count += shared_with(y) > 0 ? 1 : 0;
    for (size_t i = 0; i < there_.size(); ++i, entry += width_) {
      entry[0] = count;
      entry[1] = static_cast<double>(end - begin);
    }
    return;
  }
  size_t here = 0;
  for (size_t k = 0; k < own_.depth(); ++k) {
    here += static_cast<size_t>(own_.places[piece * own_.depth() + k]) * weight_[own_.axes[k]];
  }
  if (set == sets_[set_count_ - 1]) {  // the one that is its own
    for (const size_t there : there_) {
      const auto shared = static_cast<double>(shared_with(here + there));
      entry[0] = shared > 0 ? 1 : 0;
      entry[1] = shared;
      entry += width_;
    }
    return;
  }
  const auto key = [&](size_t y) {
    size_t number = 0;
    for (size_t k = 0; k < other_.depth(); ++k) {
      const uint8_t a = other_.axes[k];
      if ((set >> a & 1) == 0) continue;
      number = number * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(other_.places[y * other_.depth() + k]);
    }
    return number;
  };
  size_t keys = 1;
  for (const uint8_t a : other_.axes) keys *= (set >> a & 1) != 0 ? static_cast<size_t>(sizes_[a]) : 1;
  sums_.assign(2 * keys, 0);
  for (size_t y = first; y < behind; ++y) {
    const auto shared = static_cast<double>(shared_with(y));
    double* sum = sums_.data() + 2 * key(y);
    sum[0] += shared > 0 ? 1 : 0;
    sum[1] += shared;
  }
  for (const size_t there : there_) {
    const double* sum = sums_.data() + 2 * key(here + there);
    entry[0] = sum[0];
    entry[1] = sum[1];
    entry += width_;
  }
}

}  // namespace tessera
