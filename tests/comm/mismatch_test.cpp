// Every kind of disagreement between ranks gives the same message on every rank.
#include <tessera/tessera.hpp>

#include "comm/disagreement.hpp"

namespace tessera::test {
namespace {

class Mismatch : public ::testing::TestWithParam<WrongCall> {};

TEST_P(Mismatch, IsTheSameErrorOnEveryRankAndMovesNothing) { expect_refused(GetParam()); }

// What rank 1 does otherwise than the rest.
template <class T>
T odd(const Comm& comm, T theirs, T rank_1) {
  return comm.rank() == 1 ? rank_1 : theirs;
}

std::vector<WrongCall> parameters_differ() {
  return {
      {"Operation",
       "MismatchError",
       {"call #1 ", "(3 ranks): the ranks do not agree", "ranks 0,2: all_gather(dim=0) float32 [2, 3]",
        "rank  1:   all_reduce(sum) float32 [2, 3]", "the operation is all_reduce, rank 0 has all_gather",
        "Only dim 0 may differ."},
       [](Comm& comm, Untouched& outs) {
         const Tensor x = ones(DType::f32, {2, 3});
         if (comm.rank() == 1) all_reduce(comm, x, ReduceOp::sum, outs.out(DType::f32, {2, 3}));
         else all_gather(comm, x, {.dim = 0, .out = outs.out(DType::f32, {6, 3})});
       }},
      {"Barrier",
       "MismatchError",
       {"rank  1:   barrier()", "the operation is barrier, rank 0 has gather_sizes"},
       [](Comm& comm, Untouched&) {
         if (comm.rank() == 1) comm.barrier();
         else gather_sizes(comm, ones(DType::f32, {2}));
       }},
      {"SplitOfTheCommunicator",
       "MismatchError",
       {"rank  1:   Comm::split()", "the operation is Comm::split, rank 0 has barrier"},
       [](Comm& comm, Untouched&) {
         if (comm.rank() == 1) comm.split(0);
         else comm.barrier();
       }},
      {"Dim",
       "MismatchError",
       {"rank  1:   all_gather(dim=1)", "dim is 1, rank 0 has 0"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, ones(DType::f32, {2, 2}), {.dim = odd(comm, 0, 1), .out = outs.out(DType::f32, {6, 2})});
       }},
      {"SplitDim",
       "MismatchError",
       {"all_to_all(split_dim=2, concat_dim=0)", "split_dim is 1, rank 0 has 2"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {3, 3, 3}), odd(comm, 2, 1), 0);
       }},
      {"ConcatDim",
       "MismatchError",
       {"concat_dim is 2, rank 0 has 0"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {3, 3, 3}), 1, odd(comm, 0, 2));
       }},
      {"Root",
       "MismatchError",
       {"rank  1:   broadcast(root=1)", "root is 1, rank 0 has 0"},
       [](Comm& comm, Untouched& outs) {
         broadcast(comm, ones(DType::f32, {2}), odd(comm, 0, 1), outs.out(DType::f32, {2}));
       }},
      {"Reduction",
       "MismatchError",
       {"all_reduce(max)", "the reduction is max, rank 0 has sum"},
       [](Comm& comm, Untouched& outs) {
         all_reduce(comm, ones(DType::f32, {2}), odd(comm, ReduceOp::sum, ReduceOp::max), outs.out(DType::f32, {2}));
       }},
      {"Factor",
       "MismatchError",
       {"premul_sum of 3", "the factor is 3, rank 0 has 2"},
       [](Comm& comm, Untouched&) {
         reduce_scatter(comm, ones(DType::f32, {3}), 0, {}, {ReduceOp::premul_sum, odd(comm, 2.0, 3.0)});
       }},
      {"Scale",
       "MismatchError",
       {"all_gather(dim=0, scale=0.5)", "scale is 0.5, rank 0 has 1"},
       [](Comm& comm, Untouched&) { all_gather(comm, ones(DType::f32, {2}), {.scale = odd(comm, 1.0, 0.5)}); }},
      {"SkippedCall",  // rank 1 leaves a call out, and so is one ahead
       "MismatchError",
       {"call #1 ", "rank  1:   gather_sizes(dim=0) float32 [2]", "the operation is gather_sizes, rank 0 has barrier"},
       [](Comm& comm, Untouched&) {
         if (comm.rank() != 1) comm.barrier();
         else gather_sizes(comm, ones(DType::f32, {2}));
       }},
  };
}

std::vector<WrongCall> tensors_differ() {
  return {
      {"DType",
       "MismatchError",
       {"rank  1:   all_gather(dim=0) int32 [2]", "dtype is int32, rank 0 has float32"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, ones(odd(comm, DType::f32, DType::i32), {2}), {.out = outs.out(DType::f32, {6})});
       }},
      {"NumberOfDimensions",
       "MismatchError",
       {"the number of dimensions is 3, rank 0 has 2"},
       [](Comm& comm, Untouched&) {
         all_gather(comm, ones(DType::f32, odd(comm, Dims{2, 3}, Dims{2, 3, 1})));
       }},
      {"TrailingShape",
       "MismatchError",
       {"[2, 4]", "dim 1 is 4, rank 0 has 3", "Only dim 0 may differ."},
       [](Comm& comm, Untouched&) {
         all_gather_parts(comm, ones(DType::f32, {2, odd(comm, 3, 4)}));
       }},
      {"SeveralFields",  // all of them are named
       "MismatchError",
       {"dtype is int64, rank 0 has float32; dim 0 is 9, rank 0 has 1; dim 2 is 8, rank 0 has 3",
        "Only dim 1 may differ."},
       [](Comm& comm, Untouched&) {
         gather(comm, ones(odd(comm, DType::f32, DType::i64), odd(comm, Dims{1, 2, 3}, Dims{9, 5, 8})), 0, 1);
       }},
      {"ShapeOfAllReduce",
       "MismatchError",
       {"dim 0 is 3, rank 0 has 2", "Every rank must make the same call, with the same dtype and shape."},
       [](Comm& comm, Untouched& outs) {
         all_reduce(comm, ones(DType::f32, {odd(comm, 2, 3)}), {}, outs.out(DType::f32, {2}));
       }},
      {"ShapeOfAllGatherSame",  // its own added dimension does not show
       "MismatchError",
       {"rank  1:   all_gather_same() float32 [4]", "dim 0 is 4, rank 0 has 2"},
       [](Comm& comm, Untouched&) { all_gather_same(comm, ones(DType::f32, {odd(comm, 2, 4)})); }},
      {"ShapeOfReduceScatter",
       "MismatchError",
       {"dim 1 is 2, rank 0 has 1"},
       [](Comm& comm, Untouched&) {
         reduce_scatter(comm, ones(DType::f32, {3, odd(comm, 1, 2)}));
       }},
      {"ShapeOfReduce",
       "MismatchError",
       {"reduce(root=2, sum)", "dim 0 is 5, rank 0 has 3"},
       [](Comm& comm, Untouched&) { reduce(comm, ones(DType::f32, {odd(comm, 3, 5)}), 2); }},
      {"ShapeOfAllToAll",  // the dimension that is cut must be whole everywhere
       "MismatchError",
       {"dim 1 is 4, rank 0 has 3", "Only dim 0 may differ."},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {comm.rank(), odd(comm, 3, 4)}), 1, 0);
       }},
      {"ShapeOfAllToAllV",
       "MismatchError",
       {"dim 1 is 4, rank 0 has 3"},
       [](Comm& comm, Untouched&) {
         all_to_all_v(comm, ones(DType::f32, {3, odd(comm, 3, 4)}), {1, 1, 1});
       }},
      {"BroadcastToATensorThatDoesNotFit",  // rank 0 has none, and is no reference for the others
       "MismatchError",
       {"broadcast(root=2) float32 [2]", "dim 0 is 3", "rank  1:"},
       [](Comm& comm, Untouched&) {
         broadcast(comm, comm.rank() == 0 ? Tensor() : ones(DType::f32, {odd(comm, 2, 3)}), 2);
       }},
      {"ScatterToATensorThatDoesNotFit",
       "MismatchError",
       {"scatter(dim=0, root=2)", "dtype is int8"},
       [](Comm& comm, Untouched&) {
         scatter(comm, comm.rank() == 0 ? Tensor() : ones(odd(comm, DType::f32, DType::i8), {3}), 2);
       }},
      {"RankZeroIsTheOddOne",  // the reference is what most ranks say
       "MismatchError",
       {"ranks 1-3: all_gather(dim=0) float32 [1, 2]", "rank  0:", "dim 1 is 9, rank 1 has 2"},
       [](Comm& comm, Untouched&) {
         all_gather(comm, ones(DType::f32, {1, comm.rank() == 0 ? 9 : 2}));
       },
       4},
      {"EveryRankIsOdd",
       "MismatchError",
       {"rank  0:", "rank  1:", "dim 1 is 2, rank 0 has 1", "rank  2:", "dim 1 is 3, rank 0 has 1"},
       [](Comm& comm, Untouched&) {
         all_gather(comm, ones(DType::f32, {1, comm.rank() + 1}));
       }},
  };
}

std::vector<WrongCall> batches_differ() {
  return {
      {"BatchLength",
       "MismatchError",
       {"ranks 0,2: 2 operations", "rank  1: 3 operations", "Give lists of one length on every rank."},
       [](Comm& comm, Untouched&) {
         tessera::run(comm, std::vector(odd(comm, size_t{2}, size_t{3}), AllGather{.x = ones(DType::f32, {1})}));
       }},
      {"EmptyBatch",
       "MismatchError",
       {"ranks 0,2: 1 operations", "rank  1: 0 operations", "Give lists of one length on every rank."},
       [](Comm& comm, Untouched&) {
         tessera::run(comm, std::vector(odd(comm, size_t{1}, size_t{0}), AllGather{.x = ones(DType::f32, {1})}));
       }},
      {"BatchElement",
       "MismatchError",
       {"operation 3 of 4:", "rank  1:", "dim 1 is 5, rank 0 has 2"},
       [](Comm& comm, Untouched& outs) {
         std::vector<AllGather> ops(4);
         for (AllGather& op : ops) op = {.x = ones(DType::f32, {1, 2}), .out = outs.out(DType::f32, {3, 2})};
         ops[2].x = ones(DType::f32, {1, odd(comm, 2, 5)});
         tessera::run(comm, ops);
       }},
      {"BatchOfDifferentOperations",
       "MismatchError",
       {"operation 2 of 2:", "the operation is all_gather, rank 0 has all_reduce"},
       [](Comm& comm, Untouched&) {
         const Tensor x = ones(DType::f32, {2});
         if (comm.rank() == 1) tessera::run(comm, AllGather{.x = x}, AllGather{.x = x});
         else tessera::run(comm, AllGather{.x = x}, AllReduce{.x = x});
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Parameters, Mismatch, ::testing::ValuesIn(parameters_differ()), name_of);
INSTANTIATE_TEST_SUITE_P(Tensors, Mismatch, ::testing::ValuesIn(tensors_differ()), name_of);
INSTANTIATE_TEST_SUITE_P(Batches, Mismatch, ::testing::ValuesIn(batches_differ()), name_of);

// The example that the design gives, line by line.
TEST(MismatchMessage, IsTheOneOfTheDesign) {
  int line = 0;
  const auto thrown = thrown_by_ranks(
      4,
      [&](Comm& comm) {
        for (int i = 0; i < 16; ++i) comm.barrier();
        const Tensor x = comm.rank() == 2 ? ones(DType::f32, {5, 64}) : ones(DType::f32, {comm.rank(), 128});
        if (comm.rank() == 0) line = __LINE__ + 1;
        all_gather(comm, x, 0);
      },
      {.name = "dp"});
  const Thrown all = same_for_all(thrown);
  EXPECT_EQ(all.type, "MismatchError");
  const std::string at = fmt::format("mismatch_test.cpp:{}", line);
  EXPECT_EQ(all.text,
            "call #17 of communicator \"dp\" (4 ranks): the ranks do not agree\n"
            "  ranks 0,1,3: all_gather(dim=0) float32 [*, 128]   " +
                at +
                "\n"
                "  rank  2:     all_gather(dim=0) float32 [5, 64]    " +
                at +
                "   dim 1 is 64, rank 0 has 128\n"
                "Only dim 0 may differ. Nothing was moved.");
}

TEST(MismatchMessage, ShowsCallSitesAndNeverComparesThem) {
  run(2, [](Comm& comm) {
    if (comm.rank() == 0) all_gather(comm, ones(DType::f32, {1}));
    else all_gather(comm, ones(DType::f32, {1}));
  });
  const Thrown all = same_for_all(thrown_by_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) all_gather(comm, ones(DType::f32, {1, 2}));
    else all_gather(comm, ones(DType::f32, {1, 3}));
  }));
  const size_t first = all.text.find("mismatch_test.cpp:"), second = all.text.find("mismatch_test.cpp:", first + 1);
  ASSERT_NE(second, std::string::npos) << all.text;
  EXPECT_NE(all.text.substr(first, 24), all.text.substr(second, 24));
}

}  // namespace
}  // namespace tessera::test
