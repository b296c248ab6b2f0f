// The operators torch.ops.tessera.*, on tensors that have elements. What is known of the result's size beforehand is passed
// along for those who only work out shapes: own, total and shape change nothing here.
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tessera/collective.hpp>

#include "border.hpp"
#include "redistribute.hpp"

namespace tessera::torch_front::with_elements {
namespace {

using call::OptionalInt;
using call::OptionalShape;
using call::Pair;

// A tensor that nothing was gathered to, as a loss can have it: empty.
at::Tensor nothing_of(const at::Tensor& x, at::IntArrayRef shape) { return x.new_empty(shape); }

Pair all_gather(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt, std::string_view grad,
                double scale, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    in.check_grad(grad);
    return in.result(
        in.run(AllGather{.x = in.tensor(x), .dim = dim, .sizes = in.sizes(sizes, "sizes"), .scale = scale}));
  });
}

at::Tensor gather_sizes(const at::Tensor& x, int64_t dim, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    return in.result(in.run(GatherSizes{.x = in.shape(x), .dim = dim}));
  });
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt,
                          std::string_view op, double factor, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    return in.result(in.run(ReduceScatter{
        .x = in.tensor(x), .dim = dim, .sizes = in.sizes(sizes, "sizes"), .op = in.reduction(op, factor)}));
  });
}

at::Tensor all_reduce(const at::Tensor& x, std::string_view op, double factor, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    return in.result(in.run(AllReduce{.x = in.tensor(x), .op = in.reduction(op, factor)}));
  });
}

Pair all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim, const OptionalTensor& sizes, OptionalInt,
                OptionalInt, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    return in.result(in.run(AllToAll{
        .x = in.tensor(x), .split_dim = split_dim, .concat_dim = concat_dim, .sizes = in.sizes(sizes, "sizes")}));
  });
}

Pair all_to_all_v(const at::Tensor& x, const at::Tensor& send_sizes, const OptionalTensor& recv_sizes, int64_t dim,
                  OptionalInt, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    return in.result(in.run(AllToAllV{.x = in.tensor(x),
                                      .send_sizes = in.sizes(send_sizes, "send_sizes"),
                                      .recv_sizes = in.sizes(recv_sizes, "recv_sizes"),
                                      .dim = dim}));
  });
}

// x, where it is not given, only stands for a tensor: autograd wants one on every rank.
at::Tensor broadcast(const at::Tensor& x, bool given, int64_t root, OptionalShape, double scale,
                     std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    Broadcast op{.root = root, .scale = scale};
    if (given) op.x = comm.rank() == root ? in.tensor(x) : in.shape(x);
    // The result of an operator is never its argument. What lies elsewhere is copied to the host and back.
    if (comm.rank() == root && op.x.defined() && x.is_cpu()) op.out = comm.allocate(op.x.dtype(), op.x.shape());
    return in.result(in.run(std::move(op)));
  });
}

// One without a dimension stands for none, on the root too; and where the part's shape is known, x does on other ranks.
Pair scatter(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalShape shape,
             std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    Scatter op{.root = root, .dim = dim};
    if (x.dim() > 0 && comm.rank() == root) op.x = in.tensor(x);
    if (x.dim() > 0 && comm.rank() != root && !shape) op.x = in.shape(x);
    if (comm.rank() == root && x.dim() > 0) op.sizes = in.sizes(sizes, "sizes");
    return in.result(in.run(std::move(op)));
  });
}

Pair gather(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalInt,
            std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    Pair result =
        in.result(in.run(Gather{.x = in.tensor(x), .root = root, .dim = dim, .sizes = in.sizes(sizes, "sizes")}));
    if (!std::get<0>(result).defined()) {
      std::vector<int64_t> shape = x.sizes().vec();
      shape[static_cast<size_t>(normalize_dim(dim, shape.size()))] = 0;
      std::get<0>(result) = nothing_of(x, shape);
    }
    return result;
  });
}

at::Tensor reduce(const at::Tensor& x, int64_t root, std::string_view op, double factor, std::string_view name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    const at::Tensor result =
        in.result(in.run(Reduce{.x = in.tensor(x), .root = root, .op = in.reduction(op, factor)}));
    if (result.defined()) return result;
    std::vector<int64_t> shape = x.sizes().vec();
    shape.insert(shape.begin(), 0);
    return nothing_of(x, shape);
  });
}

at::Tensor split(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt, std::string_view name) {
  return guarded([&] { return own_piece(x, dim, sizes, torch_comm(name)).clone(); });
}

at::Tensor embed(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt, std::string_view name) {
  return guarded([&] {
    const Piece piece = piece_of(x, dim, sizes, torch_comm(name));
    std::vector<int64_t> shape = x.sizes().vec();
    shape[static_cast<size_t>(piece.dim)] = piece.total;
    at::Tensor whole = at::zeros(shape, x.options());
    whole.narrow(piece.dim, piece.start, piece.length).copy_(x);
    return whole;
  });
}

}  // namespace

// Two results are a list: torch keeps the order of calls with a size that is found out only where there is one result.
TORCH_LIBRARY(tessera, m) {
  m.def("all_gather(Tensor x, int dim, Tensor? sizes, SymInt? total, str grad, float scale, str comm) -> Tensor[]");
  m.def("gather_sizes(Tensor x, int dim, str comm) -> Tensor");
  m.def("reduce_scatter(Tensor x, int dim, Tensor? sizes, SymInt? own, str op, float factor, str comm) -> Tensor");
  m.def("all_reduce(Tensor x, str op, float factor, str comm) -> Tensor");
  m.def(
      "all_to_all(Tensor x, int split_dim, int concat_dim, Tensor? sizes, SymInt? own, SymInt? total, str comm) -> "
      "Tensor[]");
  m.def(
      "all_to_all_v(Tensor x, Tensor send_sizes, Tensor? recv_sizes, int dim, SymInt? total, str comm) -> "
      "Tensor[]");
  m.def("broadcast(Tensor x, bool given, int root, SymInt[]? shape, float scale, str comm) -> Tensor");
  m.def("scatter(Tensor x, int root, int dim, Tensor? sizes, SymInt[]? shape, str comm) -> Tensor[]");
  m.def("gather(Tensor x, int root, int dim, Tensor? sizes, SymInt? total, str comm) -> Tensor[]");
  m.def("reduce(Tensor x, int root, str op, float factor, str comm) -> Tensor");
  m.def("split(Tensor x, int dim, Tensor sizes, SymInt? own, str comm) -> Tensor");
  m.def("embed(Tensor x, int dim, Tensor sizes, SymInt? total, str comm) -> Tensor");
  m.def(
      "redistribute(Tensor x, SymInt[] shape, str source, str target, str plan, float scale, str convention, str comm) "
      "-> Tensor");
}

namespace {
void implement(::torch::Library& m) {
  m.impl("all_gather", TORCH_FN(call::Listed<all_gather>::run));
  m.impl("gather_sizes", TORCH_FN(gather_sizes));
  m.impl("reduce_scatter", TORCH_FN(reduce_scatter));
  m.impl("all_reduce", TORCH_FN(all_reduce));
  m.impl("all_to_all", TORCH_FN(call::Listed<all_to_all>::run));
  m.impl("all_to_all_v", TORCH_FN(call::Listed<all_to_all_v>::run));
  m.impl("broadcast", TORCH_FN(broadcast));
  m.impl("scatter", TORCH_FN(call::Listed<scatter>::run));
  m.impl("gather", TORCH_FN(call::Listed<gather>::run));
  m.impl("reduce", TORCH_FN(reduce));
  m.impl("split", TORCH_FN(split));
  m.impl("embed", TORCH_FN(embed));
  m.impl("redistribute", TORCH_FN(redistribute_elements));
}
}  // namespace

TORCH_LIBRARY_IMPL(tessera, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, CUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, XPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, MPS, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, PrivateUse1, m) { implement(m); }
// What cannot be used comes this far too, so that every rank is told of it, and none waits for the one that has it.
TORCH_LIBRARY_IMPL(tessera, SparseCPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, SparseCUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, SparseCsrCPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, SparseCsrCUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, QuantizedCPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, QuantizedCUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, NestedTensorCPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, NestedTensorCUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(tessera, MkldnnCPU, m) { implement(m); }

}  // namespace tessera::torch_front::with_elements

void tessera::torch_front::keep_operators() {
  keep_gradients();
  keep_shapes();
}
