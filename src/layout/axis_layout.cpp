#include "layout/axis_layout.hpp"

#include <algorithm>

#include <tessera/error.hpp>

namespace tessera {

std::vector<int64_t> offsets_of(std::span<const int64_t> sizes) {
  std::vector<int64_t> offsets;
  offsets.reserve(sizes.size() + 1);
  offsets.push_back(0);
  for (const int64_t size : sizes) {
    int64_t end = 0;
    if (__builtin_add_overflow(offsets.back(), size, &end)) {
      throw ShapeError("the sizes add up to more than 2^63 - 1");
    }
    offsets.push_back(end);
  }
  return offsets;
}

int64_t total(std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    if (__builtin_add_overflow(sum, size, &sum)) throw ShapeError("the sizes add up to more than 2^63 - 1");
  }
  return sum;
}

Sizes chunk_sizes(int64_t extent, int ranks) {
  const int64_t chunk = extent / ranks + (extent % ranks != 0);
  Sizes sizes(static_cast<size_t>(ranks));
  int64_t left = extent;
  for (int64_t& size : sizes) {
    size = std::min(chunk, left);
    left -= size;
  }
  return sizes;
}

Sizes even_sizes(int64_t extent, int ranks) {
  Sizes sizes(static_cast<size_t>(ranks), extent / ranks);
  for (int64_t r = 0; r < extent % ranks; ++r) ++sizes[static_cast<size_t>(r)];
  return sizes;
}

AxisPlacement axis_shard(int64_t dim, std::span<const int64_t> sizes) {
  return {AxisPlacement::shard, dim, offsets_of(sizes), 0};
}
AxisPlacement axis_replicate() { return {AxisPlacement::replicate, 0, {}, 0}; }
AxisPlacement axis_partial() { return {AxisPlacement::partial, 0, {}, 0}; }
AxisPlacement axis_at(int64_t index) { return {AxisPlacement::at, 0, {}, index}; }

Box AxisLayout::box(int rank) const {
  Box box = Box::whole(shape_);
  if (placement_.kind == AxisPlacement::shard) {
    const auto d = static_cast<size_t>(placement_.dim), r = static_cast<size_t>(rank);
    box.offset[d] = placement_.offsets[r];
    box.extent[d] = placement_.offsets[r + 1] - placement_.offsets[r];
  }
  return box;
}

AxisLayout::Ranks AxisLayout::holders(const Box& box) const {
  if (placement_.kind == AxisPlacement::at)
    return {static_cast<int>(placement_.index), static_cast<int>(placement_.index) + 1};
  if (placement_.kind != AxisPlacement::shard) return {0, ranks_};
  // From the last rank whose part begins at or before the box to the last whose
  // part begins before it ends.
  const auto d = static_cast<size_t>(placement_.dim);
  const auto begin = placement_.offsets.begin(), end = placement_.offsets.end() - 1;
  const auto first = std::upper_bound(begin, end, box.offset[d]) - begin - 1;
  const auto last = std::lower_bound(begin, end, box.offset[d] + box.extent[d]) - begin;
  return {static_cast<int>(first), static_cast<int>(last)};
}

}  // namespace tessera
