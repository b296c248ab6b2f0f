#include "plan/share_table.hpp"

#include <algorithm>

namespace tessera {
namespace {

bool begins_with(std::span<const uint8_t> list, std::span<const uint8_t> start) {
  return start.size() <= list.size() && std::equal(start.begin(), start.end(), list.begin());
}

}  // namespace

ShareTable::ShareTable(const CutList& own, const CutList& other, uint32_t agreed, const std::vector<int64_t>& sizes,
                       const std::vector<uint8_t>& slow_first, Scratch& scratch, std::pmr::memory_resource* memory)
    : own_(own), other_(other), sizes_(sizes), there_(memory), scratch_(scratch) {
  const auto allocate = [&](size_t count) { return std::pmr::polymorphic_allocator<double>(memory).allocate(count); };
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
    values_ = allocate(width_);
    work_out(0, 1);
    has_all_ = has_fullest_ = true;
    return;
  }
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
  values_ = allocate(step);
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
  for (size_t j = 0; j < set_count_; ++j) {
    if (sets_[j] == 0) add_all(2 * j, first_piece, behind_piece);
    else if (j + 1 == set_count_) add_own(2 * j, first_piece, behind_piece);
    else add_some(sets_[j], 2 * j, first_piece, behind_piece);
  }
}

inline int64_t ShareTable::shared(size_t piece, size_t others) const {
  return std::min(own_.offsets[piece + 1], other_.offsets[others + 1]) -
         std::max(own_.offsets[piece], other_.offsets[others]);
}

// Calls fn(piece, first, behind) with those of the other's pieces that may share something with it.
template <class Fn>
void ShareTable::for_each_meeting(size_t first_piece, size_t behind_piece, Fn&& fn) const {
  const auto& ends = other_.offsets;
  size_t first = 0;
  for (size_t x = first_piece; x < behind_piece; ++x) {
    while (first < other_.pieces() && ends[first + 1] <= own_.offsets[x]) ++first;
    size_t behind = first;
    while (behind < other_.pieces() && ends[behind] < own_.offsets[x + 1]) ++behind;
    fn(x, first, behind);
  }
}

void ShareTable::add_all(size_t column, size_t first_piece, size_t behind_piece) {
  double* entry = values_ + first_piece * there_.size() * width_ + column;
  for_each_meeting(first_piece, behind_piece, [&](size_t x, size_t first, size_t behind) {
    int64_t count = 0;  // of those that are not empty: they all meet it
    for (size_t y = first; y < behind; ++y) count += other_.offsets[y] < other_.offsets[y + 1];
    const double meeting = own_.offsets[x] < own_.offsets[x + 1] ? static_cast<double>(count) : 0;
    for (size_t i = 0; i < there_.size(); ++i, entry += width_) {
      entry[0] = meeting;
      entry[1] = own_.piece(x);
    }
  });
}

// The other's piece at one's own place, without what a place on the other's axes alone adds.
size_t ShareTable::here(size_t piece) const {
  size_t number = 0;
  for (size_t k = 0; k < own_.depth(); ++k) {
    number += static_cast<size_t>(own_.places[piece * own_.depth() + k]) * weight_[own_.axes[k]];
  }
  return number;
}

void ShareTable::add_own(size_t column, size_t first_piece, size_t behind_piece) {
  double* entry = values_ + first_piece * there_.size() * width_ + column;
  for (size_t x = first_piece; x < behind_piece; ++x) {
    const size_t place = here(x);
    for (const size_t there : there_) {
      const int64_t both = shared(x, place + there);
      entry[0] = both > 0 ? 1 : 0;
      entry[1] = both > 0 ? static_cast<double>(both) : 0;
      entry += width_;
    }
  }
}

void ShareTable::add_some(uint32_t set, size_t column, size_t first_piece, size_t behind_piece) {
  size_t keys = 1;
  for (const uint8_t a : other_.axes) keys *= (set >> a & 1) != 0 ? static_cast<size_t>(sizes_[a]) : 1;
  auto& key = scratch_.key;
  auto& sums = scratch_.sums;
  key.assign(other_.pieces(), 0);  // by piece: twice a number for its place on the set's axes
  for (size_t k = 0; k < other_.depth(); ++k) {
    const uint8_t a = other_.axes[k];
    if ((set >> a & 1) == 0) continue;
    const int32_t* place = other_.places.data() + k;
    for (size_t& number : key) {
      number = number * static_cast<size_t>(sizes_[a]) + 2 * static_cast<size_t>(*place);
      place += other_.depth();
    }
  }
  sums.assign(2 * keys, 0);
  double* entry = values_ + first_piece * there_.size() * width_ + column;
  for_each_meeting(first_piece, behind_piece, [&](size_t x, size_t first, size_t behind) {
    for (size_t y = first; y < behind; ++y) {
      const int64_t both = shared(x, y);
      if (both <= 0) continue;
      sums[key[y]] += 1;
      sums[key[y] + 1] += static_cast<double>(both);
    }
    const size_t place = here(x);
    for (const size_t there : there_) {
      entry[0] = sums[key[place + there]];
      entry[1] = sums[key[place + there] + 1];
      entry += width_;
    }
    for (size_t y = first; y < behind; ++y) sums[key[y]] = sums[key[y] + 1] = 0;
  });
}

}  // namespace tessera
