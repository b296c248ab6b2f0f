// Conformance: the forms that every collective has: lists and mixtures with one agreement, and calls that go on by themselves.
#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class FormConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, FormConformance, everywhere(), name_of);

// A gather of each case, and the check of its result.
struct GatherOf {
  Case c;
  Dims shape;
  explicit GatherOf(const Case& of) : c(of), shape(with_extent(kShape, c.dim, sum_of(c.sizes))) {}
  AllGather op(int rank) const {
    return {.x = part(c.dtype, cut(shape, c.dim, c.sizes, rank), c.in), .dim = c.dim, .out = out_for(c, shape)};
  }
  void check(const Gathered& result) const {
    ASSERT_TRUE(is_part(result.tensor, c.dtype, Box::whole(shape))) << c.text();
    ASSERT_EQ(result.sizes, c.sizes) << c.text();
  }
};

std::vector<GatherOf> some_gathers(int ranks) {
  std::vector<GatherOf> list;
  size_t i = 0;
  for (const Case& c : cases(ranks)) {
    if (i++ % 11 == 0) list.emplace_back(c);
  }
  return list;
}

TEST_P(FormConformance, AListHasOneAgreement) {
  on_ranks([](Comm& comm) {
    const std::vector<GatherOf> gathers = some_gathers(comm.size());
    std::vector<AllGather> list;
    for (const GatherOf& g : gathers) list.push_back(g.op(comm.rank()));
    const std::vector<Gathered> results = run(comm, list);
    ASSERT_EQ(results.size(), gathers.size());
    for (size_t i = 0; i < gathers.size(); ++i) gathers[i].check(results[i]);
    EXPECT_EQ(comm.stats().exchanges, 1);
    EXPECT_EQ(comm.stats().calls, static_cast<int64_t>(gathers.size()));
    EXPECT_EQ(comm.stats().moves, 1);
  });
}

// A rank whose list is empty takes part, or those whose list is not would wait for it.
TEST_P(FormConformance, AnEmptyListIsAgreedOnToo) {
  on_ranks([](Comm& comm) {
    EXPECT_TRUE(run(comm, std::vector<AllGather>{}).empty());
    EXPECT_TRUE(start(comm, std::vector<AllGather>{}).get().empty());
    EXPECT_EQ(comm.stats().exchanges, 2);
    EXPECT_EQ(comm.stats().copies, 0);
    if (comm.size() == 1) return;
    std::vector<AllGather> list;
    if (comm.rank() == 0) list.push_back({.x = Tensor::zeros(DType::f32, {1})});
    EXPECT_THROW(run(comm, list), MismatchError);
  });
}

// Everything at once: the results of operations that share an agreement and a move do not meddle with each other.
TEST_P(FormConformance, AMixtureHasOneAgreement) {
  on_ranks([](Comm& comm) {
    const int n = comm.size(), me = comm.rank(), root = n - 1;
    const Sizes sizes = size_patterns(n)[1];
    const Dims shape = with_extent(kShape, 1, sum_of(sizes));
    const Box whole = Box::whole(shape), own = cut(shape, 1, sizes, me);
    const Sizes ones(static_cast<size_t>(n), 1);
    const Dims table = {2, n, n};  // cut along either of its last dimensions
    const Box large = Box::whole({7, 600});
    const auto [gathered, parts, same, found, scattered, reduced, turned, routed, copied, dealt, collected, summed] =
        run(comm, AllGather{.x = part(DType::f32, own), .dim = 1},                                      //
            AllGatherParts{.x = part(DType::u8, own), .dim = -2},                                       //
            AllGatherSame{.x = Tensor::full(DType::i32, {}, me)},                                       //
            GatherSizes{.x = part(DType::f32, own), .dim = 1},                                          //
            ReduceScatter{.x = term(DType::bf16, whole, me), .dim = 1, .sizes = sizes},                 //
            AllReduce{.x = term(DType::f64, large, me)},                                                //
            AllToAll{.x = part(DType::i16, cut(table, 2, ones, me)), .split_dim = 1, .concat_dim = 2},  //
            AllToAllV{.x = Tensor::full(DType::i8, {n}, me), .send_sizes = ones},                       //
            Broadcast{.x = me == root ? part(DType::c128, whole) : Tensor(), .root = root},             //
            Scatter{
                .x = me == root ? part(DType::boolean, whole) : Tensor(), .root = root, .dim = 1, .sizes = sizes},  //
            Gather{.x = part(DType::f16, own), .root = root, .dim = 1},                                             //
            Reduce{.x = term(DType::i64, whole, me), .root = root, .op = ReduceOp::max});
    EXPECT_EQ(comm.stats().exchanges, 1);
    EXPECT_EQ(comm.stats().calls, 12);
    const bool folded = comm.recent_calls().back().schedule.find("folded direct, 3 rounds") != std::string::npos;
    EXPECT_EQ(comm.stats().moves, folded ? 3 : 2)
        << "the large all_reduce takes two rounds, the others share the first";

    EXPECT_TRUE(is_part(gathered.tensor, DType::f32, whole));
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      EXPECT_TRUE(is_part(parts.parts[i], DType::u8, cut(shape, 1, sizes, r)));
      EXPECT_TRUE(same[i].equals(Tensor::full(DType::i32, {}, r)));
      EXPECT_EQ(routed.tensor.at<int8_t>(r), r);
    }
    EXPECT_EQ(found, sizes);
    EXPECT_TRUE(is_combined(scattered, DType::bf16, own, n, ReduceOp::sum));
    EXPECT_TRUE(is_combined(reduced, DType::f64, large, n, ReduceOp::sum));
    EXPECT_TRUE(is_part(turned.tensor, DType::i16, cut(table, 1, ones, me)));
    EXPECT_TRUE(is_part(copied, DType::c128, whole));
    EXPECT_TRUE(is_part(dealt.tensor, DType::boolean, own));
    EXPECT_EQ(collected.tensor.defined(), me == root);
    EXPECT_EQ(summed.defined(), me == root);
    if (me != root) return;
    EXPECT_TRUE(is_part(collected.tensor, DType::f16, whole));
    EXPECT_TRUE(is_combined(summed, DType::i64, whole, n, ReduceOp::max));
  });
}

TEST_P(FormConformance, StartedCallsGoOnByThemselvesInOrder) {
  on_ranks([](Comm& comm) {
    const std::vector<GatherOf> gathers = some_gathers(comm.size());
    std::vector<WorkOf<Gathered>> works;
    for (const GatherOf& g : gathers) works.push_back(start(comm, g.op(comm.rank())));
    // A call that is not started waits its turn behind those that are.
    const Box whole = Box::whole({5});
    EXPECT_TRUE(is_combined(all_reduce(comm, term(DType::f32, whole, comm.rank())), DType::f32, whole, comm.size(),
                            ReduceOp::sum));
    for (const WorkOf<Gathered>& work : works) EXPECT_TRUE(work.done());
    for (size_t i = 0; i < works.size(); ++i) gathers[i].check(works[i].get());
  });
}

TEST_P(FormConformance, AStartedListHasOneAgreement) {
  on_ranks([](Comm& comm) {
    const std::vector<GatherOf> gathers = some_gathers(comm.size());
    std::vector<AllGather> list;
    for (const GatherOf& g : gathers) list.push_back(g.op(comm.rank()));
    WorkOf<std::vector<Gathered>> work = start(comm, list);
    list.clear();  // the Work keeps the tensors
    const std::vector<Gathered> results = work.get();
    for (size_t i = 0; i < gathers.size(); ++i) gathers[i].check(results[i]);
    EXPECT_EQ(comm.stats().exchanges, 1);
  });
}

TEST_P(FormConformance, ADroppedWorkHasDoneItsPart) {
  on_ranks([](Comm& comm) {
    const Box whole = Box::whole({3, 4000});
    const Tensor x = term(DType::f32, whole, comm.rank());
    for (int round = 0; round < 5; ++round) {
      const Tensor out = new_tensor(DType::f32, whole.extent, Form::narrowed);
      start(comm, AllReduce{.x = x, .out = out});
      ASSERT_TRUE(is_combined(out, DType::f32, whole, comm.size(), ReduceOp::sum));
    }
  });
}

// Scaling writes over x what the others are to read unscaled.
TEST_P(FormConformance, ScalingInPlaceIsRefused) {
  on_ranks([](Comm& comm) {
    const Tensor out = Tensor::full(DType::f32, {comm.size(), 4}, 1.0f);
    const Tensor x = out.narrow(0, comm.rank(), 1);
    EXPECT_THROW(all_gather(comm, x, {.out = out, .scale = 0.5}), ShapeError);
    EXPECT_THROW(run(comm, Broadcast{.x = x, .out = x, .scale = 0.5}), ShapeError);
  });
}

}  // namespace
}  // namespace tessera::testing_support
