#include <tessera/gradient.hpp>

#include "layout/axis_layout.hpp"

namespace tessera {
namespace {

// What a linear reduction over the ranks multiplies each term by.
double weight(Comm& comm, detail::OpCode backward, Reduction op, const Site& site) {
  switch (op.op) {
    case ReduceOp::sum: return 1;
    case ReduceOp::avg: return 1.0 / comm.size();
    case ReduceOp::premul_sum: return op.factor;
    default: break;
  }
  const ArgumentError error(fmt::format("{} has no linear adjoint: differentiate it by hand", name(op.op)));
  detail::refuse(comm, backward, std::make_exception_ptr(error), site);
}

// The gradient of a list with one tensor for each rank: a reduction to each
// owner, all agreed on and moved together.
Tensor own_of_parts(Comm& comm, const std::vector<Tensor>& grads, GradReduce reduce, const Site& site) {
  if (grads.size() != static_cast<size_t>(comm.size())) {
    const ShapeError error(fmt::format("{} gradients for {} ranks: give one for each", grads.size(), comm.size()));
    if (reduce == GradReduce::slice) throw error;  // local, as the slice is
    detail::refuse(comm, detail::OpCode::reduce, std::make_exception_ptr(error), site);
  }
  if (reduce == GradReduce::slice) return grads[static_cast<size_t>(comm.rank())];
  const Reduction op = reduce == GradReduce::mean ? ReduceOp::avg : ReduceOp::sum;
  std::vector<Reduce> list;
  for (size_t r = 0; r < grads.size(); ++r) list.push_back({.x = grads[r], .root = static_cast<int64_t>(r), .op = op});
  return run(comm, list, site)[static_cast<size_t>(comm.rank())];
}

}  // namespace

Tensor all_gather_backward(Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes, GradReduce reduce,
                           const Site& site) {
  if (reduce == GradReduce::slice) return split(comm, grad, dim, sizes);
  return reduce_scatter(comm, grad, dim, sizes, reduce == GradReduce::mean ? ReduceOp::avg : ReduceOp::sum, site);
}

Tensor all_gather_parts_backward(Comm& comm, const std::vector<Tensor>& grads, GradReduce reduce, const Site& site) {
  return own_of_parts(comm, grads, reduce, site);
}

Tensor all_gather_same_backward(Comm& comm, const std::vector<Tensor>& grads, GradReduce reduce, const Site& site) {
  return own_of_parts(comm, grads, reduce, site);
}

Tensor split_backward(const Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes) {
  const int64_t d = normalize_dim(dim, grad.shape().size());
  Dims shape = grad.shape();
  shape[static_cast<size_t>(d)] = total(sizes);
  Tensor whole = Tensor::zeros(grad.dtype(), shape);
  split(comm, whole, d, sizes).copy_from(grad);
  return whole;
}

std::vector<Tensor> split_by_rank_backward(const Comm& comm, const Tensor& grad, const std::vector<Tensor>& parts) {
  std::vector<Tensor> grads;
  for (size_t r = 0; r < parts.size(); ++r) {
    grads.push_back(static_cast<int>(r) == comm.rank() ? grad : Tensor::zeros(parts[r].dtype(), parts[r].shape()));
  }
  return grads;
}

Tensor reduce_scatter_backward(Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes, Reduction op,
                               const Site& site) {
  return all_gather(comm, grad,
                    {.dim = dim, .sizes = sizes, .scale = weight(comm, detail::OpCode::all_gather, op, site)}, site)
      .tensor;
}

Tensor all_reduce_backward(Comm& comm, const Tensor& grad, Reduction op, const Site& site) {
  weight(comm, detail::OpCode::all_reduce, op, site);
  return all_reduce(comm, grad, op, {}, site);
}

Tensor all_to_all_backward(Comm& comm, const Tensor& grad, int64_t split_dim, int64_t concat_dim,
                           const Sizes& concat_sizes, const Site& site) {
  return all_to_all(comm, grad, {.split_dim = concat_dim, .concat_dim = split_dim, .sizes = concat_sizes}, site).tensor;
}

Tensor all_to_all_v_backward(Comm& comm, const Tensor& grad, const Sizes& send_sizes, const Sizes& recv_sizes,
                             int64_t dim, const Site& site) {
  return all_to_all_v(comm, grad, {.send_sizes = recv_sizes, .recv_sizes = send_sizes, .dim = dim}, site).tensor;
}

Tensor broadcast_backward(Comm& comm, const Tensor& grad, int64_t root, const Site& site) {
  return reduce(comm, grad, root, ReduceOp::sum, {}, site);
}

Tensor scatter_backward(Comm& comm, const Tensor& grad, int64_t root, int64_t dim, const Site& site) {
  return gather(comm, grad, root, dim, site).tensor;
}

Tensor gather_backward(Comm& comm, const Tensor& grad, int64_t root, int64_t dim, const Sizes& sizes,
                       const Site& site) {
  return scatter(comm, grad, root, dim, sizes, site).tensor;
}

Tensor reduce_backward(Comm& comm, const Tensor& grad, int64_t root, Reduction op, const Site& site) {
  return run(comm, Broadcast{.x = grad, .root = root, .scale = weight(comm, detail::OpCode::broadcast, op, site)},
             site);
}

Tensor send_backward(Comm& comm, int to, int64_t tag, const Site& site) { return recv(comm, to, tag, {}, site).tensor; }

void recv_backward(Comm& comm, const Tensor& grad, int source, int64_t tag, const Site& site) {
  send(comm, grad, source, tag, site);
}

}  // namespace tessera
