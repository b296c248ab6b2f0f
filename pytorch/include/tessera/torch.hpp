// The collectives on at::Tensor, with autograd.
//
//   tessera::run(4, [](tessera::Comm& comm) {
//     at::Tensor mine = at::rand({comm.rank() + 1, 8}).requires_grad_();
//     auto [all, sizes] = tessera::all_gather(comm, mine);   // ragged; tensors are viewed in place, the result is one copy
//     all.square().sum().backward();                         // mine.grad(): what every rank's loss contributes
//   });
//
// Each is as its namesake in collective.hpp: collective over `comm`, with the same errors and the same cost, and errors say
// so on every rank. Any strides; on another device than the CPU elements go by way of the host's memory, and results are
// where x is (on the CPU, where it is undefined). There backward() runs on the thread that called, as autograd does where
// its multithreading is off: it is switched off for that thread. Of meta tensors only the shape is worked out, where it does
// not depend on what other ranks have, and no rank is asked. A gradient is the adjoint for the loss that is the sum of what
// every rank computes; it is a collective again, so that every rank calls backward(). It can be differentiated again. If one
// rank needs a gradient, the result requires one on all of them: so all take part, even a rank whose own input needs none.
// Where some rank is under a NoGradGuard then, all get a MismatchError. min, max, prod and the bitwise operations have no
// gradient.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tessera/tessera.hpp>

namespace tessera {

struct GatheredTorch {
  at::Tensor tensor;
  at::Tensor sizes;  // int64, one for each rank
};

// Where a dimension is cut, a tensor without dimensions counts as one row.
// `sizes`, where it is asked for: int64, one for each rank; undefined: found out, or (of a cut) those of torch.chunk.
GatheredTorch all_gather(Comm& comm, const at::Tensor& x, int64_t dim = 0, const at::Tensor& sizes = {},
                         GradReduce grad = GradReduce::sum, const Site& site = Site::current());
// Every rank's x, all of one shape.
std::vector<at::Tensor> all_gather_same(Comm& comm, const at::Tensor& x, GradReduce grad = GradReduce::sum,
                                        const Site& site = Site::current());
// Every rank's extent along dim, as int64. No gradient passes.
at::Tensor gather_sizes(Comm& comm, const at::Tensor& x, int64_t dim = 0, const Site& site = Site::current());
at::Tensor reduce_scatter(Comm& comm, const at::Tensor& x, int64_t dim = 0, const at::Tensor& sizes = {},
                          Reduction op = ReduceOp::sum, const Site& site = Site::current());
at::Tensor all_reduce(Comm& comm, const at::Tensor& x, Reduction op = ReduceOp::sum,
                      const Site& site = Site::current());
GatheredTorch all_to_all(Comm& comm, const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                         const at::Tensor& sizes = {}, const Site& site = Site::current());
GatheredTorch all_to_all_v(Comm& comm, const at::Tensor& x, const at::Tensor& send_sizes,
                           const at::Tensor& recv_sizes = {}, int64_t dim = 0, const Site& site = Site::current());
// x: needed on the root only; elsewhere one that is given must have its shape and dtype.
at::Tensor broadcast(Comm& comm, const at::Tensor& x, int64_t root = 0, const Site& site = Site::current());
GatheredTorch scatter(Comm& comm, const at::Tensor& x, int64_t root = 0, int64_t dim = 0, const at::Tensor& sizes = {},
                      const Site& site = Site::current());
// On other ranks than the root the results are empty: of extent 0 along dim, and [0, …]. A loss that has them in it, as
// result.sum(), makes the rank take part in backward().
GatheredTorch gather(Comm& comm, const at::Tensor& x, int64_t root = 0, int64_t dim = 0,
                     const Site& site = Site::current());
at::Tensor reduce(Comm& comm, const at::Tensor& x, int64_t root = 0, Reduction op = ReduceOp::sum,
                  const Site& site = Site::current());
// Local: a view. Its gradient is zero outside of it.
at::Tensor split(const Comm& comm, const at::Tensor& x, int64_t dim, const at::Tensor& sizes);
// By the steps of a plan; x and the result are undefined on ranks outside of the layouts. Its gradient is plan.adjoint(), a
// call of all ranks: where any rank needs one, the result is [0] on those that have no part of it, and a loss that has it in
// it, as result.sum(), makes the rank take part in backward().
at::Tensor redistribute(Comm& comm, const at::Tensor& x, const Plan& plan, Convention convention = Convention::global,
                        const Site& site = Site::current());
// The same by the best plan, in PyTorch's model of a machine. The shape of the whole is found out, with one exchange more.
at::Tensor redistribute(Comm& comm, const at::Tensor& x, const Layout& from, const Layout& to,
                        Convention convention = Convention::global, const Site& site = Site::current());

// Several tensors, with one agreement for all and a gradient for each. Every rank gives as many.
std::vector<GatheredTorch> all_gather(Comm& comm, const std::vector<at::Tensor>& xs, int64_t dim = 0,
                                      GradReduce grad = GradReduce::sum, const Site& site = Site::current());
std::vector<at::Tensor> all_reduce(Comm& comm, const std::vector<at::Tensor>& xs, Reduction op = ReduceOp::sum,
                                   const Site& site = Site::current());

// The operators torch.ops.tessera.* name a communicator by a string. Local. The name of this one: made from its own name,
// rank and size, the same for the same communicator, free again when that is gone. Thread-safe.
std::string torch_name(Comm& comm);
// The communicator of that name. Throws Error where there is none, or none any more. Thread-safe; the Comm is for one
// thread at a time.
Comm torch_comm(std::string_view name);

// at::Tensor and Tensor share memory: no element is copied. Local. from_torch() throws DTypeError and
// ArgumentTypeError: a dtype that tessera has not, a tensor that is not dense on the CPU, or whose conj or neg bit is
// set.
Tensor from_torch(const at::Tensor& tensor);
at::Tensor to_torch(const Tensor& tensor);

namespace detail {
// The place in the user's code of the next operator on this thread, which takes it; and whether the caller gives the result
// its history itself, as of a tensor that needs a gradient.
void set_next_site(const Site& site, bool recorded_elsewhere = false);
// Called with an exception of tessera's that leaves an operator; may throw another in its place. Null: none.
void set_error_hook(void (*hook)(const Error& error));
// Where only shapes are worked out: a size that a call of that operator would find out, for a front end that has symbols for
// such; none for an x that is not traced, which is an error then. Null: no front end has.
using SizeHook = std::optional<c10::SymInt> (*)(const at::Tensor& x, const char* op);
void set_size_hook(SizeHook hook);
}  // namespace detail

}  // namespace tessera
