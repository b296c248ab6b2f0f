// A linear layer y = x w whose inner dimension is cut over 3 ranks, forward and backward by layouts alone. Each rank
// multiplies its own columns of x with its own rows of w: what comes out is a term of a pending sum. The gradients are those
// of one process, and not 3 times them: what is replicated counts once (Convention::global).
#include <atomic>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

constexpr int64_t kBatch = 4, kIn = 7, kOut = 5;  // 7 does not divide by 3

double x_at(std::span<const int64_t> at) { return static_cast<double>(at[0] + 2 * at[1] + 1); }
double w_at(std::span<const int64_t> at) { return static_cast<double>(3 * at[0] - at[1]); }

Tensor multiply(const Tensor& a, const Tensor& b) {
  const Tensor product = Tensor::zeros(DType::f64, {a.shape(0), b.shape(1)});
  for (int64_t i = 0; i < a.shape(0); ++i) {
    for (int64_t k = 0; k < a.shape(1); ++k) {
      for (int64_t j = 0; j < b.shape(1); ++j) product.at<double>(i, j) += a.at<double>(i, k) * b.at<double>(k, j);
    }
  }
  return product;
}

}  // namespace

int main() {
  const Mesh mesh({{"tp", 3}});
  const Topology topology = Topology::dtensor(mesh);
  const Layout whole(mesh, {Replicate()}), columns(mesh, {Shard(1)}), rows(mesh, {Shard(0)}),
      pending(mesh, {Partial()});
  const Plan cut_x = plan(whole, columns, {kBatch, kIn}, DType::f64, topology);
  const Plan add_y = plan(pending, whole, {kBatch, kOut}, DType::f64, topology);

  // One process: y = x w; the loss is the sum of y, so dy is 1 everywhere, dx = dy wᵀ and dw = xᵀ dy.
  const Tensor x = Tensor::generate(DType::f64, {kBatch, kIn}, x_at),
               w = Tensor::generate(DType::f64, {kIn, kOut}, w_at);
  const Tensor ones = Tensor::full(DType::f64, {kBatch, kOut}, 1.0);
  const Tensor y_expected = multiply(x, w), dx_expected = multiply(ones, w.transpose(0, 1)),
               dw_expected = multiply(x.transpose(0, 1), ones);

  std::atomic<bool> right = true;
  run(3, [&](Comm& comm) {
    const Box mine = *rows.box({kIn, kOut}, comm.rank());
    const Tensor w_mine = w.box(mine);
    // Forward.
    const Tensor x_mine = redistribute(comm, x, cut_x);
    const Tensor y = redistribute(comm, multiply(x_mine, w_mine), add_y);
    // Backward: each plan's adjoint, in the opposite order.
    const Tensor dy = redistribute(comm, ones, add_y.adjoint(Convention::global));
    const Tensor dw = multiply(x_mine.transpose(0, 1), dy);
    const Tensor dx = redistribute(comm, multiply(dy, w_mine.transpose(0, 1)), cut_x.adjoint(Convention::global));
    if (!y.equals(y_expected) || !dx.equals(dx_expected) || !dw.equals(dw_expected.box(mine))) right = false;
    if (comm.rank() == 0) fmt::print("dx = {}\n", dx);
  });
  fmt::print("forward and gradients are {}\n", right ? "those of one process" : "WRONG");
  return right ? 0 : 1;
}
