// What is wrong with one rank's own arguments is told to all of them: no rank waits for one that could not call.
#include <limits>

#include <tessera/tessera.hpp>

#include "comm/disagreement.hpp"

namespace tessera::test {
namespace {

class BadArgument : public ::testing::TestWithParam<WrongCall> {};

TEST_P(BadArgument, OfOneRankIsTheSameErrorOnEveryRank) { expect_refused(GetParam()); }

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Rank 1's own; the others' call is right.
template <class T>
T bad(const Comm& comm, T right, T wrong) {
  return comm.rank() == 1 ? wrong : right;
}

std::vector<WrongCall> dims_and_sizes() {
  return {
      {"DimPastTheEnd",
       "ShapeError",
       {"call #1 ", "rank  1: all_gather: dim 2 is out of range for a tensor of 2 dimensions: use -2 to 1"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, ones(DType::f32, {1, 1}), {.dim = bad(comm, 0, 2), .out = outs.out(DType::f32, {3, 1})});
       }},
      {"DimBeforeTheStart",
       "ShapeError",
       {"rank  1: reduce_scatter: dim -3 is out of range"},
       [](Comm& comm, Untouched&) {
         reduce_scatter(comm, ones(DType::f32, {3, 1}), bad(comm, -2, -3));
       }},
      {"DimFarOut",
       "ShapeError",
       {"rank  1: gather_sizes: dim -9223372036854775808 is out of range"},
       [](Comm& comm, Untouched&) {
         gather_sizes(comm, ones(DType::f32, {3}), bad(comm, int64_t{0}, std::numeric_limits<int64_t>::min()));
       }},
      {"SplitDim",
       "ShapeError",
       {"rank  1: all_to_all: split_dim 5 is out of range"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {3, 3}), bad(comm, 1, 5), 0);
       }},
      {"ConcatDim",
       "ShapeError",
       {"rank  1: all_to_all: concat_dim 5 is out of range"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {3, 3}), 1, bad(comm, 0, 5));
       }},
      {"SplitDimIsConcatDim",
       "ShapeError",
       {"rank  1: all_to_all: split_dim and concat_dim are both 0: within one dimension use all_to_all_v"},
       [](Comm& comm, Untouched&) {
         all_to_all(comm, ones(DType::f32, {3, 3}), bad(comm, 1, -2), 0);
       }},
      {"NoDimension",
       "ShapeError",
       {"rank  1: all_gather: x has no dimension to work along (it is 0-d): use all_gather_same, which takes it"},
       [](Comm& comm, Untouched&) { all_gather(comm, ones(DType::f32, bad(comm, Dims{1}, Dims{}))); }},
      {"NoDimensionAnywhere",
       "ShapeError",
       {"ranks 0-2: all_gather_parts: x has no dimension", "use all_gather_same"},
       [](Comm& comm, Untouched&) { all_gather_parts(comm, ones(DType::f32, {})); }},
      {"NegativeSize",
       "ShapeError",
       {"rank  1: all_gather: sizes[2] is -1: a size cannot be negative"},
       [](Comm& comm, Untouched&) {
         all_gather(comm, ones(DType::f32, {1}), 0, bad(comm, Sizes{1, 1, 1}, Sizes{1, 1, -1}));
       }},
      {"TooFewSizes",
       "ShapeError",
       {"rank  1: reduce_scatter: sizes has 2 entries for 3 ranks: give one for each"},
       [](Comm& comm, Untouched&) {
         reduce_scatter(comm, ones(DType::f32, {3}), 0, bad(comm, Sizes{1, 1, 1}, Sizes{2, 1}));
       }},
      {"TooManySizes",
       "ShapeError",
       {"rank  1: scatter: sizes has 4 entries for 3 ranks"},
       [](Comm& comm, Untouched&) {
         scatter(comm, ones(DType::f32, {3}), 0, 0, bad(comm, Sizes{1, 1, 1}, Sizes{1, 1, 1, 0}));
       }},
      {"SizesPastInt64",
       "ShapeError",
       {"rank  1: all_gather: ", "2^63 - 1"},
       [](Comm& comm, Untouched&) {
         all_gather(comm, ones(DType::f32, {1}), 0, bad(comm, Sizes{1, 1, 1}, Sizes{kMost, 1, 1}));
       }},
      {"SendSizesDoNotAddUp",
       "ShapeError",
       {"rank  1: all_to_all_v: send_sizes [1, 1, 2] add up to 4, but dim 0 of x has 3"},
       [](Comm& comm, Untouched& outs) {
         all_to_all_v(comm, ones(DType::f32, {3}),
                      {.send_sizes = bad(comm, Sizes{1, 1, 1}, Sizes{1, 1, 2}), .out = outs.out(DType::f32, {3})});
       }},
      {"NoSendSizes",
       "ShapeError",
       {"rank  1: all_to_all_v: send_sizes has 0 entries for 3 ranks"},
       [](Comm& comm, Untouched&) {
         all_to_all_v(comm, ones(DType::f32, {3}), bad(comm, Sizes{1, 1, 1}, Sizes{}));
       }},
      {"NegativeSendSize",
       "ShapeError",
       {"rank  1: all_to_all_v: send_sizes[0] is -1"},
       [](Comm& comm, Untouched&) {
         all_to_all_v(comm, ones(DType::f32, {3}), bad(comm, Sizes{1, 1, 1}, Sizes{-1, 2, 2}));
       }},
      {"NegativeRecvSize",
       "ShapeError",
       {"rank  1: all_to_all_v: recv_sizes[1] is -7"},
       [](Comm& comm, Untouched&) {
         all_to_all_v(comm, ones(DType::f32, {3}), {1, 1, 1}, bad(comm, Sizes{1, 1, 1}, Sizes{1, -7, 1}));
       }},
      {"SendSizesPastInt64",
       "ShapeError",
       {"rank  1: all_to_all_v: ", "2^63 - 1"},
       [](Comm& comm, Untouched&) {
         all_to_all_v(comm, ones(DType::f32, {3}), bad(comm, Sizes{1, 1, 1}, Sizes{kMost, kMost, 5}));
       }},
      {"BytesPastInt64",  // all_reduce allocates what x has, before it knows of the others
       "ShapeError",
       {"all_reduce", "more than 2^63 - 1 bytes"},
       [](Comm& comm, Untouched&) { all_reduce(comm, ones(DType::f32, {1}).expand({int64_t{1} << 62})); }},
  };
}

std::vector<WrongCall> tensors() {
  return {
      {"UndefinedX",
       "ShapeError",
       {"rank  1: all_gather: x is undefined"},
       [](Comm& comm, Untouched& outs) {
         all_gather(comm, bad(comm, ones(DType::f32, {1}), Tensor()), {.out = outs.out(DType::f32, {3})});
       }},
      {"UndefinedXOfAllGatherSame",
       "ShapeError",
       {"rank  1: all_gather_same: x is undefined"},
       [](Comm& comm, Untouched&) { all_gather_same(comm, bad(comm, ones(DType::f32, {1}), Tensor())); }},
      {"UndefinedXOnTheRoot",
       "ShapeError",
       {"rank  1: broadcast: x is undefined on the root"},
       [](Comm& comm, Untouched& outs) {
         broadcast(comm, bad(comm, ones(DType::f32, {1}), Tensor()), 1, outs.out(DType::f32, {1}));
       }},
      {"UndefinedXOnTheRootOfAScatter",
       "ShapeError",
       {"rank  1: scatter: x is undefined on the root"},
       [](Comm& comm, Untouched&) { scatter(comm, Tensor(), 1); }},
      {"UndefinedXOfAReduce",
       "ShapeError",
       {"ranks 0-2: reduce: x is undefined"},
       [](Comm& comm, Untouched&) { reduce(comm, Tensor(), 0); }},
      {"UndefinedOutput",
       "ShapeError",
       {"rank  1: all_gather_parts: a tensor of the outputs is undefined"},
       [](Comm& comm, Untouched& outs) {
         const Tensor a = outs.out(DType::f32, {1}), b = outs.out(DType::f32, {1});
         all_gather_parts(comm, ones(DType::f32, {1}),
                          {.outs = {a, bad(comm, outs.out(DType::f32, {1}), Tensor()), b}});
       }},
      {"OutOverItself",
       "ShapeError",
       {"rank  1: all_gather: out has several elements in one place (shape [3, 2], strides [1, 1]): it cannot be "
        "written to"},
       [](Comm& comm, Untouched& outs) {
         const Tensor memory = outs.out(DType::f32, {6});
         all_gather(comm, ones(DType::f32, {1, 2}),
                    {.out = Tensor::view(memory.data(), DType::f32, {3, 2}, bad(comm, Dims{2, 1}, Dims{1, 1}))});
       }},
      {"ExpandedOut",
       "ShapeError",
       {"rank  1: all_reduce: out has several elements in one place"},
       [](Comm& comm, Untouched& outs) {
         const Tensor one = outs.out(DType::f32, {1});
         all_reduce(comm, ones(DType::f32, {4}), {}, bad(comm, outs.out(DType::f32, {4}), one.expand({4})));
       }},
      {"RootTooLarge",
       "ShapeError",
       {"rank  1: broadcast: root 3 is none of the ranks 0 to 2"},
       [](Comm& comm, Untouched&) { broadcast(comm, ones(DType::f32, {1}), bad(comm, 0, 3)); }},
      {"NegativeRoot",
       "ShapeError",
       {"rank  1: gather: root -1 is none of the ranks 0 to 2"},
       [](Comm& comm, Untouched&) { gather(comm, ones(DType::f32, {1}), bad(comm, 0, -1)); }},
      {"RootPastInt32",  // 2^32 must not be taken for 0
       "ShapeError",
       {"ranks 0-2: reduce: root 4294967296 is none of the ranks 0 to 2"},
       [](Comm& comm, Untouched&) { reduce(comm, ones(DType::f32, {1}), int64_t{1} << 32); }},
      {"OutputsOfABatchOverEachOther",
       "ShapeError",
       {"rank  1: ", "an output of operation", "of the list lies over a tensor of operation"},
       [](Comm& comm, Untouched& outs) {
         const Tensor a = outs.out(DType::f32, {3}), b = outs.out(DType::f32, {3});
         tessera::run(comm, AllGather{.x = ones(DType::f32, {1}), .out = a},
                      AllGather{.x = ones(DType::f32, {1}), .out = bad(comm, b, a)});
       }},
      {"OutputOfABatchOverAnInput",
       "ShapeError",
       {"rank  1: ", "an output of operation 2 of the list lies over a tensor of operation 1"},
       [](Comm& comm, Untouched& outs) {
         const Tensor memory = outs.out(DType::f32, {8}), out = outs.out(DType::f32, {3});
         tessera::run(comm, AllReduce{.x = memory.narrow(0, 2, 3)},
                      AllReduce{.x = ones(DType::f32, {3}), .out = bad(comm, out, memory.narrow(0, 4, 3))});
       }},
      {"OneElementOfABatch",
       "ShapeError",
       {"rank  1: all_to_all_v: send_sizes [1, 1, 3] add up to 5"},
       [](Comm& comm, Untouched& outs) {
         tessera::run(comm, AllGather{.x = ones(DType::f32, {1}), .out = outs.out(DType::f32, {3})},
                      AllToAllV{.x = ones(DType::f32, {3}), .send_sizes = bad(comm, Sizes{1, 1, 1}, Sizes{1, 1, 3})});
       }},
      {"NoRoomForOneMoreDimension",
       "ShapeError",
       {"rank  1: all_gather_same: a tensor of 13 dimensions is too deep"},
       [](Comm& comm, Untouched&) {
         all_gather_same(comm, ones(DType::f32, bad(comm, Dims::filled(11, 1), Dims::filled(12, 1))));
       }},
      {"TwoRanksInTwoWays",  // both are told; the type is the lower rank's
       "DTypeError",
       {"rank  1: all_reduce: avg of int32", "rank  2: all_reduce: x is undefined"},
       [](Comm& comm, Untouched&) {
         all_reduce(comm, comm.rank() == 2 ? Tensor() : ones(comm.rank() == 1 ? DType::i32 : DType::f32, {1}),
                    ReduceOp::avg);
       }},
  };
}

WrongCall reduction(const std::string& name, Reduction reduction, DType dtype, const std::string& why) {
  return {name, "DTypeError", {"rank  1: all_reduce: ", why}, [=](Comm& comm, Untouched& outs) {
            const Tensor x = ones(bad(comm, dtype, dtype), {2});
            all_reduce(comm, x, bad(comm, Reduction(ReduceOp::sum), reduction), outs.out(dtype, {2}));
          }};
}

std::vector<WrongCall> reductions() {
  return {
      reduction("AverageOfIntegers", ReduceOp::avg, DType::i32, "avg of int32: the average of whole numbers is none"),
      reduction("AverageOfBool", ReduceOp::avg, DType::boolean, "avg of bool"),
      reduction("FactorOfIntegers", {ReduceOp::premul_sum, 0.5}, DType::u8, "premul_sum of uint8"),
      reduction("ComplexMin", ReduceOp::min, DType::c64, "min of complex64: complex numbers have no order"),
      reduction("ComplexMax", ReduceOp::max, DType::c128, "max of complex128"),
      reduction("BitsOfFloats", ReduceOp::bit_and, DType::f32,
                "bit_and of float32: bit operations are for integers and bool"),
      reduction("BitsOfShortFloats", ReduceOp::bit_or, DType::bf16, "bit_or of bfloat16"),
      reduction("BitsOfComplex", ReduceOp::bit_xor, DType::c64, "bit_xor of complex64"),
      reduction("NoSuchReduction", static_cast<ReduceOp>(99), DType::f32, "there is no such operation"),
      {"ScaledIntegers",
       "DTypeError",
       {"rank  1: all_gather: premul_sum of int32"},
       [](Comm& comm, Untouched&) { all_gather(comm, ones(DType::i32, {2}), {.scale = bad(comm, 1.0, 0.5)}); }},
  };
}

INSTANTIATE_TEST_SUITE_P(DimsAndSizes, BadArgument, ::testing::ValuesIn(dims_and_sizes()), name_of);
INSTANTIATE_TEST_SUITE_P(Tensors, BadArgument, ::testing::ValuesIn(tensors()), name_of);
INSTANTIATE_TEST_SUITE_P(Reductions, BadArgument, ::testing::ValuesIn(reductions()), name_of);

// split() and split_by_rank() are local: so are their errors, and run() names the rank.
TEST(BadArgumentOfSplit, IsALocalError) {
  run(2, [](Comm& comm) {
    const Tensor x = ones(DType::f32, {3, 2});
    const auto message = [&](int64_t dim, const Sizes& sizes) {
      return thrown_by([&] { split(comm, x, dim, sizes); }).text;
    };
    EXPECT_TRUE(contains(message(2, {1, 2}), "dim 2 is out of range"));
    EXPECT_TRUE(contains(message(0, {3}), "sizes has 1 entries for 2 ranks: give one for each"));
    EXPECT_TRUE(contains(message(0, {4, -1}), "a size of -1: a size cannot be negative"));
    EXPECT_TRUE(contains(message(0, {1, 1}), "the sizes [1, 1] add up to 2, but dim 0 has 3"));
    EXPECT_TRUE(contains(message(0, {kMost, kMost}), "2^63 - 1"));
    EXPECT_THROW(split(comm, x, 0, {kMost, kMost}), ShapeError);
    EXPECT_THROW(split(comm, Tensor(), 0, {1, 2}), ShapeError);
    EXPECT_THROW(split(comm, ones(DType::f32, {}), 0, {0, 1}), ShapeError);
    EXPECT_THROW(split_by_rank(comm, std::vector{x}), ShapeError);
    EXPECT_THROW(split_by_rank(comm, {x, ones(DType::f32, {})}), ShapeError);
    EXPECT_THROW(split_by_rank(comm, x), ShapeError);
    EXPECT_THROW(split_by_rank(comm, Tensor()), ShapeError);
    expect_alive(comm);
  });
  const Thrown all = thrown_by([] {
    run(2, [](Comm& comm) { split(comm, ones(DType::f32, {3}), 0, comm.rank() == 1 ? Sizes{3} : Sizes{1, 2}); });
  });
  EXPECT_EQ(all.type, "ShapeError");
  EXPECT_TRUE(all.text.starts_with("rank 1: split: ")) << all.text;
}

TEST(BadArgumentOfSend, IsALocalError) {
  run(2, [](Comm& comm) {
    EXPECT_THROW(send(comm, ones(DType::f32, {1}), 2), ShapeError);
    EXPECT_THROW(send(comm, ones(DType::f32, {1}), kAnySource), ShapeError);
    EXPECT_THROW(send(comm, Tensor(), 0), ShapeError);
    EXPECT_THROW(recv(comm, -2), ShapeError);
    EXPECT_THROW(recv(comm, 2), ShapeError);
    expect_alive(comm);
  });
}

TEST(UndefinedComm, OnlyThrows) {
  Comm none;
  EXPECT_FALSE(none.defined());
  EXPECT_THROW(none.rank(), Error);
  EXPECT_THROW(none.barrier(), Error);
  EXPECT_THROW(all_gather(none, ones(DType::f32, {1})), Error);
  EXPECT_THROW(none.shrink(), Error);
  EXPECT_THROW(none.stats(), Error);
}

}  // namespace
}  // namespace tessera::test
