// What gradients of gathers become, what they cost, and which reductions have none.
#include <tessera/gradient.hpp>

#include "support/global.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class GradientConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, GradientConformance, everywhere(), name_of);

// The loss of every rank is the sum of all that was gathered: each element counts once on each of the three ranks.
TEST(Gradient, GatherThenSumOnThreeRanksIsThreeOrOne) {
  on_ranks(transports()[0], 3, [](Comm& comm) {
    const Tensor x = Tensor::full(DType::f32, {comm.rank() + 1, 2}, 1.0f);
    const auto [all, sizes] = all_gather(comm, x);
    const Tensor ones = Tensor::full(DType::f32, all.shape(), 1.0f);
    const auto full = [&](float value) { return Tensor::full(DType::f32, x.shape(), value); };
    EXPECT_TRUE(all_gather_backward(comm, ones, 0, sizes, GradReduce::sum).equals(full(3)));
    EXPECT_TRUE(all_gather_backward(comm, ones, 0, sizes, GradReduce::slice).equals(full(1)));
    EXPECT_TRUE(all_gather_backward(comm, ones, 0, sizes, GradReduce::mean).equals(full(1)));
  });
}

TEST_P(GradientConformance, SliceIsTheOwnPartOfTheOwnGradient) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : size_patterns(comm.size())) {
      for (int64_t dim = -2; dim < 2; ++dim) {
        const Dims shape = with_extent({2, 3}, dim, sum_of(sizes));
        const Box own = cut(shape, dim, sizes, comm.rank());
        const auto salt = static_cast<uint64_t>(comm.rank());
        const Tensor grad = part(DType::f32, Box::whole(shape), Form::plain, salt);
        EXPECT_TRUE(is_part(all_gather_backward(comm, grad, dim, sizes, GradReduce::slice), DType::f32, own, salt));
        std::vector<Tensor> grads;
        for (int r = 0; r < comm.size(); ++r) grads.push_back(grad.box(cut(shape, dim, sizes, r)));
        EXPECT_TRUE(is_part(all_gather_parts_backward(comm, grads, GradReduce::slice), DType::f32, own, salt));
        EXPECT_TRUE(is_part(all_gather_same_backward(comm, grads, GradReduce::slice), DType::f32, own, salt));
      }
    }
    EXPECT_EQ(comm.stats().exchanges, 0) << "no communication";
  });
}

TEST_P(GradientConformance, MeanIsTheSumDividedByTheRanks) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : size_patterns(comm.size())) {
      const Dims shape = {3, sum_of(sizes)};
      const Box whole = Box::whole(shape), own = cut(shape, 1, sizes, comm.rank());
      const Tensor grad = term(DType::f32, whole, comm.rank());
      std::vector<Tensor> grads;
      for (int r = 0; r < comm.size(); ++r) grads.push_back(grad.box(cut(shape, 1, sizes, r)));
      for (const GradReduce reduce : {GradReduce::sum, GradReduce::mean}) {
        const Reduction op = reduce == GradReduce::sum ? ReduceOp::sum : ReduceOp::avg;
        EXPECT_TRUE(is_combined(all_gather_backward(comm, grad, 1, sizes, reduce), DType::f32, own, comm.size(), op));
        EXPECT_TRUE(is_combined(all_gather_parts_backward(comm, grads, reduce), DType::f32, own, comm.size(), op));
      }
      const Tensor sum = all_gather_backward(comm, grad, 1, sizes, GradReduce::sum);
      const Tensor mean = all_gather_backward(comm, grad, 1, sizes, GradReduce::mean);
      for (int64_t i = 0; i < sum.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(mean.span<float>()[at], sum.span<float>()[at] / static_cast<float>(comm.size()));
      }
    }
  });
}

// The other way adds up the whole gradient on every rank and keeps a slice: every rank reads every other's whole gradient.
TEST_P(GradientConformance, SumMovesOnePartInNOfAllReducingTheWholeGradient) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Sizes equal(static_cast<size_t>(n), 4);
    const Tensor grad = term(DType::f32, Box::whole({4 * n, 8}), comm.rank());
    comm.reset_stats();
    all_reduce(comm, grad);
    const int64_t whole_way = comm.stats().bytes_received;
    comm.reset_stats();
    all_gather_backward(comm, grad, 0, equal, GradReduce::sum);
    EXPECT_EQ(whole_way, (n - 1) * grad.bytes());
    EXPECT_EQ(comm.stats().bytes_received * n, whole_way);
    EXPECT_EQ(comm.stats().exchanges, 1);
    // The list form: one agreement and the same bytes.
    std::vector<Tensor> grads;
    for (int r = 0; r < n; ++r) grads.push_back(grad.narrow(0, 4 * r, 4));
    comm.reset_stats();
    all_gather_parts_backward(comm, grads);
    EXPECT_EQ(comm.stats().bytes_received * n, whole_way);
    EXPECT_EQ(comm.stats().exchanges, 1);
  });
}

TEST_P(GradientConformance, ReductionsThatAreNotLinearHaveNoAdjoint) {
  on_ranks([](Comm& comm) {
    const Tensor grad = Tensor::full(DType::i32, {2}, 1);
    const Sizes sizes(static_cast<size_t>(comm.size()), 2);
    for (const ReduceOp op :
         {ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
      EXPECT_THROW(all_reduce_backward(comm, grad, op), ArgumentError) << name(op);
      EXPECT_THROW(reduce_scatter_backward(comm, grad, 0, sizes, op), ArgumentError) << name(op);
      EXPECT_THROW(reduce_backward(comm, grad, 0, op), ArgumentError) << name(op);
    }
    comm.barrier();  // which still works
  });
}

TEST_P(GradientConformance, AGradientForEachRankIsAskedFor) {
  on_ranks([](Comm& comm) {
    const std::vector<Tensor> grads(static_cast<size_t>(comm.size() + 1), Tensor::zeros(DType::f32, {2}));
    EXPECT_THROW(all_gather_parts_backward(comm, grads), ShapeError);
    EXPECT_THROW(all_gather_same_backward(comm, grads), ShapeError);
    EXPECT_THROW(split_backward(comm, grads[0], 0, Sizes(static_cast<size_t>(comm.size() + 1), 2)), ShapeError);
    EXPECT_THROW(split_backward(comm, grads[0], 1, Sizes(static_cast<size_t>(comm.size()), 2)), ShapeError);
    comm.barrier();
  });
}

}  // namespace
}  // namespace tessera::testing_support
