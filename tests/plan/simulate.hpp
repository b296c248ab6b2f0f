// Runs a plan in one process, each rank's part as numbers, by the boxes of each step.
#pragma once

#include <map>

#include <tessera/overlap.hpp>
#include <tessera/plan.hpp>

#include "layout/random_layout.hpp"

namespace tessera::testing_support {

using Part = std::map<std::vector<int64_t>, int64_t>;  // element → value
using Parts = std::map<int, Part>;                     // rank → what it holds

inline int64_t value_at(const Dims& at) {
  int64_t value = 17;
  for (const int64_t i : at) value = value * 31 + i + 1;
  return value;
}

// What the ranks hold of a tensor in that layout; terms of a sum are arbitrary but add up.
inline Parts spread(const Layout& layout, const Dims& shape) {
  Parts parts;
  const auto pending = layout.axes(Placement::Kind::partial);
  for (const int rank : layout.mesh().ranks()) {
    const auto box = layout.box(shape, rank);
    if (!box) continue;
    Part& part = parts[rank];
    int64_t index = 0, count = 1;
    for (const size_t a : pending) {
      index = index * layout.mesh().size(a) + (*layout.mesh().coordinate(rank))[a];
      count *= layout.mesh().size(a);
    }
    for_each_in(*box, [&](const Dims& at) {
      const int64_t others = count * (count - 1) / 2;  // 0 + 1 + … of the others' terms
      part[key_of(at)] = index == 0 ? value_at(at) - others : index;
    });
  }
  return parts;
}

inline Parts exchanged(const Parts& parts, const Layout& before, const Layout& after, const Dims& shape) {
  const Exchange exchange(before, after, shape);
  Parts result;
  for (const int rank : after.mesh().ranks()) {
    const auto box = after.box(shape, rank);
    if (!box) continue;
    Part& part = result[rank];
    for_each_in(*box, [&](const Dims& at) { part[key_of(at)] = 0; });
    for (const Overlap& o : exchange.receives(rank)) {
      for_each_in(o.box, [&](const Dims& at) { part[key_of(at)] += parts.at(o.rank).at(key_of(at)); });
    }
  }
  return result;
}

// Whether the parts, what is pending added up, are the tensor.
inline bool hold_the_tensor(const Parts& parts, const Layout& layout, const Dims& shape) {
  const auto pending = layout.axes(Placement::Kind::partial);
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, int64_t> sums;  // (place, pending axes at 0; element)
  for (const int rank : layout.mesh().ranks()) {
    const auto box = layout.box(shape, rank);
    if (box.has_value() != parts.contains(rank)) return false;
    if (!box) continue;
    if (static_cast<int64_t>(parts.at(rank).size()) != box->elements()) return false;
    Dims place = *layout.mesh().coordinate(rank);
    for (const size_t a : pending) place[a] = 0;
    for (const auto& [at, value] : parts.at(rank)) sums[{key_of(place), at}] += value;
  }
  for (const auto& [key, sum] : sums) {
    if (sum != value_at(Dims(key.second))) return false;
  }
  return true;
}

}  // namespace tessera::testing_support
