// The cost model of PyTorch's DTensor under its own names, figure for figure as it was when sharding strategies came to be
// chosen by it. plan() prices with the same constants, the steps that can be run, and 2(n - 1) hops for an all-reduce.
#pragma once

#include <vector>

#include <tessera/dtype.hpp>
#include <tessera/layout.hpp>

namespace tessera {

struct TensorSpec {
  Layout layout;
  Dims shape;
  DType dtype = DType::f32;
};

// Of the whole tensor, in bytes.
int64_t spec_to_bytes(const TensorSpec& spec);

struct MeshTopoInfo {
  Mesh mesh;
  std::vector<int64_t> mesh_dim_devices;
  std::vector<double> mesh_dim_bandwidth;  // GiB/s
  std::vector<double> mesh_dim_latency;    // µs

  // An axis leaves the host where it and those to its right have more than so many ranks.
  static MeshTopoInfo build_from_mesh(const Mesh& mesh, int64_t devices_per_host = 8);
};

// µs for bytes_gb GiB: of the gathered tensor, of the tensor, of the input.
double allgather_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim);
double allreduce_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim);  // counts 2n - 1 hops
double reduce_scatter_cost(double bytes_gb, const MeshTopoInfo& mesh_topo, size_t mesh_dim);

// One transition for each axis, from left to right, whether or not that order can be run: infinite to another mesh and from
// a shard to a pending sum, 0 from a tensor that is replicated everywhere and on a rank outside the mesh. Throws ShapeError
// for At, which it does not know.
double redistribute_cost(const TensorSpec& current, const TensorSpec& target, int64_t devices_per_host = 8);

}  // namespace tessera
