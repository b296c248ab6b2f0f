#include <tessera/mesh_collective.hpp>

#include <algorithm>
#include <map>
#include <mutex>

#include "comm/comm_state.hpp"

namespace tessera {

using detail::Description;
using detail::OpCode;
using detail::Outcome;

// The communicators of a mesh, each made when it is asked for first.
class detail::MeshComms {
 public:
  explicit MeshComms(Comm& comm) : parent_(comm.state().shared_from_this()) {}

  Comm& along(const Mesh& mesh, const std::vector<size_t>& axes, const Site& site) {
    {
      std::lock_guard lock(guard_);
      if (const auto found = made_.find(axes); found != made_.end()) return found->second;
    }
    Comm comm = make(mesh, axes, site);
    std::lock_guard lock(guard_);
    return made_.emplace(axes, std::move(comm)).first->second;
  }

 private:
  Comm make(const Mesh& mesh, const std::vector<size_t>& axes, const Site& site) {
    int64_t color = -1, key = 0;
    std::string name;
    for (const size_t axis : axes) name += (name.empty() ? "" : ",") + mesh.axes()[axis].name;
    if (const auto at = mesh.coordinate(parent_.rank())) {
      Dims others = *at;
      for (const size_t axis : axes) {
        others[axis] = 0;
        key = key * mesh.size(axis) + (*at)[axis];
      }
      color = mesh.index_of(others);
    }
    return detail::split(parent_, color, key, name, site);
  }

  Comm parent_;
  std::mutex guard_;
  std::map<std::vector<size_t>, Comm> made_;
};

namespace {

void check_ranks(const Comm& comm, const Mesh& mesh) {
  for (const int rank : mesh.ranks()) {
    if (rank < comm.size()) continue;
    throw ShapeError(fmt::format("the mesh {} has rank {}, the communicator \"{}\" only {} ranks", mesh, rank,
                                 comm.name(), comm.size()));
  }
}

bool takes_part(const Mesh& mesh, const std::string& axis) { return mesh.comm(axis).defined(); }

std::vector<Description> scatter_of(const Tensor& output, const std::vector<Tensor>& parts, const Comm& comm) {
  const int n = comm.size();
  std::vector<Description> batch(static_cast<size_t>(n));
  const bool source = comm.rank() == 0;
  for (int r = 0; r < n; ++r) {
    Description& d = batch[static_cast<size_t>(r)];
    d.op = OpCode::scatter_parts;
    d.extra[0] = r;
    if (source && static_cast<size_t>(r) < parts.size()) d.x = parts[static_cast<size_t>(r)];
    if (r == comm.rank()) d.out = output;
  }
  if (source && parts.size() != static_cast<size_t>(n)) {
    batch[0].problem = std::make_exception_ptr(
        ShapeError(fmt::format("{} parts for {} ranks: the source gives one for each", parts.size(), n)));
  } else if (!output.defined()) {
    batch[0].problem = std::make_exception_ptr(ShapeError("output is undefined"));
  }
  for (size_t r = 0; source && batch[0].problem == nullptr && r < parts.size(); ++r) {
    if (!parts[r].defined())
      batch[0].problem = std::make_exception_ptr(ShapeError(fmt::format("parts[{}] is undefined", r)));
  }
  return batch;
}

// What is wrong with a cut along one dimension that becomes one of another; null: nothing.
std::exception_ptr wrong_dims(const Tensor& x, int64_t gather_dim, int64_t shard_dim) {
  if (!x.defined()) return nullptr;
  try {
    const int64_t from = normalize_dim(gather_dim, static_cast<size_t>(x.ndim()), "gather_dim"),
                  to = normalize_dim(shard_dim, static_cast<size_t>(x.ndim()), "shard_dim");
    if (from != to) return nullptr;
    throw ShapeError(
        fmt::format("gather_dim and shard_dim are both {}: x is cut along that dimension already. To cut it in "
                    "other places use redistribute() or all_to_all_v",
                    to));
  } catch (const ShapeError&) {
    return std::current_exception();
  }
}

Description broadcast_of(const Tensor& tensor, const Comm& comm) {
  Description d{.op = OpCode::broadcast};
  (comm.rank() == 0 ? d.x : d.out) = tensor;
  if (!tensor.defined()) d.problem = std::make_exception_ptr(ShapeError("the tensor is undefined"));
  return d;
}

}  // namespace

Mesh Mesh::over(Comm& comm, std::vector<MeshAxis> axes, std::vector<int> ranks, const Site& site) {
  Mesh mesh;
  // What is wrong here, or another than elsewhere, is told to all before anybody waits for a communicator.
  Description agreed{.op = OpCode::barrier};
  try {
    mesh = ranks.empty() ? Mesh(std::move(axes)) : Mesh(std::move(axes), std::move(ranks));
    check_ranks(comm, mesh);
  } catch (const Error&) {
    agreed.problem = std::current_exception();
  }
  const std::string text = fmt::format("Mesh::over {}", mesh);
  agreed.note = &text;
  Outcome outcome;
  detail::execute(comm, {&agreed, 1}, {&outcome, 1}, site);
  mesh.comms_ = std::make_shared<detail::MeshComms>(comm);
  mesh.outside_ = !mesh.contains(comm.rank());
  for (const MeshAxis& axis : mesh.axes()) mesh.comm_along({axis.name}, site);
  return mesh;
}

Comm& Mesh::comm_along(const std::vector<std::string>& names, const Site& site) const {
  if (comms_ == nullptr) {
    throw Error(
        fmt::format("the mesh {} is for planning: make it with Mesh::over(comm, …) to have communicators", *this));
  }
  std::vector<size_t> numbers;
  for (const std::string& name : names) {
    numbers.push_back(axis(name));
    if (std::count(numbers.begin(), numbers.end(), numbers.back()) > 1) {
      throw ShapeError(fmt::format("the axis {} is named twice: name each once", name));
    }
  }
  return comms_->along(*this, numbers, site);
}

const std::string& AxisOf::in(const Mesh& mesh) const {
  if (name_) return mesh.axes()[mesh.axis(*name_)].name;
  const auto number = static_cast<size_t>(normalize_dim(number_, mesh.ndim(), "axis"));
  return mesh.axes()[number].name;
}

void mesh_broadcast(const Tensor& tensor, const Mesh& mesh, const AxisOf& axis, const Site& site) {
  const std::string& name = axis.in(mesh);
  if (!takes_part(mesh, name)) return;
  const Description description = broadcast_of(tensor, mesh.comm(name));
  Outcome outcome;
  detail::execute(mesh.comm(name), {&description, 1}, {&outcome, 1}, site);
}

Work start_mesh_broadcast(const Tensor& tensor, const Mesh& mesh, const AxisOf& axis, const Site& site) {
  const std::string& name = axis.in(mesh);
  if (!takes_part(mesh, name)) return {};
  return Work(detail::start(mesh.comm(name), {broadcast_of(tensor, mesh.comm(name))}, site,
                            std::make_shared<std::vector<Outcome>>()));
}

void mesh_scatter(const Tensor& output, const std::vector<Tensor>& parts, const Mesh& mesh, const AxisOf& axis,
                  const Site& site) {
  const std::string& name = axis.in(mesh);
  if (!takes_part(mesh, name)) return;
  Comm& comm = mesh.comm(name);
  std::vector<Outcome> outcomes(static_cast<size_t>(comm.size()));
  detail::execute(comm, scatter_of(output, parts, comm), outcomes, site);
}

Work start_mesh_scatter(const Tensor& output, const std::vector<Tensor>& parts, const Mesh& mesh, const AxisOf& axis,
                        const Site& site) {
  const std::string& name = axis.in(mesh);
  if (!takes_part(mesh, name)) return {};
  Comm& comm = mesh.comm(name);
  return Work(detail::start(comm, scatter_of(output, parts, comm), site, std::make_shared<std::vector<Outcome>>()));
}

Tensor shard_dim_alltoall(const Tensor& x, int64_t gather_dim, int64_t shard_dim, const Mesh& mesh, const AxisOf& axis,
                          const Site& site) {
  const std::string& name = axis.in(mesh);
  if (!takes_part(mesh, name)) return {};
  Description description = AllToAll::describe({.x = x, .split_dim = shard_dim, .concat_dim = gather_dim});
  description.problem = wrong_dims(x, gather_dim, shard_dim);
  Outcome outcome;
  detail::execute(mesh.comm(name), {&description, 1}, {&outcome, 1}, site);
  return std::move(outcome.tensor);
}

}  // namespace tessera
