// Sizes and outputs that do not fit what the ranks have between them.
#include <tessera/tessera.hpp>

#include "comm/disagreement.hpp"

namespace tessera::test {
namespace {

class SizesAndOutputs : public ::testing::TestWithParam<WrongCall> {};

TEST_P(SizesAndOutputs, ThatDoNotFitAreTheSameErrorOnEveryRank) { expect_refused(GetParam()); }

std::vector<WrongCall> sizes() {
  return {
      {"GivenByOneRankOnly",
       "ShapeError",
       {"all_gather", "which have [1, 2, 3] along dim 0", "rank 1 gave sizes [1, 2, 4]",
        "Give those sizes, or none: then they are found out."},
       [](Comm& comm, Untouched& outs) {
         const Sizes given = comm.rank() == 1 ? Sizes{1, 2, 4} : Sizes{};
         all_gather(comm, ones(DType::f32, {comm.rank() + 1}), {.sizes = given, .out = outs.out(DType::f32, {6})});
       }},
      {"GivenByAll",
       "ShapeError",
       {"rank 0 gave sizes [3, 2, 1]", "rank 1 gave sizes [3, 2, 1]", "rank 2 gave sizes [3, 2, 1]"},
       [](Comm& comm, Untouched&) {
         all_gather_parts(comm, ones(DType::f32, {comm.rank() + 1}), 0, {3, 2, 1});
       }},
      {"GivenToGather",
       "ShapeError",
       {"gather", "rank 2 gave sizes [2, 2, 2]"},
       [](Comm& comm, Untouched&) {
         gather(comm, ones(DType::f32, {comm.rank() + 1}),
                {.root = 1, .sizes = comm.rank() == 2 ? Sizes{2, 2, 2} : Sizes{1, 2, 3}});
       }},
      {"OfReduceScatterDiffer",
       "MismatchError",
       {"rank 1 gave sizes [3, 2, 1]", "rank 0 gave [1, 2, 3]", "Give the same sizes on every rank."},
       [](Comm& comm, Untouched& outs) {
         const Sizes cut = comm.rank() == 1 ? Sizes{3, 2, 1} : Sizes{1, 2, 3};
         reduce_scatter(comm, ones(DType::f32, {6}), {.sizes = cut, .out = outs.out(DType::f32, {comm.rank() + 1})});
       }},
      {"OfReduceScatterOnSomeRanksOnly",
       "MismatchError",
       {"rank 1 gave sizes []", "rank 0 gave [2, 2, 2]", "Give the same sizes on every rank."},
       [](Comm& comm, Untouched&) {  // the very sizes that rank 1 would have found
         reduce_scatter(comm, ones(DType::f32, {6}), 0, comm.rank() == 1 ? Sizes{} : Sizes{2, 2, 2});
       }},
      {"OfReduceScatterDoNotAddUp",
       "ShapeError",
       {"the sizes [1, 2, 4] add up to 7, but dim 0 has 6"},
       [](Comm& comm, Untouched&) {
         reduce_scatter(comm, ones(DType::f32, {6}), 0, {1, 2, 4});
       }},
      {"OfAllToAllDiffer",
       "MismatchError",
       {"rank 2 gave sizes [0, 0, 3]", "rank 0 gave [1, 1, 1]"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {2, 3}), 1, 0, comm.rank() == 2 ? Sizes{0, 0, 3} : Sizes{1, 1, 1});
       }},
      {"OfAllToAllDoNotAddUp",
       "ShapeError",
       {"add up to 4, but dim 1 has 3"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {2, 3}), 1, 0, {1, 1, 2});
       }},
      {"OfScatterDifferFromTheRoots",
       "MismatchError",
       {"rank 2 gave sizes [3, 0, 0]", "rank 1 gave [1, 1, 1]"},
       [](Comm& comm, Untouched&) {
         const Sizes cut = comm.rank() == 1 ? Sizes{1, 1, 1} : comm.rank() == 2 ? Sizes{3, 0, 0} : Sizes{};
         scatter(comm, comm.rank() == 1 ? ones(DType::f32, {3}) : Tensor(), 1, 0, cut);
       }},
      {"OfScatterDoNotAddUp",
       "ShapeError",
       {"add up to 4, but dim 0 has 3"},
       [](Comm& comm, Untouched&) {
         scatter(comm, ones(DType::f32, {3}), 1, 0, {2, 1, 1});
       }},
      {"ReceivedAreNotTheSentOnes",
       "ShapeError",
       {"recv_sizes do not fit the send_sizes of the others", "rank 1 expects [1, 1, 2], but is sent [1, 1, 1]"},
       [](Comm& comm, Untouched& outs) {
         all_to_all_v(comm, ones(DType::f32, {3}),
                      {.send_sizes = {1, 1, 1},
                       .recv_sizes = comm.rank() == 1 ? Sizes{1, 1, 2} : Sizes{},
                       .out = outs.out(DType::f32, {3})});
       }},
      {"TogetherPassInt64",  // views of one element; no rank alone is too large
       "ShapeError",
       {"all_gather", "add up to more than 2^63 - 1"},
       [](Comm& comm, Untouched&) { all_gather(comm, ones(DType::u8, {1}).expand({int64_t{1} << 62})); }},
      {"TogetherPassInt64InBytes",
       "ShapeError",
       {"gather", "has more than 2^63 - 1 bytes"},
       [](Comm& comm, Untouched&) { gather(comm, ones(DType::f32, {1}).expand({int64_t{1} << 60}), 0); }},
      {"TogetherPassInt64InAllToAllV",
       "ShapeError",
       {"all_to_all_v", "add up to more than 2^63 - 1"},
       [](Comm& comm, Untouched&) {
         const int64_t much = int64_t{1} << 62;
         all_to_all_v(comm, ones(DType::u8, {1}).expand({much}), {much, 0, 0});
       }},
      {"TogetherPassInt64InAllGatherSame",
       "ShapeError",
       {"all_gather_same", "has more than 2^63 - 1 bytes"},
       [](Comm& comm, Untouched&) { all_gather_same(comm, ones(DType::u8, {1}).expand({int64_t{1} << 62})); }},
  };
}

std::vector<WrongCall> outputs() {
  return {
      {"OutHasAnotherShape",
       "ShapeError",
       {"out does not fit the result", "rank 1 gave float32 [5], the result is float32 [6]"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, ones(DType::f32, {2}), {.out = outs.out(DType::f32, {comm.rank() == 1 ? 5 : 6})});
       }},
      {"OutHasAnotherDType",
       "DTypeError",
       {"rank 1 gave float64 [6], the result is float32 [6]"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, ones(DType::f32, {2}), {.out = outs.out(comm.rank() == 1 ? DType::f64 : DType::f32, {6})});
       }},
      {"OutsAreTooFew",
       "ShapeError",
       {"rank 1 gave 2 tensors, the result has 3"},
       [](Comm& comm, Untouched& outs) {
         std::vector<Tensor> list;
         for (int i = 0; i < (comm.rank() == 1 ? 2 : 3); ++i) list.push_back(outs.out(DType::f32, {2}));
         all_gather_parts(comm, ones(DType::f32, {2}), {.outs = list});
       }},
      {"OutsAreTooMany",
       "ShapeError",
       {"rank 2 gave 9 tensors, the result has 3"},
       [](Comm& comm, Untouched& outs) {
         std::vector<Tensor> list;
         for (int i = 0; i < (comm.rank() == 2 ? 9 : 3); ++i) list.push_back(outs.out(DType::f32, {2}));
         all_gather_parts(comm, ones(DType::f32, {2}), {.outs = list});
       }},
      {"OutOfAllReduce",
       "ShapeError",
       {"rank 0 gave float32 [2, 1], the result is float32 [2]"},
       [](Comm& comm, Untouched& outs) {
         all_reduce(comm, ones(DType::f32, {2}), {}, comm.rank() == 0 ? outs.out(DType::f32, {2, 1}) : Tensor());
       }},
      {"OutOfReduceScatter",
       "ShapeError",
       {"rank 2 gave float32 [2], the result is float32 [3]"},
       [](Comm& comm, Untouched& outs) {
         reduce_scatter(comm, ones(DType::f32, {6}),
                        {.sizes = {1, 2, 3}, .out = outs.out(DType::f32, {std::min(comm.rank() + 1, 2)})});
       }},
      {"OutOfBroadcast",
       "DTypeError",
       {"rank 1 gave int32 [2], the result is float32 [2]"},
       [](Comm& comm, Untouched& outs) {
         const bool root = comm.rank() == 0;
         broadcast(comm, root ? ones(DType::f32, {2}) : Tensor(), 0,
                   outs.out(comm.rank() == 1 ? DType::i32 : DType::f32, {2}));
       }},
      {"OutOfTheRootOfAGather",
       "ShapeError",
       {"rank 2 gave float32 [1], the result is float32 [3]"},
       [](Comm& comm, Untouched& outs) {
         gather(comm, ones(DType::f32, {1}), {.root = 2, .out = outs.out(DType::f32, {1})});
       }},
      {"OutOfAllToAllV",
       "ShapeError",
       {"rank 1 gave float32 [4], the result is float32 [3]"},
       [](Comm& comm, Untouched& outs) {
         all_to_all_v(comm, ones(DType::f32, {3}),
                      {.send_sizes = {1, 1, 1}, .out = outs.out(DType::f32, {comm.rank() == 1 ? 4 : 3})});
       }},
      {"OutOverItsInput",  // rank 1's x lies in the place of rank 0's part
       "ShapeError",
       {"out overlaps x", "rank 1 ", "Give other memory, or none."},
       [](Comm& comm, Untouched& outs) {
         const Tensor out = outs.out(DType::f32, {6});
         all_gather(comm, out.narrow(0, comm.rank() == 1 ? 0 : 2 * comm.rank(), 2), {.out = out});
       }},
      {"OutOverItsInputInAnotherOrder",
       "ShapeError",
       {"out overlaps x", "rank 1 "},
       [](Comm& comm, Untouched& outs) {
         const Tensor x = outs.out(DType::f32, {2, 2});
         all_reduce(comm, x, {}, comm.rank() == 1 ? x.transpose(0, 1) : x);
       }},
      {"OutOverItsInputShiftedByAByte",
       "ShapeError",
       {"out overlaps x", "rank 2 "},
       [](Comm& comm, Untouched& outs) {
         const Tensor memory = outs.out(DType::u8, {16});
         const int64_t shift = comm.rank() == 2 ? 1 : 0;
         all_reduce(comm, Tensor::view(memory.data(), DType::f32, {2}, {1}), {},
                    Tensor::view(memory.data() + shift, DType::f32, {2}, {1}));
       }},
      {"OutOfAllToAllVOverItsInput",
       "ShapeError",
       {"out overlaps x", "rank 0 ", "rank 1 ", "rank 2 "},
       [](Comm& comm, Untouched& outs) {
         const Tensor x = outs.out(DType::f32, {3});
         all_to_all_v(comm, x, {.send_sizes = {1, 1, 1}, .out = x});
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Sizes, SizesAndOutputs, ::testing::ValuesIn(sizes()), name_of);
INSTANTIATE_TEST_SUITE_P(Outputs, SizesAndOutputs, ::testing::ValuesIn(outputs()), name_of);

// What looks alike and is allowed.
TEST(RightSizesAndOutputs, ThatFitAreTaken) {
  run(3, [](Comm& comm) {
    const Tensor x = Tensor::full(DType::f32, {comm.rank() + 1}, comm.rank());
    all_gather(comm, x, 0, comm.rank() == 1 ? Sizes{1, 2, 3} : Sizes{});
    // The x of a gather that is its own place in the output, and an all_reduce onto its input.
    const Tensor all = Tensor::full(DType::f32, {6}, comm.rank());
    all_gather(comm, all.narrow(0, 2 * comm.rank(), 2), {.out = all});
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(all.at<float>(i), static_cast<float>(i / 2));
    all_reduce(comm, all, {}, all);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(all.at<float>(i), static_cast<float>(3 * (i / 2)));
    // Sizes of elements that no memory could hold can still be asked for.
    const int64_t much = int64_t{1} << 62;
    EXPECT_EQ(gather_sizes(comm, Tensor::full(DType::u8, {1}, 1).expand({much})), Sizes(3, much));
  });
}

// A rank without x counts a negative dim from the root's tensor.
TEST(RightSizesAndOutputs, OfAScatterTakeTheRootsDimensions) {
  for (const int root : {0, 1, 2}) {
    run(3, [&](Comm& comm) {
      const auto value = [](std::span<const int64_t> at) { return 10 * at[0] + at[1]; };
      const Tensor x = comm.rank() == root ? Tensor::generate(DType::f32, {2, 6}, value) : Tensor();
      const auto [part, sizes] = scatter(comm, x, root, -1, comm.rank() == root ? Sizes{1, 2, 3} : Sizes{});
      EXPECT_EQ(sizes, (Sizes{1, 2, 3}));
      const int64_t before[] = {0, 1, 3};
      EXPECT_TRUE(part.equals(Tensor::generate(DType::f32, {2, comm.rank() + 1}, value, {0, before[comm.rank()]})));
    });
  }
}

}  // namespace
}  // namespace tessera::test
