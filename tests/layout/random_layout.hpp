// Random meshes, shapes and layouts, and what a layout holds element by element.
#pragma once

#include <algorithm>
#include <functional>

#include <tessera/layout.hpp>

#include "support/random.hpp"

namespace tessera::testing_support {

inline Mesh pick_mesh(int64_t most_axes = 3, int64_t most_ranks = 12, int first_rank = 0) {
  const int64_t ndim = pick(0, most_axes);
  std::vector<MeshAxis> axes;
  int64_t size = 1;
  for (int64_t a = 0; a < ndim; ++a) {
    const int64_t n = std::min<int64_t>(pick(1, 4), most_ranks / size);
    axes.push_back({std::string(1, static_cast<char>('a' + a)), std::max<int64_t>(n, 1)});
    size *= axes.back().size;
  }
  std::vector<int> ranks;
  for (int64_t r = 0; r < size; ++r) ranks.push_back(first_rank + static_cast<int>(r));
  if (pick(0, 3) == 0) std::rotate(ranks.begin(), ranks.begin() + pick(0, size - 1), ranks.end());
  return Mesh(axes, ranks);
}

inline Dims pick_shape(int64_t most_dims = 3, int64_t longest = 7) {
  Dims shape;
  const int64_t ndim = pick(0, most_dims);
  for (int64_t d = 0; d < ndim; ++d) shape.push_back(pick(pick(0, 5) == 0 ? 0 : 1, longest));
  return shape;
}

inline Sizes pick_cut_of(int64_t extent, int64_t pieces) {
  std::vector<int64_t> places = {0, extent};
  for (int64_t i = 1; i < pieces; ++i) places.push_back(pick(0, extent));
  std::sort(places.begin(), places.end());
  Sizes sizes;
  for (size_t i = 0; i + 1 < places.size(); ++i) sizes.push_back(places[i + 1] - places[i]);
  return sizes;
}

struct LayoutOptions {
  bool ragged = true, at = true, partial = true;
  ReduceOp op = ReduceOp::sum;
};

// Any layout of that shape: every placement, axes in any order, ragged cuts by one axis or several.
inline Layout pick_layout(const Mesh& mesh, const Dims& shape, const LayoutOptions& options = {}) {
  std::vector<Placement> placements(mesh.ndim());
  std::vector<std::vector<size_t>> cut_by(shape.size());
  for (size_t a = 0; a < mesh.ndim(); ++a) {
    const int64_t choice = pick(0, 6);
    if (choice <= 3 && !shape.empty()) {
      const int64_t dim = pick(0, static_cast<int64_t>(shape.size()) - 1);
      placements[a] = Shard(dim);
      cut_by[static_cast<size_t>(dim)].push_back(a);
    } else if (choice == 4 && options.partial) {
      placements[a] = Partial(options.op);
    } else if (choice == 5 && options.at) {
      placements[a] = At(pick(0, mesh.size(a) - 1));
    }
  }
  std::vector<std::string> order;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t pieces = 1;
    for (const size_t a : cut_by[d]) pieces *= mesh.size(a);
    const bool ragged = options.ragged && !cut_by[d].empty() && pick(0, 2) == 0;
    const Sizes sizes = ragged ? pick_cut_of(shape[d], pieces) : Sizes{};
    for (size_t i = cut_by[d].size(); i-- > 1;)
      std::swap(cut_by[d][i], cut_by[d][static_cast<size_t>(pick(0, static_cast<int64_t>(i)))]);
    for (const size_t a : cut_by[d]) {
      if (ragged) placements[a] = Shard(static_cast<int64_t>(d), sizes);
      order.push_back(mesh.axes()[a].name);
    }
  }
  return Layout(mesh, placements, order);
}

// Calls fn with every coordinate of a box.
inline void for_each_in(const Box& box, const std::function<void(const Dims&)>& fn) {
  if (box.empty()) return;
  Dims index = box.offset;
  while (true) {
    fn(index);
    size_t d = index.size();
    while (d-- > 0) {
      if (++index[d] < box.offset[d] + box.extent[d]) break;
      index[d] = box.offset[d];
    }
    if (d == SIZE_MAX) return;
  }
}

inline std::vector<int64_t> key_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

}  // namespace tessera::testing_support
