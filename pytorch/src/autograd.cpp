// The gradients of the operators. Every one is linear, so that its backward needs no values of the forward, only shapes and
// sizes; and it is an operator again, so that it can be traced, and differentiated in its turn.
#include <torch/library.h>

#include "call.hpp"
#include "recorded.hpp"
#include "redistribute.hpp"

namespace tessera::torch_front {

double linear(std::string_view op, double factor, std::string_view comm) {
  const auto found = weight(op, factor, torch_comm(comm).size());
  if (!found) throw no_adjoint(op);
  return *found;
}

Backward backward_of_gather(std::string_view grad, int64_t dim, const at::Tensor& sizes, c10::SymInt own, double scale,
                            const std::string& comm) {
  if (grad == "slice") {
    return [=](const at::Tensor& g) { return call::split(g, dim, sizes, own, comm); };
  }
  const std::string_view op = grad == "mean" ? "avg" : scale != 1 ? "premul_sum" : "sum";
  return [=](const at::Tensor& g) { return call::reduce_scatter(g, dim, sizes, own, op, scale, comm); };
}

namespace with_gradient {
namespace {

using call::Name;
using call::OptionalInt;
using call::OptionalShape;
using call::Pair;

bool is_root(Name comm, int64_t root) { return torch_comm(comm).rank() == root; }

// What backward() will need of sizes that are the caller's to write to.
at::Tensor kept(const at::Tensor& sizes) { return copy_of_sizes(sizes); }
OptionalTensor kept(const OptionalTensor& sizes) { return sizes ? OptionalTensor(copy_of_sizes(*sizes)) : sizes; }

Pair all_gather(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt total, Name grad,
                double scale, Name comm) {
  return guarded([&] {
    const Recorded recorded("all_gather", x, grad != "slice");
    Pair result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::all_gather(x, dim, sizes, total, grad, scale, comm);
    }();
    if (recorded.wanted()) {
      const auto& [gathered, found] = result;
      recorded.attach(gathered, backward_of_gather(grad, dim, kept(found), x.sym_size(dim), scale, std::string(comm)));
    }
    return result;
  });
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt own, Name op,
                          double factor, Name comm) {
  return guarded([&] {
    const Recorded recorded("reduce_scatter", x, true);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::reduce_scatter(x, dim, sizes, own, op, factor, comm);
    }();
    if (!recorded.wanted()) return result;
    const double scale = linear(op, factor, comm);
    return recorded.attach(
        result, [=, sizes = kept(sizes), total = x.sym_size(dim), name = std::string(comm)](const at::Tensor& g) {
          return std::get<0>(call::all_gather(g, dim, sizes, total, "sum", scale, name));
        });
  });
}

at::Tensor all_reduce(const at::Tensor& x, Name op, double factor, Name comm) {
  return guarded([&] {
    const Recorded recorded("all_reduce", x, true);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::all_reduce(x, op, factor, comm);
    }();
    if (!recorded.wanted()) return result;
    linear(op, factor, comm);
    return recorded.attach(result, [=, op_name = std::string(op), name = std::string(comm)](const at::Tensor& g) {
      return call::all_reduce(g, op_name, factor, name);
    });
  });
}

Pair all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim, const OptionalTensor& sizes,
                OptionalInt own, OptionalInt total, Name comm) {
  return guarded([&] {
    const Recorded recorded("all_to_all", x, true);
    Pair result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::all_to_all(x, split_dim, concat_dim, sizes, own, total, comm);
    }();
    if (!recorded.wanted()) return result;
    const at::Tensor found = kept(std::get<1>(result));
    recorded.attach(std::get<0>(result), [=, x_own = x.sym_size(concat_dim), x_total = x.sym_size(split_dim),
                                          name = std::string(comm)](const at::Tensor& g) {
      return std::get<0>(call::all_to_all(g, concat_dim, split_dim, found, x_own, x_total, name));
    });
    return result;
  });
}

Pair all_to_all_v(const at::Tensor& x, const at::Tensor& send_sizes, const OptionalTensor& recv_sizes, int64_t dim,
                  OptionalInt total, Name comm) {
  return guarded([&] {
    const Recorded recorded("all_to_all_v", x, true);
    Pair result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::all_to_all_v(x, send_sizes, recv_sizes, dim, total, comm);
    }();
    if (!recorded.wanted()) return result;
    const at::Tensor found = kept(std::get<1>(result));
    recorded.attach(std::get<0>(result), [=, send_sizes = kept(send_sizes), x_total = x.sym_size(dim),
                                          name = std::string(comm)](const at::Tensor& g) {
      return std::get<0>(call::all_to_all_v(g, found, send_sizes, dim, x_total, name));
    });
    return result;
  });
}

// The gradient of what only the root gives: the root's, and zero elsewhere.
at::Tensor on_root(bool root, const at::Tensor& grad, const std::vector<c10::SymInt>& shape) {
  if (root) return grad;
  const at::Tensor zeros = grad.new_zeros_symint(shape);
  // Empty elsewhere, its sum is zero; but with it the rank takes part in the gradient of the gradient.
  return grad.requires_grad() ? zeros.add(grad.sum()) : zeros;
}

at::Tensor broadcast(const at::Tensor& x, bool given, int64_t root, OptionalShape shape, double scale, Name comm) {
  return guarded([&] {
    const Recorded recorded("broadcast", x, true);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::broadcast(x, given, root, shape, scale, comm);
    }();
    if (!recorded.wanted()) return result;
    return recorded.attach(result, [=, mine = is_root(comm, root), x_shape = x.sym_sizes().vec(),
                                    name = std::string(comm)](const at::Tensor& g) {
      return on_root(mine, call::reduce(g, root, scale != 1 ? "premul_sum" : "sum", scale, name), x_shape);
    });
  });
}

at::Tensor reduce(const at::Tensor& x, int64_t root, Name op, double factor, Name comm) {
  return guarded([&] {
    const Recorded recorded("reduce", x, true);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::reduce(x, root, op, factor, comm);
    }();
    if (!recorded.wanted()) return result;
    const double scale = linear(op, factor, comm);
    return recorded.attach(result, [=, mine = is_root(comm, root), shape = x.sym_sizes().vec(),
                                    name = std::string(comm)](const at::Tensor& g) {
      return call::broadcast(g, mine, root, c10::SymIntArrayRef(shape), scale, name);
    });
  });
}

Pair scatter(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalShape shape,
             Name comm) {
  return guarded([&] {
    const Recorded recorded("scatter", x, true);
    Pair result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::scatter(x, root, dim, sizes, shape, comm);
    }();
    if (!recorded.wanted()) return result;
    const at::Tensor found = kept(std::get<1>(result));
    const bool mine = is_root(comm, root);
    const c10::SymInt total = mine ? x.sym_size(dim) : c10::SymInt(0);
    recorded.attach(std::get<0>(result),
                    [=, x_shape = x.sym_sizes().vec(), name = std::string(comm)](const at::Tensor& g) {
                      return on_root(mine, std::get<0>(call::gather(g, root, dim, found, total, name)), x_shape);
                    });
    return result;
  });
}

Pair gather(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalInt total, Name comm) {
  return guarded([&] {
    const Recorded recorded("gather", x, true);
    Pair result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::gather(x, root, dim, sizes, total, comm);
    }();
    if (!recorded.wanted()) return result;
    const at::Tensor found = kept(std::get<1>(result));
    recorded.attach(std::get<0>(result),
                    [=, shape = x.sym_sizes().vec(), name = std::string(comm)](const at::Tensor& g) {
                      return std::get<0>(call::scatter(g, root, dim, found, c10::SymIntArrayRef(shape), name));
                    });
    return result;
  });
}

at::Tensor split(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt own, Name comm) {
  return guarded([&] {
    const Recorded recorded("split", x, false);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::split(x, dim, sizes, own, comm);
    }();
    if (!recorded.wanted()) return result;
    return recorded.attach(result, [=, sizes = kept(sizes), total = x.sym_size(dim), name = std::string(comm)](
                                       const at::Tensor& g) { return call::embed(g, dim, sizes, total, name); });
  });
}

at::Tensor embed(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt total, Name comm) {
  return guarded([&] {
    const Recorded recorded("embed", x, false);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::embed(x, dim, sizes, total, comm);
    }();
    if (!recorded.wanted()) return result;
    return recorded.attach(result, [=, sizes = kept(sizes), own = x.sym_size(dim), name = std::string(comm)](
                                       const at::Tensor& g) { return call::split(g, dim, sizes, own, name); });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
  m.impl("all_gather", TORCH_FN(call::Listed<all_gather>::run));
  m.impl("gather_sizes", ::torch::CppFunction::makeFallthrough());
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
  m.impl("redistribute", TORCH_FN(redistribute_with_gradient));
}

}  // namespace with_gradient
}  // namespace tessera::torch_front

void tessera::torch_front::keep_gradients() {}
