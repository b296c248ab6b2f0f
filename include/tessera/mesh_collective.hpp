// Collectives along one axis of a mesh that was made with Mesh::over().
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include <tessera/collective.hpp>
#include <tessera/mesh.hpp>

namespace tessera {

// An axis of a mesh, by name or by number; -1 is the last.
class AxisOf {
 public:
  AxisOf(const char* name) : name_(name) {}
  AxisOf(std::string_view name) : name_(name) {}
  AxisOf(const std::string& name) : name_(name) {}
  AxisOf(int number) : number_(number) {}
  // Throws ShapeError where the mesh has none such.
  const std::string& in(const Mesh& mesh) const;

 private:
  std::optional<std::string_view> name_;
  int number_ = 0;
};

// All are collective along the axis: the ranks that differ on it only call them together. The source is the first of these.
// A rank outside the mesh takes no part: it returns at once. They throw what collectives throw (collective.hpp). start_*:
// on the axis's own worker; the tensors are kept until it is done.

// The source's tensor, in everybody's. At(0) → Replicate. Shapes and dtypes are the same.
void mesh_broadcast(const Tensor& tensor, const Mesh& mesh, const AxisOf& axis, const Site& site = Site::current());
Work start_mesh_broadcast(const Tensor& tensor, const Mesh& mesh, const AxisOf& axis,
                          const Site& site = Site::current());

// Part i of the source's to coordinate i's output. Others give no parts, or any: they are not looked at. The parts may differ
// in shape, each as the output it goes to.
void mesh_scatter(const Tensor& output, const std::vector<Tensor>& parts, const Mesh& mesh, const AxisOf& axis,
                  const Site& site = Site::current());
Work start_mesh_scatter(const Tensor& output, const std::vector<Tensor>& parts, const Mesh& mesh, const AxisOf& axis,
                        const Site& site = Site::current());

// From a cut along gather_dim, which may be ragged, to that of torch.chunk along shard_dim; an all-to-all on every
// transport. Undefined on a rank outside the mesh.
Tensor shard_dim_alltoall(const Tensor& x, int64_t gather_dim, int64_t shard_dim, const Mesh& mesh, const AxisOf& axis,
                          const Site& site = Site::current());

}  // namespace tessera
