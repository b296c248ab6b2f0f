// What outlives what, and what a caller may do wrong with it.
#include <cmath>

#include <gtest/gtest.h>
#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

TEST(Lifetime, ACommThatOutlivesItsRunOnlyThrows) {
  Comm kept;
  run(1, [&](Comm& comm) { kept = std::move(comm); });
  EXPECT_THROW(kept.barrier(), Error);
  EXPECT_THROW(start(kept, Barrier{}), Error);
  EXPECT_THROW(start_send(kept, Tensor::zeros(DType::f32, {1}), 0), Error);
  EXPECT_EQ(kept.size(), 1);
}

TEST(Lifetime, AResultIsHandedOutOnce) {
  run(2, [](Comm& comm) {
    auto work = start(comm, AllGather{.x = Tensor::full(DType::f32, {1}, 7)});
    EXPECT_EQ(work.get().tensor.shape(), (Dims{2}));
    EXPECT_THROW(work.get(), Error);
  });
}

TEST(Lifetime, WhatWasMovedFromIsUndefined) {
  Tensor a = Tensor::full(DType::f32, {2}, 1);
  const Tensor b = std::move(a);
  EXPECT_FALSE(a.defined());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(b.defined());
}

TEST(Lifetime, TheErrorOfADroppedWorkReachesRunWhereNoCallFollows) {
  EXPECT_THROW(run(2, [](Comm& comm) { start(comm, AllGather{.x = Tensor::zeros(DType::f32, {})}); }), ShapeError);
}

TEST(Lifetime, DifferentOperationsStartTogether) {
  run(3, [](Comm& comm) {
    auto work = start(comm, AllGather{.x = Tensor::full(DType::i64, {1}, comm.rank())},
                      AllReduce{.x = Tensor::full(DType::i64, {1}, 1)});
    auto [all, sum] = work.get();
    EXPECT_EQ(all.tensor.at<int64_t>(2), 2);
    EXPECT_EQ(sum.at<int64_t>(0), 3);
    EXPECT_EQ(comm.stats().exchanges, 1);
  });
}

TEST(Overlaps, AnInputWithElementsInOnePlaceIsNoPlaceForTheResult) {
  run(2, [](Comm& comm) {
    const Tensor row = Tensor::full(DType::f32, {1, 4}, 1);
    const ReduceScatter op{.x = row.expand({2, 4}), .dim = 0, .sizes = {1, 1}, .out = row};
    EXPECT_THROW(run(comm, op), ShapeError);
  });
}

TEST(Overlaps, ColumnsOfOneBufferAreApart) {
  run(2, [](Comm& comm) {
    const Tensor b = Tensor::zeros(DType::f32, {4, 6});
    const Tensor x = Tensor::full(DType::f32, {4, 3}, comm.rank() + 1);
    all_gather_parts(comm, x, {.dim = 1, .outs = {b.narrow(1, 0, 3), b.narrow(1, 3, 3)}});
    EXPECT_EQ(b.at<float>(3, 2), 1);
    EXPECT_EQ(b.at<float>(0, 3), 2);
    all_gather(comm, b.narrow(1, 0, 2), {.dim = 1, .out = b.narrow(1, 2, 4)});
    EXPECT_EQ(b.at<float>(2, 5), 1);
    run(comm, std::vector{AllReduce{.x = b.narrow(1, 0, 3), .out = b.narrow(1, 0, 3)},
                          AllReduce{.x = b.narrow(1, 3, 3), .out = b.narrow(1, 3, 3)}});
    EXPECT_EQ(b.at<float>(2, 5), 2);
    // Columns that do meet are still refused.
    EXPECT_THROW(all_gather(comm, b.narrow(1, 0, 2), {.dim = 1, .out = b.narrow(1, 1, 4)}), ShapeError);
  });
}

TEST(Overlaps, ConstantMemoryIsNoOutput) {
  run(2, [](Comm& comm) {
    const std::vector<float> values(2, 3.0f);
    const Tensor x = Tensor::view(std::span(values).first(1), {1});
    EXPECT_EQ(all_gather(comm, x).tensor.at<float>(1), 3);
    EXPECT_THROW(all_gather(comm, x, {.out = Tensor::view(std::span(values), {2})}), ShapeError);
    EXPECT_THROW(x.copy_from(Tensor::zeros(DType::f32, {1})), ShapeError);
  });
}

TEST(Adjoints, AWrongArgumentOfOneRankIsToldToAll) {
  run(3, [](Comm& comm) {
    std::vector<Tensor> grads(comm.rank() == 1 ? 2 : 3, Tensor::zeros(DType::f32, {1}));
    EXPECT_THROW(all_gather_parts_backward(comm, grads), Error);
    const Reduction op = comm.rank() == 1 ? ReduceOp::max : ReduceOp::sum;
    EXPECT_THROW(all_reduce_backward(comm, grads[0], op), Error);
    comm.barrier();
  });
}

TEST(Agreement, AFactorThatIsNotANumberIsTheSameOnEveryRank) {
  run(2, [](Comm& comm) {
    const Tensor sum = all_reduce(comm, Tensor::full(DType::f32, {1}, 1), {ReduceOp::premul_sum, NAN});
    EXPECT_NE(sum.at<float>(0), sum.at<float>(0));
  });
}

}  // namespace
}  // namespace tessera::test
