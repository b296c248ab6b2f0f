// A contrastive batch: every rank embeds a different number of samples, all ranks score against all of them.
// Gathers the pieces, cuts the own one out again, and brings the gradient home in the three ways there are.
#include <atomic>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

constexpr int kRanks = 3;
constexpr int64_t kWidth = 4;

// Rank r has r + 1 samples; element (row, column) of the whole batch has this value, wherever the row lies.
double sample(int64_t row, int64_t column) { return static_cast<double>(row * 10 + column); }

bool on_rank(Comm& comm) {
  const int64_t rows = comm.rank() + 1;
  const int64_t first = rows * (rows - 1) / 2;  // the samples of the ranks before this one
  Tensor mine = Tensor::generate(DType::f64, {rows, kWidth}, [](auto at) { return sample(at[0], at[1]); }, {first, 0});

  // Nobody says how many rows the others have.
  auto [batch, sizes] = all_gather(comm, mine, 0);
  bool right = sizes == Sizes{1, 2, 3} && batch.shape() == Dims{6, kWidth};
  right &= batch.equals(Tensor::generate(DType::f64, {6, kWidth}, [](auto at) { return sample(at[0], at[1]); }));

  // A cut of what every rank has: a view, nothing is sent.
  right &= split(comm, batch, 0, sizes).equals(mine);

  // The loss of each rank is the sum of the whole batch, so every element counts once on every rank.
  Tensor grad = Tensor::full(DType::f64, batch.shape(), 1.0);
  const double sum = all_gather_backward(comm, grad, 0, sizes, GradReduce::sum).at<double>(0, 0);
  const double slice = all_gather_backward(comm, grad, 0, sizes, GradReduce::slice).at<double>(0, 0);
  const double mean = all_gather_backward(comm, grad, 0, sizes, GradReduce::mean).at<double>(0, 0);
  right &= sum == kRanks && slice == 1 && mean == 1;

  // Along another dimension it reads the same; what differs between ranks is then the number of columns.
  Tensor columns = mine.transpose(0, 1);  // a view with strides, taken as it is
  auto [wide, widths] = all_gather(comm, columns, -1);
  right &= wide.shape() == Dims{kWidth, 6} && widths == sizes && wide.equals(batch.transpose(0, 1));

  if (comm.rank() == 0) {
    fmt::print("gathered {} rows from sizes [{}]\n{}\n", batch.shape(0), fmt::join(sizes, ", "), batch);
    fmt::print("gradient of an element: sum {}, slice {}, mean {}\n", sum, slice, mean);
    fmt::print("the other way round: {}\n", wide.shape());
  }
  return right;
}

}  // namespace

int main() {
  std::atomic<int> right = 0;
  run(kRanks, [&](Comm& comm) { right += on_rank(comm) ? 1 : 0; });
  fmt::print("{} of {} ranks are right\n", right.load(), kRanks);
  return right == kRanks ? 0 : 1;
}
