// plan() beside a brute force.
#include <tessera/error.hpp>

#include "plan/brute_force.hpp"
#include "plan/search.hpp"

namespace tessera::testing_support {
namespace {

Topology pick_times(const Mesh& mesh) {
  Topology topology;
  topology.base_us = static_cast<double>(pick(0, 8)) / 4;
  topology.exchange_base_us = topology.base_us + static_cast<double>(pick(0, 2)) / 4;
  if (pick(0, 1) == 0) topology.copy = Curve{{{64, 0.5}}};
  for (const MeshAxis& axis : mesh.axes()) {
    Link link{static_cast<double>(pick(0, 4)) / 8, Curve{{{static_cast<double>(pick(8, 40)), 1}, {400, 20}}}, {}};
    if (pick(0, 2) == 0) link.reduce = Curve{{{50, 0.5}}};
    // As steep as may be, and in another order than the axes' transfers.
    const auto pick_curve = [] {
      const double steep[] = {2, 20, 200};
      return pick(0, 1) == 0 ? Curve{{{static_cast<double>(pick(8, 40)), 1}, {300, 20}}}
                             : Curve{{{100, steep[pick(0, 2)]}}};
    };
    if (pick(0, 2) == 0) link.transfer = pick_curve();
    if (pick(0, 2) == 0) link.exchange = pick_curve();
    if (pick(0, 2) == 0) link.scatter = pick_curve();
    if (pick(0, 2) == 0) link.all_reduce = pick_curve();
    topology.axes.push_back({axis.name, link});
  }
  return topology;
}

World pick_world(int64_t most_axes, int64_t most_dims) {
  std::vector<MeshAxis> axes;
  for (int64_t a = 0; a < most_axes; ++a)
    axes.push_back({std::string(1, static_cast<char>('a' + a)), pick(2, a == 0 ? 3 : 2)});
  const Mesh mesh(axes);
  Dims shape;
  const int64_t ndim = pick(1, most_dims);
  for (int64_t d = 0; d < ndim; ++d) shape.push_back(pick(1, 9));
  // A ragged cut that happens to be torch.chunk's is chunked for the planner, and would be twice among all layouts here.
  const auto pick_end = [&] {
    while (true) {
      const Layout layout = pick_layout(mesh, shape);
      bool same = false;
      for (const auto& cut : layout.cuts()) {
        std::vector<Placement> plain(mesh.ndim());
        std::vector<std::string> order;
        for (const size_t a : cut.axes) {
          plain[a] = Shard(cut.dim);
          order.push_back(mesh.axes()[a].name);
        }
        const Layout chunked(mesh, plain, order);
        bool equal = !cut.sizes.empty();
        for (const int rank : mesh.ranks()) {
          const auto d = static_cast<size_t>(cut.dim);
          Dims at = *mesh.coordinate(rank);
          for (size_t a = 0; a < mesh.ndim(); ++a) {
            if (layout.placements()[a].kind == Kind::at) at[a] = layout.placements()[a].index;
          }
          equal = equal && chunked.box(shape, at)->offset[d] == layout.box(shape, at)->offset[d] &&
                  chunked.box(shape, at)->extent[d] == layout.box(shape, at)->extent[d];
        }
        same = same || equal;
      }
      if (!same) return layout;
    }
  };
  return {pick_end(), pick_end(), shape, pick(0, 1) == 0 ? DType::f32 : DType::i32, pick_times(mesh)};
}

void require_optimal(const World& w) {
  RC_LOG() << fmt::format("{} {}: {} to {}\n", w.mesh(), w.shape, w.from, w.to);
  const Plan found = plan(w.from, w.to, w.shape, w.dtype, w.topology);
  const double least = w.from == w.to ? 0 : brute_force(w, kNever);
  RC_LOG() << found.explain() << least << "\n";
  RC_ASSERT(std::abs(found.cost_us() - least) <= 1e-9 * std::max(1.0, least));
  const int64_t limit = pick(1, found.peak_bytes());
  const double limited = w.from == w.to ? 0 : brute_force(w, static_cast<double>(limit));
  try {
    const Plan within = plan(w.from, w.to, w.shape, w.dtype, w.topology, {.max_bytes = limit});
    RC_LOG() << "within " << limit << "\n" << within.explain() << limited << "\n";
    RC_ASSERT(std::abs(within.cost_us() - limited) <= 1e-9 * std::max(1.0, limited));
  } catch (const Error&) {
    RC_ASSERT(limited == kNever);
  }
}

RC_GTEST_PROP(Optimality, OnOneAxis, ()) { require_optimal(pick_world(1, 3)); }
RC_GTEST_PROP(Optimality, OnTwoAxes, ()) { require_optimal(pick_world(2, 2)); }

RC_GTEST_PROP(Optimality, OnThreeAxes, ()) { require_optimal(pick_world(3, 1)); }

// Larger meshes than a brute force can take: the bounds leave out nothing that is cheaper.
void require_bounds_to_hold(const char* mesh_text) {
  const Mesh mesh = Mesh::parse(mesh_text);
  Dims shape;
  for (int d = 0; d < 3; ++d) shape.push_back(pick(0, 1) == 0 ? pick(1, 40) : pick(1, 5) * 16);
  const Layout from = pick_layout(mesh, shape).resolved(shape), to = pick_layout(mesh, shape).resolved(shape);
  const Topology topology = pick(0, 1) == 0 ? pick_times(mesh) : Topology::dtensor(mesh, int64_t{1} << pick(0, 4));
  RC_LOG() << fmt::format("{} {}: {} to {}\n", mesh, shape, from, to);
  const auto cost = [&](const PlanOptions& options, bool with_bounds) {
    Search search(from, to, shape, DType::f32, topology, options);
    const auto steps = search.cheapest(with_bounds);
    double us = steps ? 0 : kNever;
    for (size_t i = 0; steps && i < steps->size(); ++i) us += (*steps)[i].cost_us;
    return us;
  };
  const auto require_same = [&](const PlanOptions& options) {
    const double found = cost(options, true), least = cost(options, false);
    RC_LOG() << fmt::format("{} and not {} within {}\n", found, least, options.max_bytes);
    RC_ASSERT(found == least || std::abs(found - least) <= 1e-9 * least);
  };
  require_same({});
  const int64_t peak = plan(from, to, shape, DType::f32, topology).peak_bytes();
  require_same({.max_bytes = pick(peak / 2, peak)});
}

RC_GTEST_PROP(Optimality, BoundsHoldOnFourByFour, ()) { require_bounds_to_hold("a=4,b=4"); }
RC_GTEST_PROP(Optimality, BoundsHoldOnTwoByEight, ()) { require_bounds_to_hold("a=2,b=8"); }
RC_GTEST_PROP(Optimality, BoundsHoldOnTwoByTwoByFour, ()) { require_bounds_to_hold("a=2,b=2,c=4"); }

// A direct exchange is only considered out of the source and into the target. A plan that ends at a layout in between by
// one, or starts there by one, is no part of a longer plan.
bool ends_by_exchange(const Plan& plan) {
  return plan.steps().size() > 1 && plan.steps().back().kind == StepKind::direct;
}
bool starts_by_exchange(const Plan& plan) {
  return plan.steps().size() > 1 && plan.steps().front().kind == StepKind::direct;
}

// A layout in between of the kinds that every plan may pass.
RC_GTEST_PROP(Optimality, CostsObeyTheTriangleInequality, ()) {
  const Mesh mesh = pick_mesh(3, 8);
  const Dims shape = pick_shape(2, 9);
  const Topology topology = pick(0, 1) == 0 ? pick_times(mesh) : Topology::dtensor(mesh, 2);
  const auto any = [&] { return pick_layout(mesh, shape, {.ragged = false}); };
  const Layout a = any(), c = any(), b = pick_layout(mesh, shape, {.ragged = false, .at = false, .partial = false});
  const auto way = [&](const Layout& x, const Layout& y) { return plan(x, y, shape, DType::i32, topology); };
  const Plan there = way(a, b), on = way(b, c), whole = way(a, c);
  RC_PRE(!ends_by_exchange(there) && !starts_by_exchange(on));
  RC_LOG() << fmt::format("{} {}: {} via {} to {}\n", mesh, shape, a, b, c);
  RC_LOG() << there.explain() << on.explain() << whole.explain();
  RC_ASSERT(whole.cost_us() <= there.cost_us() + on.cost_us() + 1e-9);
}

// Between meshes: whatever can be done around the one exchange that crosses.
RC_GTEST_PROP(Optimality, CostsBetweenMeshesAreNoHigherThanAnyWayAcross, ()) {
  const Mesh mesh = pick_mesh(2, 6), other = pick_mesh(2, 6, static_cast<int>(pick(0, 8)));
  RC_PRE(!(mesh == other));
  const Dims shape = pick_shape(2, 9);
  Topology topology = pick_times(mesh);
  topology.target_axes = pick_times(other).axes;
  topology.between = {static_cast<double>(pick(0, 4)) / 8, Curve{{{static_cast<double>(pick(4, 40)), 1}}}, {}};
  Topology there = topology;  // of plans that stay on the target's mesh
  there.axes = topology.target_axes;
  const Layout a = pick_layout(mesh, shape), c = pick_layout(other, shape);
  const LayoutOptions plain{.ragged = false, .at = false, .partial = false};
  const Layout near = pick_layout(mesh, shape, plain), far = pick_layout(other, shape, plain);
  const auto way = [&](const Layout& x, const Layout& y, const Topology& t) {
    return plan(x, y, shape, DType::i32, t);
  };
  RC_LOG() << fmt::format("{} to {} {}: {} via {} or {} to {}\n", mesh, other, shape, a, near, far, c);
  const double least = way(a, c, topology).cost_us();
  const Plan before = way(a, near, topology), enters = way(near, c, topology);
  const Plan leaves = way(a, far, topology), after = way(far, c, there);
  if (enters.steps().size() == 1 && !ends_by_exchange(before)) {
    RC_ASSERT(least <= before.cost_us() + enters.cost_us() + 1e-9);
  }
  if (leaves.steps().size() == 1 && !starts_by_exchange(after)) {
    RC_ASSERT(least <= leaves.cost_us() + after.cost_us() + 1e-9);
  }
}

}  // namespace
}  // namespace tessera::testing_support
