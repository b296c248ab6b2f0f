#include <tessera/cost.hpp>

#include <limits>

#include <tessera/error.hpp>

namespace tessera {
namespace {

constexpr double kBandwidth = 87.7;  // GiB/s within a host
constexpr double kLatencyUs = 0.6;
constexpr double kOutsideBandwidth = 0.22;  // of that, between hosts
constexpr double kOutsideLatencyUs = 2.7;
constexpr double kSeedBaseUs = 6.6;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A ring of so many hops, each of which carries one n-th of the bytes.
double ring_cost(double bytes_gb, const MeshTopoInfo& topo, size_t mesh_dim, int64_t hops) {
  const auto devices = static_cast<double>(topo.mesh_dim_devices[mesh_dim]);
  const double latency = kSeedBaseUs + static_cast<double>(hops) * topo.mesh_dim_latency[mesh_dim];
  const double seconds = bytes_gb * static_cast<double>(hops) / devices / topo.mesh_dim_bandwidth[mesh_dim];
  return latency + seconds * 1e6;
}

void refuse_at(const Layout& layout) {
  const auto axes = layout.axes(Placement::Kind::at);
  if (axes.empty()) return;
  throw ShapeError(fmt::format("axis {} has {}, which DTensor's cost model does not know: use plan()",
                               layout.mesh().axes()[axes[0]].name, layout.placements()[axes[0]]));
}

}  // namespace

int64_t spec_to_bytes(const TensorSpec& spec) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(volume(spec.shape), size_bytes(spec.dtype), &bytes)) {
    throw ShapeError(fmt::format("a tensor of shape {} has more than 2^63 - 1 bytes", spec.shape));
  }
  return bytes;
}

MeshTopoInfo MeshTopoInfo::build_from_mesh(const Mesh& mesh, int64_t devices_per_host) {
  if (devices_per_host < 1) {
    throw Error(fmt::format("devices_per_host is {}: a host has 1 device or more", devices_per_host));
  }
  MeshTopoInfo info{
      mesh, {}, std::vector<double>(mesh.ndim(), kBandwidth), std::vector<double>(mesh.ndim(), kLatencyUs)};
  for (const MeshAxis& axis : mesh.axes()) info.mesh_dim_devices.push_back(axis.size);
  int64_t devices = 1;
  for (size_t a = mesh.ndim(); a-- > 0;) {
    devices *= mesh.size(a);
    if (devices <= devices_per_host) continue;
    info.mesh_dim_bandwidth[a] *= kOutsideBandwidth;
    info.mesh_dim_latency[a] = kOutsideLatencyUs;
  }
  return info;
}

double allgather_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim) {
  return ring_cost(bytes_gb, mesh_topo, mesh_dim, mesh_topo.mesh_dim_devices[mesh_dim] - 1);
}

double allreduce_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim) {
  return ring_cost(bytes_gb, mesh_topo, mesh_dim, 2 * mesh_topo.mesh_dim_devices[mesh_dim] - 1);
}

double reduce_scatter_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim) {
  return ring_cost(bytes_gb, mesh_topo, mesh_dim, mesh_topo.mesh_dim_devices[mesh_dim] - 1);
}

double redistribute_cost(const TensorSpec& current, const TensorSpec& target, int64_t devices_per_host) {
  if (!(current.layout.mesh() == target.layout.mesh())) return kInfinite;
  if (current.layout.mesh().is_outside()) return 0;
  if (current.layout.is_replicated()) return 0;
  refuse_at(current.layout);
  refuse_at(target.layout);
  const Layout from = current.layout.resolved(current.shape), to = target.layout.resolved(target.shape);
  const MeshTopoInfo topo = MeshTopoInfo::build_from_mesh(from.mesh(), devices_per_host);
  double bytes_gb = static_cast<double>(spec_to_bytes(current)) / 1024 / 1024 / 1024;
  for (const size_t a : from.axes(Placement::Kind::shard)) bytes_gb /= static_cast<double>(topo.mesh_dim_devices[a]);

  using Kind = Placement::Kind;
  double cost = 0;
  for (size_t a = 0; a < from.mesh().ndim(); ++a) {
    const Placement &before = from.placements()[a], &after = to.placements()[a];
    if (before == after) continue;
    const auto devices = static_cast<double>(topo.mesh_dim_devices[a]);
    if (before.kind == Kind::shard && after.kind == Kind::partial) return kInfinite;
    if (before.kind == Kind::shard && after.kind == Kind::replicate) {
      bytes_gb *= devices;
      cost += allgather_cost(bytes_gb, topo, a);
    } else if (before.kind == Kind::shard) {
      cost += allgather_cost(bytes_gb, topo, a) + 1;
    } else if (before.kind == Kind::partial && after.kind == Kind::replicate) {
      cost += allreduce_cost(bytes_gb, topo, a);
    } else if (before.kind == Kind::partial && after.kind == Kind::shard) {
      cost += reduce_scatter_cost(bytes_gb, topo, a);
      bytes_gb /= devices;
    }
  }
  return cost;
}

}  // namespace tessera
