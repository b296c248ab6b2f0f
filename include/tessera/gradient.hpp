// Adjoints of the collectives, for the loss that is the sum of what every rank
// computes (the local convention).
//
// Each takes the gradient of its collective's result on this rank and returns
// the gradient of its input on this rank; for every x and y, the sum over ranks
// of <A x, y> equals that of <x, A* y>. They are moves themselves: collective
// where the forward is, with its errors and its cost. min, max, prod and the
// bitwise operations have no linear adjoint (Error).
#pragma once

#include <tessera/collective.hpp>

namespace tessera {

// What the gradient of a gathered tensor becomes on its way back.
enum class GradReduce {
  slice,  // this rank's own gradient of its part; what other ranks' losses
          // contribute is lost. No communication.
  sum,    // the sum over ranks: the adjoint. A ragged reduce-scatter.
  mean,   // that sum divided by the number of ranks
};

Tensor all_gather_backward(Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes,
                           GradReduce reduce = GradReduce::sum, const Site& site = Site::current());
Tensor all_gather_parts_backward(Comm& comm, const std::vector<Tensor>& grads, GradReduce reduce = GradReduce::sum,
                                 const Site& site = Site::current());
Tensor all_gather_same_backward(Comm& comm, const std::vector<Tensor>& grads, GradReduce reduce = GradReduce::sum,
                                const Site& site = Site::current());

// Local: the own part among zeros. (Where a replicated x counts once,
// all_gather the gradient instead.)
Tensor split_backward(const Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes);
std::vector<Tensor> split_by_rank_backward(const Comm& comm, const Tensor& grad, const std::vector<Tensor>& parts);

// sizes: of the forward's cut, one for each rank.
Tensor reduce_scatter_backward(Comm& comm, const Tensor& grad, int64_t dim, const Sizes& sizes,
                               Reduction op = ReduceOp::sum, const Site& site = Site::current());
Tensor all_reduce_backward(Comm& comm, const Tensor& grad, Reduction op = ReduceOp::sum,
                           const Site& site = Site::current());
// concat_sizes: as the forward returned them.
Tensor all_to_all_backward(Comm& comm, const Tensor& grad, int64_t split_dim, int64_t concat_dim,
                           const Sizes& concat_sizes, const Site& site = Site::current());
Tensor all_to_all_v_backward(Comm& comm, const Tensor& grad, const Sizes& send_sizes, const Sizes& recv_sizes,
                             int64_t dim = 0, const Site& site = Site::current());
// The sum on the root; elsewhere undefined, which stands for zero.
Tensor broadcast_backward(Comm& comm, const Tensor& grad, int64_t root = 0, const Site& site = Site::current());
// The gradient of the root's x, on the root; elsewhere undefined.
Tensor scatter_backward(Comm& comm, const Tensor& grad, int64_t root, int64_t dim = 0,
                        const Site& site = Site::current());
// grad: needed on the root only.
Tensor gather_backward(Comm& comm, const Tensor& grad, int64_t root, int64_t dim, const Sizes& sizes,
                       const Site& site = Site::current());
Tensor reduce_backward(Comm& comm, const Tensor& grad, int64_t root, Reduction op = ReduceOp::sum,
                       const Site& site = Site::current());
// The gradient of what was sent comes from the receiver, and goes back to the
// sender.
Tensor send_backward(Comm& comm, int to, int64_t tag = 0, const Site& site = Site::current());
void recv_backward(Comm& comm, const Tensor& grad, int source, int64_t tag = 0, const Site& site = Site::current());

}  // namespace tessera
