// What PyTorch's DTensor would do by default, so that a plan can be shown beside it.
#include <algorithm>

#include <tessera/plan.hpp>

namespace tessera {
namespace {

using Kind = Placement::Kind;

bool known_to_dtensor(const Layout& layout) {
  if (!layout.axes(Kind::at).empty()) return false;
  return std::all_of(layout.cuts().begin(), layout.cuts().end(), [](const Layout::Cut& cut) {
    return cut.sizes.empty() && std::is_sorted(cut.axes.begin(), cut.axes.end());
  });
}

class Route {
 public:
  Route(const Layout& from, const Layout& to, double bytes, const Topology& topology)
      : mesh_(from.mesh()),
        topology_(topology),
        links_(topology.links(mesh_)),
        now_(from.placements()),
        target_(to.placements()),
        bytes_(bytes) {
    for (const size_t a : from.axes(Kind::shard)) {
      sharded_ = true;
      bytes_ /= ranks(a);
    }
  }

  std::optional<DTensorRoute> take() {
    if (sharded_ && mesh_.ndim() > 1) {
      for (size_t a = mesh_.ndim(); a-- > 0;) {
        if (!hop(a, nests_alike(a) ? target_[a] : Replicate())) return {};
      }
    }
    for (size_t a = 0; a < mesh_.ndim(); ++a) {
      if (!hop(a, target_[a])) return {};
    }
    return route_;
  }

 private:
  double ranks(size_t axis) const { return static_cast<double>(mesh_.size(axis)); }

  // Whether the dimension that the target cuts here is cut by the same axes to the left, now and in the end.
  bool nests_alike(size_t axis) const {
    if (target_[axis].kind != Kind::shard) return true;
    const auto cuts = [&](const Placement& p) { return p.kind == Kind::shard && p.dim == target_[axis].dim; };
    for (size_t a = 0; a < axis; ++a) {
      if (cuts(now_[a]) != cuts(target_[a])) return false;
    }
    return true;
  }

  double ring_us(size_t axis, double bytes, const Curve& curve) const {
    const double hops = ranks(axis) - 1;
    return topology_.base_us + hops * links_[axis].latency_us + curve(bytes * hops / ranks(axis));
  }

  bool hop(size_t axis, const Placement& after) {
    const Placement before = now_[axis];
    if (before == after) return true;
    const double n = ranks(axis);
    const Link& link = links_[axis];
    double us = 0;
    if (before.kind == Kind::shard && after.kind == Kind::replicate) {
      bytes_ *= n;
      us = ring_us(axis, bytes_, link.transfer);
    } else if (before.kind == Kind::shard && after.kind == Kind::shard) {
      us = ring_us(axis, bytes_, link.of_exchange()) + topology_.exchange_base_us - topology_.base_us;
    } else if (before.kind == Kind::partial && after.kind == Kind::replicate) {
      us = link.all_reduce.knots.empty()
               ? ring_us(axis, bytes_, link.of_scatter()) + ring_us(axis, bytes_, link.transfer) - topology_.base_us
               : ring_us(axis, bytes_, link.all_reduce) + (n - 1) * link.latency_us;
    } else if (before.kind == Kind::partial && after.kind == Kind::shard) {
      us = ring_us(axis, bytes_, link.of_scatter());
      bytes_ /= n;
    } else if (before.kind == Kind::replicate && after.kind == Kind::shard) {
      bytes_ /= n;
    } else if (before.kind != Kind::replicate) {
      return false;  // a shard or another operation does not become pending
    }
    route_.hops.push_back({axis, before, after, us});
    route_.cost_us += us;
    now_[axis] = after;
    return true;
  }

  const Mesh& mesh_;
  const Topology& topology_;
  std::vector<Link> links_;
  std::vector<Placement> now_, target_;
  double bytes_;
  bool sharded_ = false;
  DTensorRoute route_;
};

}  // namespace

std::optional<DTensorRoute> dtensor_route(const Layout& from, const Layout& to, const Dims& shape, DType dtype,
                                          const Topology& topology) {
  const Layout source = from.resolved(shape), target = to.resolved(shape);
  if (!(source.mesh() == target.mesh()) || !known_to_dtensor(source) || !known_to_dtensor(target)) return {};
  const double bytes = static_cast<double>(volume(shape)) * static_cast<double>(size_bytes(dtype));
  return Route(source, target, bytes, topology).take();
}

}  // namespace tessera
