#include <tessera/layout.hpp>

#include <algorithm>

#include <tessera/error.hpp>

#include "layout/axis_layout.hpp"
#include "layout/cutting.hpp"
#include "layout/text.hpp"

namespace tessera {

Placement Shard(int64_t dim) { return {.kind = Placement::Kind::shard, .dim = dim}; }
Placement Shard(int64_t dim, Sizes sizes) {
  if (sizes.empty())
    throw ShapeError(fmt::format("Shard({}) was given an empty list of sizes: give one for each rank", dim));
  return {.kind = Placement::Kind::shard, .dim = dim, .sizes = std::move(sizes)};
}
Placement Replicate() { return {}; }
Placement Partial(ReduceOp op) { return {.kind = Placement::Kind::partial, .op = op}; }
Placement At(int64_t index) { return {.kind = Placement::Kind::at, .index = index}; }

struct Layout::State {
  Mesh mesh;
  std::vector<Placement> placements;
  std::vector<Cut> cuts;
  bool counted_from_front = true;

  State(const Mesh& m, std::vector<Placement> p) : mesh(m.without_comms()), placements(std::move(p)) {}

  const std::string& name(size_t axis) const { return mesh.axes()[axis].name; }

  void check_placements() const {
    if (placements.size() != mesh.ndim()) {
      throw ShapeError(fmt::format("the mesh {} has {} axes and was given {} placements: give one for each axis",
                                   to_string(mesh), mesh.ndim(), placements.size()));
    }
    std::optional<size_t> first;
    for (size_t a = 0; a < placements.size(); ++a) {
      const Placement& p = placements[a];
      if (p.kind == Placement::Kind::at && (p.index < 0 || p.index >= mesh.size(a))) {
        throw ShapeError(fmt::format("axis {} has At({}), but {} ranks: use 0 to {}", name(a), p.index, mesh.size(a),
                                     mesh.size(a) - 1));
      }
      if (p.kind != Placement::Kind::partial) continue;
      if (p.op == ReduceOp::premul_sum) {
        throw ShapeError(fmt::format("axis {} has P(premul_sum): scale the terms and use P(sum)", name(a)));
      }
      if (first && placements[*first].op != p.op) {
        throw ShapeError(
            fmt::format("axis {} has {} and axis {} has {}: only one operation can be pending; reduce one "
                        "of them first",
                        name(*first), to_string(placements[*first]), name(a), to_string(p)));
      }
      first = a;
    }
  }

  // `order` has the numbers of axes.
  void find_cuts(const std::vector<size_t>& order) {
    counted_from_front = true;
    const auto place_of = [&](size_t axis) { return std::find(order.begin(), order.end(), axis) - order.begin(); };
    for (size_t a = 0; a < placements.size(); ++a) {
      const Placement& p = placements[a];
      if (p.kind != Placement::Kind::shard) continue;
      counted_from_front = counted_from_front && p.dim >= 0;
      auto cut = std::find_if(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.dim == p.dim; });
      if (cut == cuts.end()) cut = cuts.insert(cuts.end(), Cut{p.dim, {}, p.sizes, {}});
      if (cut->sizes != p.sizes) {
        throw ShapeError(
            fmt::format("axes {} and {} both cut dim {}, into different sizes: give both the one list of "
                        "all their pieces, such as S0[1,2,4,1]@dp,tp",
                        name(cut->axes[0]), name(a), p.dim));
      }
      cut->axes.push_back(a);
    }
    for (Cut& cut : cuts) {
      std::stable_sort(cut.axes.begin(), cut.axes.end(), [&](size_t a, size_t b) { return place_of(a) < place_of(b); });
      if (!cut.sizes.empty()) cut.offsets = offsets_of(cut.sizes);
    }
  }

  void check_order(const std::vector<size_t>& order) const {
    for (size_t i = 0; i < order.size(); ++i) {
      if (placements[order[i]].kind != Placement::Kind::shard) {
        throw ShapeError(fmt::format("the order names axis {}, which cuts no dimension: leave it out", name(order[i])));
      }
      if (std::find(order.begin(), order.begin() + static_cast<ptrdiff_t>(i), order[i]) !=
          order.begin() + static_cast<ptrdiff_t>(i)) {
        throw ShapeError(fmt::format("the order names axis {} twice", name(order[i])));
      }
    }
    const auto named = [&](size_t axis) { return std::find(order.begin(), order.end(), axis) != order.end(); };
    for (const Cut& cut : cuts) {
      const auto count = std::count_if(cut.axes.begin(), cut.axes.end(), named);
      if (count == 0 || count == static_cast<ptrdiff_t>(cut.axes.size())) continue;
      const size_t left_out = *std::find_if_not(cut.axes.begin(), cut.axes.end(), named);
      throw ShapeError(fmt::format("the order leaves out axis {}, which cuts dim {} too: name all that cut it",
                                   name(left_out), cut.dim));
    }
  }

  void check_sizes() const {
    for (const Cut& cut : cuts) {
      if (cut.sizes.empty()) continue;
      int64_t pieces = 1;
      for (const size_t a : cut.axes) pieces *= mesh.size(a);
      const std::string by = fmt::format("dim {} is cut by {} of {} ranks", cut.dim, names_of(cut), pieces);
      if (static_cast<int64_t>(cut.sizes.size()) != pieces) {
        throw ShapeError(fmt::format("{}, but has {} sizes: give one for each", by, cut.sizes.size()));
      }
      for (const int64_t size : cut.sizes) {
        if (size < 0) throw ShapeError(fmt::format("{}, and one of the sizes is {}: use 0 or more", by, size));
      }
    }
  }

  std::string names_of(const Cut& cut) const {
    std::string text;
    for (const size_t a : cut.axes) text += (text.empty() ? "" : ",") + name(a);
    return text;
  }
};

namespace {

void check_coordinate(const Mesh& mesh, const Dims& coordinate) {
  bool within = coordinate.size() == mesh.ndim();
  for (size_t a = 0; within && a < mesh.ndim(); ++a) within = coordinate[a] >= 0 && coordinate[a] < mesh.size(a);
  if (!within) throw ShapeError(fmt::format("{} is no coordinate of the mesh {}", coordinate, mesh));
}

}  // namespace

Layout::Layout() : Layout(Mesh(), {}) {}

Layout::Layout(Mesh mesh, std::vector<Placement> placements, const std::vector<std::string>& order) {
  auto state = std::make_shared<State>(mesh, std::move(placements));
  state->check_placements();
  std::vector<size_t> axes;
  for (const std::string& name : order) axes.push_back(state->mesh.axis(name));
  state->find_cuts(axes);
  // With negative dimensions it is not known yet which axes cut the same one.
  if (state->counted_from_front) {
    state->check_order(axes);
    state->check_sizes();
  } else if (!std::is_sorted(axes.begin(), axes.end())) {
    throw ShapeError("an order of axes goes with dimensions counted from the front: write 1, say, and not -1");
  }
  state_ = std::move(state);
}

const Mesh& Layout::mesh() const { return state_->mesh; }
const std::vector<Placement>& Layout::placements() const { return state_->placements; }
const std::vector<Layout::Cut>& Layout::cuts() const { return state_->cuts; }

std::vector<size_t> Layout::axes(Placement::Kind kind) const {
  std::vector<size_t> list;
  for (size_t a = 0; a < placements().size(); ++a) {
    if (placements()[a].kind == kind) list.push_back(a);
  }
  return list;
}

std::optional<ReduceOp> Layout::pending() const {
  for (const Placement& p : placements()) {
    if (p.kind == Placement::Kind::partial) return p.op;
  }
  return {};
}

bool Layout::is_replicated() const { return axes(Placement::Kind::replicate).size() == mesh().ndim(); }

Layout Layout::resolved(const Dims& shape) const {
  volume(shape);  // no negative extent
  Layout layout = *this;
  if (!state_->counted_from_front) {
    std::vector<Placement> placements = this->placements();
    for (size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].kind != Placement::Kind::shard) continue;
      placements[a].dim = normalize_dim(placements[a].dim, shape.size(), ("axis " + state_->name(a) + ": dim").c_str());
    }
    layout = Layout(mesh(), std::move(placements));
  }
  for (const Cut& cut : layout.cuts()) {
    normalize_dim(cut.dim, shape.size(), ("axis " + state_->name(cut.axes[0]) + ": dim").c_str());
    const int64_t extent = shape[static_cast<size_t>(cut.dim)];
    if (cut.sizes.empty() || cut.offsets.back() == extent) continue;
    throw ShapeError(fmt::format("the sizes [{}] of axis {} add up to {}, but dim {} of {} has {}",
                                 fmt::join(cut.sizes, ", "), layout.state_->names_of(cut), cut.offsets.back(), cut.dim,
                                 shape, extent));
  }
  return layout;
}

bool Layout::holds(const Dims& coordinate) const {
  for (size_t a = 0; a < placements().size(); ++a) {
    if (placements()[a].kind == Placement::Kind::at && placements()[a].index != coordinate[a]) return false;
  }
  return true;
}

std::optional<Box> Layout::box(const Dims& shape, const Dims& coordinate) const {
  if (!state_->counted_from_front) return resolved(shape).box(shape, coordinate);
  check_coordinate(mesh(), coordinate);
  if (!holds(coordinate)) return {};
  Box box = Box::whole(shape);
  for (const Cut& cut : cuts()) {
    const auto d = static_cast<size_t>(normalize_dim(cut.dim, shape.size()));
    if (!cut.sizes.empty() && cut.offsets.back() != shape[d]) resolved(shape);  // which throws
    const Cutting cutting(shape[d], mesh(), cut);
    const Interval piece = cutting.piece(cutting.number_at(coordinate));
    box.offset[d] = piece.begin;
    box.extent[d] = piece.length();
  }
  return box;
}

std::optional<Box> Layout::box(const Dims& shape, int rank) const {
  const auto coordinate = mesh().coordinate(rank);
  if (!coordinate) return {};
  return box(shape, *coordinate);
}

Layout Layout::dual(Convention convention) const {
  auto state = std::make_shared<State>(*state_);
  for (size_t a = 0; a < state->placements.size(); ++a) {
    Placement& p = state->placements[a];
    if (p.kind == Placement::Kind::partial) {
      if (p.op != ReduceOp::sum && p.op != ReduceOp::avg) {
        throw ArgumentError(fmt::format("axis {} has {}, which has no linear adjoint: only sum and avg have a gradient",
                                        state->name(a), to_string(p)));
      }
      p = Replicate();
    } else if (p.kind == Placement::Kind::replicate && convention == Convention::local) {
      p = Partial();
    }
  }
  return Layout(std::shared_ptr<const State>(std::move(state)));
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.state_ == b.state_) return true;
  return a.mesh() == b.mesh() && a.placements() == b.placements() && a.cuts() == b.cuts();
}

size_t hash_of(const Layout& layout) {
  size_t seed = hash_of(layout.mesh());
  for (const Placement& p : layout.placements()) {
    mix(seed, static_cast<size_t>(p.kind) << 8 | static_cast<size_t>(p.op));
    mix(seed, static_cast<size_t>(p.dim) << 20 ^ static_cast<size_t>(p.index));
  }
  for (const Layout::Cut& cut : layout.cuts()) {
    for (const size_t a : cut.axes) mix(seed, a);
    for (const int64_t size : cut.sizes) mix(seed, static_cast<size_t>(size));
  }
  return seed;
}

}  // namespace tessera
