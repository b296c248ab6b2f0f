#include <tessera/layout.hpp>

#include <map>

#include <tessera/error.hpp>

#include "layout/random_layout.hpp"
#include "support/refusal.hpp"

namespace tessera::testing_support {
namespace {

const Mesh kMesh({{"dp", 2}, {"tp", 2}});

Sizes extents(const Layout& layout, const Dims& shape, size_t dim) {
  Sizes sizes;
  for (const int rank : layout.mesh().ranks()) sizes.push_back(layout.box(shape, rank)->extent[dim]);
  return sizes;
}

TEST(LayoutBoxes, ChunkAsTorchDoes) {
  const Mesh line({{"x", 4}});
  EXPECT_EQ(extents(Layout(line, {Shard(0)}), {5}, 0), (Sizes{2, 2, 1, 0}));
  EXPECT_EQ(extents(Layout(line, {Shard(-1)}), {3, 8}, 1), (Sizes{2, 2, 2, 2}));
  EXPECT_EQ(extents(Layout(line, {Shard(0)}), {0}, 0), (Sizes{0, 0, 0, 0}));
  EXPECT_EQ(extents(Layout(line, {Shard(0)}), {1}, 0), (Sizes{1, 0, 0, 0}));
}

TEST(LayoutBoxes, CutAgainWhatTheAxisBeforeLeft) {
  // 7 rows: 4 and 3; then 2, 2 and 2, 1.
  EXPECT_EQ(extents(Layout(kMesh, {Shard(0), Shard(0)}), {7}, 0), (Sizes{2, 2, 2, 1}));
  // tp first: rank (dp, tp) has piece tp * 2 + dp.
  const Layout swapped(kMesh, {Shard(0), Shard(0)}, {"tp", "dp"});
  EXPECT_EQ(swapped.box({7}, 1)->offset[0], 4);
  EXPECT_EQ(swapped.box({7}, 2)->offset[0], 2);
  // 5 rows by 3 and then by 2: 2, 2, 1 and 1+1, 1+1, 1+0, not the 1, 1, 1, 1, 1, 0 of six at once by chance only.
  EXPECT_EQ(extents(Layout(Mesh({{"a", 3}, {"b", 2}}), {Shard(0), Shard(0)}), {10}, 0), (Sizes{2, 2, 2, 2, 1, 1}));
}

TEST(LayoutBoxes, RaggedCutsByOneAxisAndSeveral) {
  EXPECT_EQ(extents(Layout(Mesh({{"x", 3}}), {Shard(1, {3, 0, 5})}), {2, 8}, 1), (Sizes{3, 0, 5}));
  const Layout both(kMesh, {Shard(0, {1, 2, 4, 1}), Shard(0, {1, 2, 4, 1})}, {"tp", "dp"});
  EXPECT_EQ(extents(both, {8}, 0), (Sizes{1, 4, 2, 1}));
}

TEST(LayoutBoxes, AtHoldsNothingElsewhere) {
  const Layout layout(kMesh, {At(1), Shard(0)});
  EXPECT_FALSE(layout.box({4}, 0));
  EXPECT_EQ(layout.box({4}, 3), (Box{{2}, {2}}));
  EXPECT_FALSE(layout.box({4}, 4));
}

TEST(LayoutBoxes, OfTensorsWithNoDimension) {
  const Layout layout(kMesh, {Partial(), At(0)});
  EXPECT_EQ(layout.box({}, 2), Box());
  EXPECT_FALSE(layout.box({}, 1));
  EXPECT_NE(refusal([] {
              Layout(kMesh, {Shard(0), Replicate()}).resolved({});
            }).find("0 dimensions"),
            std::string::npos);
}

TEST(Layouts, RefuseBoxesOfNoPlace) {
  const Layout ragged = Layout::parse(kMesh, "S0[2,2],R");
  EXPECT_NE(refusal([&] { ragged.box({3}, 1); }).find("add up to 4, but dim 0 of [3] has 3"), std::string::npos);
  EXPECT_NE(refusal([&] { ragged.box({4}, Dims{40, 0}); }).find("[40, 0] is no coordinate"), std::string::npos);
  EXPECT_NE(refusal([&] { ragged.box({4}, Dims{0}); }).find("[0] is no coordinate"), std::string::npos);
}

TEST(LayoutText, IsReadAndWritten) {
  const auto again = [](const Mesh& mesh, const char* text) { return to_string(Layout::parse(mesh, text)); };
  for (const char* text : {"S0,R", "S1,S0", "S0,S0", "P(sum),At(1)", "P(max),R", "S0[3,0],R", "S0@tp,dp",
                           "S0[1,2,4,1]@dp,tp", "S0[1,2,4,1]@tp,dp", "S-1,R", "S-1[1,2,4,1]@dp,tp"}) {
    EXPECT_EQ(again(kMesh, text), text);
  }
  EXPECT_EQ(again(kMesh, " S0 , P "), "S0,P(sum)");
  EXPECT_EQ(again(kMesh, "S0@tp,R"), "R,S0");
  EXPECT_EQ(again(Mesh::parse("a=2,b=2,c=2"), "S1@c,a,P"), "S1@c,a,P(sum)");
  EXPECT_EQ(again(Mesh(), ""), "");
}

TEST(LayoutText, RefusesWhatIsNoLayout) {
  const auto parse = [](const char* text) { return refusal([&] { Layout::parse(kMesh, text); }); };
  EXPECT_NE(parse("S0").find("give one placement for each of its 2 axes"), std::string::npos);
  EXPECT_NE(parse("S0,R,R").find("give one placement for each of its 2 axes"), std::string::npos);
  EXPECT_NE(parse("X,R").find("\"X\" is no placement"), std::string::npos);
  EXPECT_NE(parse("Sx,R").find("\"Sx\" is no placement"), std::string::npos);
  EXPECT_NE(parse("S0[1,,R").find("is no placement"), std::string::npos);
  EXPECT_NE(parse("S0[],R").find("empty list of sizes"), std::string::npos);
  EXPECT_NE(parse("P(median),R").find("\"median\" is no operation"), std::string::npos);
  EXPECT_NE(parse("P(premul_sum),R").find("is no operation"), std::string::npos);
  EXPECT_NE(parse("At(2),R").find("axis dp has At(2), but 2 ranks: use 0 to 1"), std::string::npos);
  EXPECT_NE(parse("P(sum),P(max)").find("only one operation can be pending"), std::string::npos);
  EXPECT_NE(parse("S0@zp,R").find("no axis zp"), std::string::npos);
  EXPECT_NE(parse("S0@dp,dp").find("places axis dp twice"), std::string::npos);
  EXPECT_NE(parse("S0[1,2,3],R").find("dim 0 is cut by dp of 2 ranks, but has 3 sizes"), std::string::npos);
  EXPECT_NE(parse("S0[1,-2],R").find("one of the sizes is -2"), std::string::npos);
  EXPECT_NE(parse("S0[1,2],S0").find("both cut dim 0, into different sizes"), std::string::npos);
}

TEST(LayoutChecks, NameTheFieldAndTheRemedy) {
  EXPECT_NE(refusal([] { Layout(kMesh, {Shard(0)}); }).find("has 2 axes and was given 1 placements"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              Layout(kMesh, {Shard(2), Replicate()}).resolved({4, 4});
            }).find("axis dp: dim 2 is out"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              Layout(kMesh, {Shard(0, {1, 2}), Replicate()}).resolved({4});
            }).find("the sizes [1, 2] of axis dp add up to 3, but dim 0 of [4] has 4"),
            std::string::npos);
  const auto with_order = [](std::vector<Placement> placements, std::vector<std::string> order) {
    return refusal([&] { Layout(kMesh, placements, order); });
  };
  EXPECT_NE(with_order({Shard(0), Replicate()}, {"tp"}).find("tp, which cuts no dimension"), std::string::npos);
  EXPECT_NE(with_order({Shard(0), Shard(0)}, {"tp"}).find("leaves out axis dp"), std::string::npos);
  EXPECT_NE(with_order({Shard(0), Shard(0)}, {"tp", "tp"}).find("names axis tp twice"), std::string::npos);
  EXPECT_NE(with_order({Shard(-1), Shard(-1)}, {"tp", "dp"}).find("counted from the front"), std::string::npos);
}

// Whether -1 and 1 are one dimension is known only with a shape.
TEST(LayoutChecks, NegativeDimsMeetPositiveOnes) {
  const Layout layout(kMesh, {Shard(-1), Shard(1)});
  EXPECT_EQ(layout.resolved({2, 8}), Layout(kMesh, {Shard(1), Shard(1)}));
  EXPECT_EQ(layout.box({2, 8}, 3), (Box{{0, 6}, {2, 2}}));
  EXPECT_EQ(layout.box({2, 8, 4}, 3), (Box{{0, 4, 2}, {2, 4, 2}}));
}

TEST(LayoutDual, FollowsTheConvention) {
  const Mesh mesh({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}});
  const Layout layout = Layout::parse(mesh, "R,P(sum),S0,At(1)");
  EXPECT_EQ(to_string(layout.dual()), "P(sum),R,S0,At(1)");
  EXPECT_EQ(to_string(layout.dual(Convention::global)), "R,R,S0,At(1)");
  EXPECT_EQ(to_string(Layout(kMesh, {Partial(ReduceOp::avg), Shard(0)}).dual()), "R,S0");
  for (const ReduceOp op : {ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::bit_or}) {
    EXPECT_NE(refusal([&] {
                Layout(kMesh, {Partial(op), Replicate()}).dual();
              }).find("no linear adjoint"),
              std::string::npos);
  }
}

TEST(LayoutEquality, TellsOrdersAndRaggedCutsApart) {
  const Layout plain(kMesh, {Shard(0), Shard(0)});
  EXPECT_EQ(plain, Layout(kMesh, {Shard(0), Shard(0)}, {"dp", "tp"}));
  EXPECT_FALSE(plain == Layout(kMesh, {Shard(0), Shard(0)}, {"tp", "dp"}));
  EXPECT_FALSE(Layout(kMesh, {Shard(0), Replicate()}) == Layout(kMesh, {Shard(0, {2, 2}), Replicate()}));
  EXPECT_FALSE(Layout(kMesh, {Partial(), Replicate()}) == Layout(kMesh, {Partial(ReduceOp::max), Replicate()}));
}

RC_GTEST_PROP(LayoutProperty, TextComesBack, ()) {
  const Dims shape = pick_shape();
  const Layout layout = pick_layout(pick_mesh(), shape);
  RC_LOG() << to_string(layout) << "\n";
  RC_ASSERT(Layout::parse(layout.mesh(), to_string(layout)) == layout);
  RC_ASSERT(hash_of(Layout::parse(layout.mesh(), to_string(layout))) == hash_of(layout));
  RC_ASSERT(layout.resolved(shape) == layout);
}

// Along the axes that cut, the boxes tile the tensor; along the others all hold the same, or At's only one.
RC_GTEST_PROP(LayoutProperty, BoxesTileTheTensor, ()) {
  const Dims shape = pick_shape();
  const Layout layout = pick_layout(pick_mesh(), shape);
  int64_t copies = 1;
  for (size_t a = 0; a < layout.mesh().ndim(); ++a) {
    const auto kind = layout.placements()[a].kind;
    if (kind == Placement::Kind::replicate || kind == Placement::Kind::partial) copies *= layout.mesh().size(a);
  }
  std::map<std::vector<int64_t>, int64_t> counts;
  for (const int rank : layout.mesh().ranks()) {
    const auto box = layout.box(shape, rank);
    if (box) for_each_in(*box, [&](const Dims& at) { ++counts[key_of(at)]; });
  }
  RC_ASSERT(static_cast<int64_t>(counts.size()) == volume(shape));
  for (const auto& [at, count] : counts) RC_ASSERT(count == copies);
}

}  // namespace
}  // namespace tessera::testing_support
