// Calls that go on by themselves, several calls with one agreement, and what to do when a rank is lost.
#include <atomic>
#include <stdexcept>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

constexpr int kRanks = 4;

bool overlap(Comm& comm) {
  Tensor x = Tensor::full(DType::f32, {comm.rank() + 1, 1024}, 1.0f);
  auto work = start(comm, AllGather{.x = x});
  double own = 0;  // computed while the rows travel; x is only read, by this rank and by its peers
  for (const float value : x.span<float>()) own += value;
  auto [all, sizes] = work.get();
  return own == x.elements() && all.shape(0) == 10;
}

bool together(Comm& comm) {
  Tensor weights = Tensor::full(DType::f32, {3}, 1.0f), bias = Tensor::full(DType::f32, {}, 2.0f);
  Tensor tokens = Tensor::full(DType::i64, {comm.rank(), 2}, comm.rank());

  comm.reset_stats();
  // A list of one kind.
  auto sums = run(comm, std::vector{AllReduce{.x = weights, .out = weights}, AllReduce{.x = bias, .out = bias}});
  // Different kinds.
  auto [gathered, largest] = run(comm, AllGather{.x = tokens}, AllReduce{.x = weights, .op = ReduceOp::max});
  const Stats stats = comm.stats();
  if (comm.rank() == 0) fmt::print("{} calls, {} agreements\n", stats.calls, stats.exchanges);
  return weights.at<float>(2) == kRanks && sums[1].at<float>() == 2 * kRanks && gathered.tensor.shape(0) == 6 &&
         largest.at<float>(0) == kRanks && stats.calls == 4 && stats.exchanges == 2;
}

// The last rank fails. The others are told, and go on without it.
bool survive(Comm& comm) {
  if (comm.rank() == kRanks - 1) throw std::runtime_error("out of disk");
  try {
    all_reduce(comm, Tensor::full(DType::i32, {}, 1));
  } catch (const Error& error) {  // PeerLostError; AbortedError for one that calls when the others know already
    if (comm.rank() == 0) fmt::print("{}\n", error.what());
    Comm rest = comm.shrink();
    const int left = all_reduce(rest, Tensor::full(DType::i32, {}, 1)).at<int32_t>();
    if (rest.rank() == 0) fmt::print("{} ranks go on\n", left);
    return left == kRanks - 1;
  }
  return false;
}

}  // namespace

int main() {
  std::atomic<int> right = 0;
  run(kRanks, [&](Comm& comm) { right += overlap(comm) && together(comm) ? 1 : 0; });
  if (right != kRanks) return 1;
  try {
    run(kRanks, [&](Comm& comm) { right -= survive(comm) ? 1 : 0; });
  } catch (const RankError& error) {
    fmt::print("run() says: {}\n", error.what());
    return error.rank() == kRanks - 1 && right == 1 ? 0 : 1;
  }
  return 1;
}
