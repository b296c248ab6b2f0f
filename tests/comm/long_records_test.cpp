// Calls whose records are longer than the board's: they take several steps to exchange.
#include <numeric>

#include <tessera/tessera.hpp>

#include "comm/board.hpp"
#include "comm/disagreement.hpp"

namespace tessera::test {
namespace {

TEST(LongRecords, OfAllToAllVOn96Ranks) {
  constexpr int kRanks = 96;
  // Fifteen of them in one batch, with sizes given on both ends: thirty lists of 96 words.
  static_assert(30 * kRanks * sizeof(int64_t) > kRecordBytes);
  run(kRanks, [](Comm& comm) {
    const int64_t me = comm.rank();
    Sizes send, receive;
    for (int64_t r = 0; r < kRanks; ++r) {
      send.push_back((me + r) % 3);
      receive.push_back((r + me) % 3);
    }
    const int64_t rows = std::accumulate(send.begin(), send.end(), int64_t{0});
    const Tensor x = Tensor::full(DType::i32, {rows}, me);
    const AllToAllV op{.x = x, .send_sizes = send, .recv_sizes = receive};
    for (int round = 0; round < 2; ++round) {
      for (const Gathered& got : run(comm, std::vector(15, op))) {
        ASSERT_EQ(got.sizes, receive);
        int64_t at = 0;
        for (int64_t from = 0; from < kRanks; ++from) {
          for (int64_t i = 0; i < receive[static_cast<size_t>(from)]; ++i)
            ASSERT_EQ(got.tensor.at<int32_t>(at++), from);
        }
      }
      comm.barrier();  // a short one between long ones
    }
  });
}

// Rank 1 gives no outputs, so its record is shorter by a step than the others'.
TEST(LongRecords, OfABatchOf60) {
  run(3, [](Comm& comm) {
    std::vector<AllGather> ops(60);
    for (size_t i = 0; i < ops.size(); ++i) {
      ops[i].x = Tensor::full(DType::i64, {comm.rank() + 1}, static_cast<int64_t>(i) * 10 + comm.rank());
      if (comm.rank() != 1) ops[i].out = Tensor::empty(DType::i64, {6});
    }
    comm.reset_stats();
    const auto results = run(comm, ops);
    const Stats stats = comm.stats();
    EXPECT_EQ(stats.calls, 60);
    EXPECT_EQ(stats.exchanges, 1);
    EXPECT_EQ(stats.moves, 1);
    for (size_t i = 0; i < ops.size(); ++i) {
      EXPECT_EQ(results[i].sizes, (Sizes{1, 2, 3}));
      const int64_t rank_at[] = {0, 1, 1, 2, 2, 2};
      for (int64_t k = 0; k < 6; ++k) {
        EXPECT_EQ(results[i].tensor.at<int64_t>(k), static_cast<int64_t>(i) * 10 + rank_at[k]);
      }
    }
  });
}

TEST(LongRecords, ThatDisagreeNameTheOperation) {
  expect_refused({"",
                  "MismatchError",
                  {"operation 37 of 40:", "rank  1:", "dtype is int8, rank 0 has int64"},
                  [](Comm& comm, Untouched& outs) {
                    std::vector<AllGather> ops(40);
                    for (AllGather& op : ops) op = {.x = ones(DType::i64, {1}), .out = outs.out(DType::i64, {3})};
                    if (comm.rank() == 1) ops[36].x = ones(DType::i8, {1});
                    tessera::run(comm, ops);
                  }});
}

// One rank's batch is 200 operations long, the others' records have one.
TEST(LongRecords, BesideShortOnes) {
  expect_refused(
      {"", "MismatchError", {"ranks 0,2: 1 operations", "rank  1: 200 operations"}, [](Comm& comm, Untouched&) {
         tessera::run(comm, std::vector(comm.rank() == 1 ? 200 : 1, AllGather{.x = ones(DType::i64, {1})}));
       }});
}

}  // namespace
}  // namespace tessera::test
