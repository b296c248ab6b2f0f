// The C++ face: the operators with a Comm in place of its name.
#include <tessera/torch.hpp>

#include <ATen/ops/empty.h>

#include "call.hpp"

namespace tessera {
namespace {

namespace call = torch_front::call;

std::string named(Comm& comm, const Site& site) {
  detail::set_next_site(site);
  return torch_name(comm);
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

std::string_view text(GradReduce grad) {
  return grad == GradReduce::slice ? "slice" : grad == GradReduce::mean ? "mean" : "sum";
}

// Autograd wants a tensor on every rank.
at::Tensor or_nothing(const at::Tensor& x) { return x.defined() ? x : at::empty({}); }

// A tensor without dimensions counts as one row.
at::Tensor in_rows(const at::Tensor& x) { return x.defined() && x.dim() == 0 ? x.unsqueeze(0) : x; }

// Of an x that is not there the dispatcher would tell this rank alone; a call of the core's tells all.
void require(Comm& comm, const at::Tensor& x, detail::OpCode op, const Site& site) {
  if (x.defined()) return;
  const detail::Description nothing{.op = op};
  detail::Outcome none;
  detail::execute(comm, {&nothing, 1}, {&none, 1}, site);
}

GatheredTorch gathered(std::tuple<at::Tensor, at::Tensor>&& pair) {
  return {std::move(std::get<0>(pair)), std::move(std::get<1>(pair))};
}

}  // namespace

GatheredTorch all_gather(Comm& comm, const at::Tensor& x, int64_t dim, const at::Tensor& sizes, GradReduce grad,
                         const Site& site) {
  require(comm, x, detail::OpCode::all_gather, site);
  const std::string name = named(comm, site);
  return gathered(call::all_gather(in_rows(x), dim, optional(sizes), std::nullopt, text(grad), 1, name));
}

std::vector<at::Tensor> all_gather_same(Comm& comm, const at::Tensor& x, GradReduce grad, const Site& site) {
  require(comm, x, detail::OpCode::all_gather_same, site);
  return all_gather(comm, x.unsqueeze(0), 0, {}, grad, site).tensor.unbind();
}

at::Tensor gather_sizes(Comm& comm, const at::Tensor& x, int64_t dim, const Site& site) {
  require(comm, x, detail::OpCode::gather_sizes, site);
  const std::string name = named(comm, site);
  return call::gather_sizes(in_rows(x), dim, name);
}

at::Tensor reduce_scatter(Comm& comm, const at::Tensor& x, int64_t dim, const at::Tensor& sizes, Reduction op,
                          const Site& site) {
  require(comm, x, detail::OpCode::reduce_scatter, site);
  const std::string comm_name = named(comm, site);
  return call::reduce_scatter(in_rows(x), dim, optional(sizes), std::nullopt, name(op.op), op.factor, comm_name);
}

at::Tensor all_reduce(Comm& comm, const at::Tensor& x, Reduction op, const Site& site) {
  require(comm, x, detail::OpCode::all_reduce, site);
  const std::string comm_name = named(comm, site);
  return call::all_reduce(x, name(op.op), op.factor, comm_name);
}

GatheredTorch all_to_all(Comm& comm, const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                         const at::Tensor& sizes, const Site& site) {
  require(comm, x, detail::OpCode::all_to_all, site);
  const std::string name = named(comm, site);
  return gathered(call::all_to_all(x, split_dim, concat_dim, optional(sizes), std::nullopt, std::nullopt, name));
}

GatheredTorch all_to_all_v(Comm& comm, const at::Tensor& x, const at::Tensor& send_sizes, const at::Tensor& recv_sizes,
                           int64_t dim, const Site& site) {
  require(comm, x, detail::OpCode::all_to_all_v, site);
  const std::string name = named(comm, site);
  return gathered(call::all_to_all_v(in_rows(x), send_sizes, optional(recv_sizes), dim, std::nullopt, name));
}

at::Tensor broadcast(Comm& comm, const at::Tensor& x, int64_t root, const Site& site) {
  const std::string name = named(comm, site);
  return call::broadcast(or_nothing(x), x.defined(), root, std::nullopt, 1, name);
}

GatheredTorch scatter(Comm& comm, const at::Tensor& x, int64_t root, int64_t dim, const at::Tensor& sizes,
                      const Site& site) {
  const std::string name = named(comm, site);
  return gathered(call::scatter(or_nothing(in_rows(x)), root, dim, optional(sizes), std::nullopt, name));
}

GatheredTorch gather(Comm& comm, const at::Tensor& x, int64_t root, int64_t dim, const Site& site) {
  require(comm, x, detail::OpCode::gather, site);
  const std::string name = named(comm, site);
  return gathered(call::gather(in_rows(x), root, dim, std::nullopt, std::nullopt, name));
}

at::Tensor reduce(Comm& comm, const at::Tensor& x, int64_t root, Reduction op, const Site& site) {
  require(comm, x, detail::OpCode::reduce, site);
  const std::string comm_name = named(comm, site);
  return call::reduce(x, root, name(op.op), op.factor, comm_name);
}

std::vector<GatheredTorch> all_gather(Comm& comm, const std::vector<at::Tensor>& xs, int64_t dim, GradReduce grad,
                                      const Site& site) {
  const std::string name = named(comm, site);
  std::vector<GatheredTorch> results;
  std::vector<at::Tensor> all_rows;
  for (const at::Tensor& x : xs) all_rows.push_back(in_rows(x));
  for (auto& pair : torch_front::all_gather_list(all_rows, dim, text(grad), name)) {
    results.push_back(gathered(std::move(pair)));
  }
  return results;
}

std::vector<at::Tensor> all_reduce(Comm& comm, const std::vector<at::Tensor>& xs, Reduction op, const Site& site) {
  const std::string comm_name = named(comm, site);
  return torch_front::all_reduce_list(xs, name(op.op), op.factor, comm_name);
}

at::Tensor split(const Comm& comm, const at::Tensor& x, int64_t dim, const at::Tensor& sizes) {
  return torch_front::own_piece(in_rows(x), dim, sizes, comm);
}

}  // namespace tessera
