// A mixture of experts, one expert a rank: tokens go to their experts, results come back, and so do the gradients.
// Every pair of ranks has its own count; a receiver need not know what it will get.
#include <atomic>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

constexpr int kRanks = 4;
constexpr int64_t kWidth = 8;

// How many of its tokens rank `from` sends to expert `to`: uneven, and some are zero.
int64_t routed(int from, int to) { return (2 * from + 3 * to + from * to) % 5; }

// Expert e multiplies by e + 1. Its backward does the same to the gradient.
Tensor expert(int e, const Tensor& tokens) {
  Tensor result = tokens.clone();
  for (double& value : result.span<double>()) value *= e + 1;
  return result;
}

bool on_rank(Comm& comm) {
  const int me = comm.rank();
  Sizes counts;  // of my tokens, by expert; they are sorted by expert
  int64_t tokens = 0;
  for (int e = 0; e < kRanks; ++e) {
    counts.push_back(routed(me, e));
    tokens += counts.back();
  }
  Tensor mine = Tensor::generate(DType::f64, {tokens, kWidth}, [&](auto at) { return me * 100.0 + at[0]; });

  auto [arrived, from] = all_to_all_v(comm, mine, counts);
  // Back with the counts swapped. They are known on both sides, so they are given, and checked.
  Tensor done = all_to_all_v(comm, expert(me, arrived), from, counts).tensor;

  // The loss is the sum of all results, so the gradient of every result is 1, and of a token its expert's factor.
  Tensor grad = Tensor::full(DType::f64, done.shape(), 1.0);
  Tensor at_expert = all_to_all_v_backward(comm, grad, from, counts);
  Tensor token_grad = all_to_all_v_backward(comm, expert(me, at_expert), counts, from);

  bool right = done.shape() == mine.shape() && token_grad.shape() == mine.shape();
  int64_t row = 0;
  for (int e = 0; e < kRanks; ++e) {
    for (int64_t i = 0; i < counts[static_cast<size_t>(e)]; ++i, ++row) {
      right &= done.at<double>(row, 0) == mine.at<double>(row, 0) * (e + 1);
      right &= token_grad.at<double>(row, 0) == e + 1;
    }
  }
  // In order, so that the ranks' lines do not mix.
  for (int r = 0; r < kRanks; ++r) {
    comm.barrier();
    if (r != me) continue;
    fmt::print("rank {}: sent {:>2} tokens as [{}], expert {} got {:>2} as [{}]\n", me, tokens, fmt::join(counts, ", "),
               me, arrived.shape(0), fmt::join(from, ", "));
  }
  return right;
}

}  // namespace

int main() {
  std::atomic<int> right = 0;
  run(kRanks, [&](Comm& comm) { right += on_rank(comm) ? 1 : 0; });
  fmt::print("results and gradients: {} of {} ranks are right\n", right.load(), kRanks);
  return right == kRanks ? 0 : 1;
}
