// redistribute(): a tensor goes from one layout to another, by the steps of a plan.
//
//   Layout from{mesh, {Shard(0), Replicate()}}, to{mesh, {Replicate(), Shard(1)}};
//   Plan plan = tessera::plan(from, to, {4096, 4096}, DType::f32, Topology::dtensor(mesh));
//   Tensor moved = redistribute(comm, local, plan);
//   Tensor grad_local = redistribute(comm, grad_moved, plan.adjoint(Convention::global));
#pragma once

#include <tessera/comm.hpp>
#include <tessera/plan.hpp>
#include <tessera/work.hpp>

namespace tessera {

// Collective: every rank of the communicator calls it, whose ranks the meshes name. A rank that is in no mesh, or to which
// At gives nothing, passes an undefined x and gets an undefined tensor.
//
// x is this rank's part of plan.from(); the result is its part of plan.to(), in `out` where that is given. Without `out` the
// result may be x itself, or a view of it, where nothing has to move. Sums have the bits of the one tree, last axis first.
// Throws, on every rank the same and with nothing moved: ShapeError and DTypeError (a part does not fit its layout),
// MismatchError (the ranks have different plans); and TimeoutError, PeerLostError, AbortedError.
// Cost: one exchange a step that moves, at least one, and each byte once. Memory: plan.peak_bytes(), with the caller's x and
// out in it; where out is given and the result is a term among an identity that other ranks fill, or a sum in place of x,
// the result once more. Gradient: plan.adjoint().
Tensor redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out = {},
                    const Site& site = Site::current());
// The same by the best plan, in PyTorch's model of a machine. The shape of the whole is found out, with one exchange more.
Tensor redistribute(Comm& comm, const Tensor& x, const Layout& from, const Layout& to,
                    const Site& site = Site::current());
// Starts it on the communicator's worker, and returns at once.
WorkOf<Tensor> start_redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out = {},
                                  const Site& site = Site::current());

namespace detail {
// For front ends: flags and problem are as a Description's, and flags_of_all is set to those of every rank.
struct RedistributeCall {
  int64_t flags = 0;
  std::exception_ptr problem = {};
  Sizes flags_of_all = {};
};
Tensor redistribute(Comm& comm, const Tensor& x, const Plan& plan, RedistributeCall& call, const Site& site);
// The plan by which redistribute() between two layouts goes. Collective: the shape of the whole is found out.
Plan plan_between(Comm& comm, const Tensor& x, const Layout& from, const Layout& to, std::exception_ptr problem,
                  const Site& site);
}  // namespace detail

}  // namespace tessera
