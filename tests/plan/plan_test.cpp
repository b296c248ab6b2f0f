#include <tessera/plan.hpp>

#include <thread>

#include <tessera/error.hpp>

#include "plan/simulate.hpp"
#include "support/refusal.hpp"

namespace tessera::testing_support {
namespace {

Plan plan_of(const Mesh& mesh, const char* from, const char* to, const Dims& shape, DType dtype = DType::f32,
             const PlanOptions& options = {}) {
  return plan(Layout::parse(mesh, from), Layout::parse(mesh, to), shape, dtype, Topology::dtensor(mesh), options);
}

std::vector<std::string> kinds(const Plan& plan) {
  std::vector<std::string> list;
  for (const Step& step : plan.steps()) list.emplace_back(name(step.kind));
  return list;
}
using Kinds = std::vector<std::string>;

const Mesh kMesh({{"dp", 2}, {"tp", 4}});

TEST(Plans, OfOneStep) {
  const Dims shape{4096, 4096};
  EXPECT_EQ(kinds(plan_of(kMesh, "S0,R", "S0,R", shape)), Kinds{});
  EXPECT_EQ(kinds(plan_of(kMesh, "R,R", "S0,S1", shape)), Kinds{"slice"});
  EXPECT_EQ(kinds(plan_of(kMesh, "S0,S0", "R,R", shape)), Kinds{"all_gather"});
  EXPECT_EQ(kinds(plan_of(kMesh, "S0,S1", "R,R", shape)), Kinds{"all_gather"});
  EXPECT_EQ(kinds(plan_of(kMesh, "P,P", "R,R", shape)), Kinds{"all_reduce"});
  EXPECT_EQ(kinds(plan_of(kMesh, "P,S0", "S1,S0", shape)), Kinds{"reduce_scatter"});
  EXPECT_EQ(kinds(plan_of(kMesh, "R,S0", "R,S1", shape)), Kinds{"all_to_all"});
  EXPECT_EQ(kinds(plan_of(kMesh, "At(0),S0", "R,S0", shape)), Kinds{"broadcast"});
  EXPECT_EQ(kinds(plan_of(kMesh, "At(1),S0", "S1,S0", shape)), Kinds{"scatter"});
  EXPECT_EQ(kinds(plan_of(kMesh, "R,S0", "R,At(2)", shape)), Kinds{"gather"});
  EXPECT_EQ(kinds(plan_of(kMesh, "R,P", "R,At(2)", shape)), Kinds{"reduce"});
  EXPECT_EQ(kinds(plan_of(kMesh, "S0,S1", "P,P", shape)), Kinds{"embed"});
  EXPECT_EQ(kinds(plan_of(kMesh, "R,R", "R,At(2)", shape)), Kinds{"slice"});
}

TEST(Plans, AStepSaysWhatItDoes) {
  const Plan plan = plan_of(kMesh, "R,S0", "R,S1", {4096, 4096});
  const Step& step = plan.steps().at(0);
  EXPECT_EQ(step.axes, (std::vector<size_t>{1}));
  EXPECT_EQ(step.from_dims, (std::vector<int64_t>{0}));
  EXPECT_EQ(step.to_dims, (std::vector<int64_t>{1}));
  EXPECT_EQ(to_string(step.before), "R,S0");
  EXPECT_EQ(to_string(step.after), "R,S1");
  EXPECT_EQ(step.bytes, 4096 * 4096 / 4 * 3);
  EXPECT_EQ(step.peak_bytes, 2 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(plan.cost_us(), 7.6 + 3 * 0.6 + 12582912 / (87.7 * (1 << 30)) * 1e6);
  EXPECT_EQ(plan.bytes_moved(), step.bytes);
}

TEST(Plans, OneRankAndAxesOfOneRankCostNothing) {
  const Mesh one({{"a", 1}, {"b", 1}});
  for (const char* from : {"S0,P", "R,R", "At(0),S1", "P,P"}) {
    for (const char* to : {"S1,S1", "P(max),R", "R,At(0)"}) {
      const Plan plan = plan_of(one, from, to, {3, 3});
      EXPECT_EQ(plan.cost_us(), 0) << from << to;
      EXPECT_LE(plan.steps().size(), 1u);
    }
  }
  EXPECT_EQ(plan_of(one, "S0,P", "S0,P", {3, 3}).steps().size(), 0u);
  EXPECT_EQ(plan_of(Mesh(), "", "", {}).steps().size(), 0u);
}

TEST(Plans, OfTensorsWithNoDimension) {
  EXPECT_EQ(kinds(plan_of(kMesh, "P,P", "R,R", {})), Kinds{"all_reduce"});
  EXPECT_EQ(kinds(plan_of(kMesh, "At(1),R", "R,R", {})), Kinds{"broadcast"});
  EXPECT_EQ(kinds(plan_of(kMesh, "P,R", "R,At(0)", {})).size(), 2u);
}

// The longest piece sets the pace of a ragged gather, and its receiver that of everyone.
TEST(Plans, SkewCosts) {
  const Mesh line({{"x", 4}});
  const Dims shape{1 << 22};
  const double even = plan_of(line, "S0", "R", shape).cost_us();
  const double skewed = plan_of(line, "S0[4194304,0,0,0]", "R", shape).cost_us();
  EXPECT_NEAR(skewed - 8.4, (even - 8.4) * 4 / 3, 1e-6);
  EXPECT_NEAR(plan_of(line, "S0[1048576,1048576,1048576,1048576]", "R", shape).cost_us(), even, 1e-9);
}

TEST(Plans, RaggedCutsOfBothEnds) {
  const Mesh line({{"x", 3}});
  const Plan recut = plan_of(line, "S0[3,0,5]", "S0[1,6,1]", {8, 1 << 20});
  EXPECT_EQ(kinds(recut), Kinds{"all_to_all"});
  EXPECT_EQ(kinds(plan_of(line, "S0[3,3,2]", "S0", {8, 4})), Kinds{"slice"});  // the same boxes in other words
  EXPECT_EQ(plan_of(line, "S0[3,3,2]", "S0", {8, 4}).cost_us(), 0);
  EXPECT_EQ(kinds(plan_of(kMesh, "S0[1,2,3,4,5,6,7,8]@tp,dp", "R,R", {36})), Kinds{"all_gather"});
}

TEST(Plans, SumsKeepTheOneTree) {
  // The last axis first: for float32 dp may follow tp, for bfloat16 both go at once; integers may take any order.
  const Mesh mesh({{"dp", 8}, {"tp", 2}});
  const auto reduced_alone = [&](DType dtype, const PlanOptions& options = {}) {
    const Plan plan = plan_of(mesh, "P,P", "S0,R", {1 << 12, 1 << 12}, dtype, options);
    return plan.steps().at(0).axes;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const size_t first : reduced_alone(dtype))
      EXPECT_TRUE(first == 1 || reduced_alone(dtype).size() == 2) << name(dtype);
  }
  EXPECT_EQ(reduced_alone(DType::bf16).size(), 2u);
  EXPECT_LE(plan_of(mesh, "P,P", "S0,R", {1 << 12, 1 << 12}, DType::i32).cost_us(),
            plan_of(mesh, "P,P", "S0,R", {1 << 12, 1 << 12}, DType::f32).cost_us());
}

TEST(Plans, RefuseWhatCannotBe) {
  EXPECT_NE(refusal([] { plan_of(kMesh, "S2,R", "R,R", {4, 4}); }).find("axis dp: dim 2"), std::string::npos);
  EXPECT_NE(refusal([] { plan_of(kMesh, "P(avg),R", "R,R", {4, 4}, DType::i32); }).find("avg"), std::string::npos);
  const Topology other = Topology::dtensor(Mesh({{"x", 2}}));
  EXPECT_NE(refusal([&] {
              plan(Layout::parse(kMesh, "S0,R"), Layout::parse(kMesh, "R,R"), {4}, DType::f32, other);
            }).find("says nothing of the axis dp"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              plan_of(Mesh::parse("a=2,b=2,c=2,d=2,e=2,f=2"), "S0,R,R,R,R,R", "R,R,R,R,R,S0", {64});
            }).find("plan() takes at most 5"),
            std::string::npos);
  EXPECT_NE(refusal([] { plan_of(kMesh, "R,R", "S0,R", {int64_t{1} << 61}, DType::f64); }).find("2^63"),
            std::string::npos);
}

TEST(Plans, KeepWithinTheLimit) {
  const Dims shape{1024, 1024};
  const auto with = [&](int64_t most) {
    return plan_of(kMesh, "S0,S1", "S1,S0", shape, DType::f32, {.max_bytes = most});
  };
  const int64_t part = 1024 * 1024 * 4 / 8;
  EXPECT_LE(with(2 * part).peak_bytes(), 2 * part);
  EXPECT_NE(refusal([&] { with(2 * part - 1); }).find(fmt::format("the least that would do is {} bytes", 2 * part)),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              plan_of(kMesh, "S0,S0", "R,R", shape, DType::f32, {.max_bytes = 1 << 20});
            }).find(fmt::format("{} bytes", 9 * part)),
            std::string::npos);
}

TEST(Plans, AreCachedByAllTheyDependOn) {
  Topology topology = Topology::dtensor(kMesh);
  const Layout from = Layout::parse(kMesh, "S0,S1"), to = Layout::parse(kMesh, "R,R");
  const double first = plan(from, to, {64, 64}, DType::f32, topology).cost_us();
  EXPECT_EQ(plan(from, to, {64, 64}, DType::f32, topology).cost_us(), first);
  topology.axes[0].link.latency_us += 1;
  EXPECT_GT(plan(from, to, {64, 64}, DType::f32, topology).cost_us(), first);
  topology.axes[0].link.latency_us -= 1;
  EXPECT_NEAR(plan(from, to, {64, 64}, DType::f32, topology).cost_us(), first, 1e-9);
  EXPECT_GT(plan(from, to, {64, 64}, DType::f64, topology).cost_us(), first);
  EXPECT_THROW(plan(from, to, {64, 64}, DType::f32, topology, {.max_bytes = 1}), Error);
}

TEST(Plans, CacheServesManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t n = 1; n < 200; ++n) {
        const Plan once = plan_of(kMesh, "S0,R", "R,S1", {n % 17 + 1, 8});
        wrong += once.shape()[0] != n % 17 + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Plans, AdjointGoesBackBetweenTheDuals) {
  const Plan gather = plan_of(kMesh, "S0,R", "R,R", {8, 8});
  EXPECT_EQ(kinds(gather.adjoint()), Kinds{"slice"});
  const Plan local = gather.adjoint(Convention::local);
  EXPECT_EQ(to_string(local.from()), "P(sum),P(sum)");
  EXPECT_EQ(to_string(local.to()), "S0,P(sum)");
  EXPECT_EQ(kinds(local), Kinds{"reduce_scatter"});
  EXPECT_EQ(local.scale(), 1);
  const Plan average = plan_of(kMesh, "S0,P(avg)", "S0,R", {8, 8});
  EXPECT_EQ(average.adjoint().scale(), 0.25);
  EXPECT_EQ(average.adjoint().cost_us(), 0);
  EXPECT_NE(refusal([] {
              plan_of(kMesh, "S0,P(max)", "S0,R", {8, 8}).adjoint();
            }).find("no linear adjoint"),
            std::string::npos);
}

TEST(Plans, AdjointBetweenMeshes) {
  const Mesh server({{"tp", 4}}, {8, 9, 10, 11});
  const Plan away = plan(Layout::parse(kMesh, "S0,R"), Layout::parse(server, "S1"), {16, 16}, DType::f32,
                         Topology::dtensor(kMesh, server, 8));
  const Plan back = away.adjoint(Convention::local);
  EXPECT_EQ(back.from().mesh(), server);
  EXPECT_EQ(to_string(back.to()), "S0,P(sum)");
  EXPECT_EQ(kinds(away), Kinds{"direct"});
}

TEST(Plans, ExplainAndJson) {
  const Plan plan = plan_of(kMesh, "S0,P", "S0,S1", {64, 64});
  const std::string text = plan.explain();
  EXPECT_NE(text.find("float32 [64, 64] on dp=2,tp=4: S0,P(sum) → S0,S1"), std::string::npos) << text;
  EXPECT_NE(text.find("reduce_scatter(tp)"), std::string::npos) << text;
  EXPECT_NE(plan.to_json().find(R"("kind":"reduce_scatter","axes":["tp"])"), std::string::npos) << plan.to_json();
}

TEST(Plans, FromElsewhereMustLeadThere) {
  const Dims shape{4096, 4096};
  const Plan good = plan_of(kMesh, "S0,P", "R,S1", shape);
  ASSERT_EQ(good.steps().size(), 2u) << good.explain();
  const auto with = [&](std::vector<Step> steps) {
    return Plan(good.from(), good.to(), shape, DType::f32, std::move(steps), good.topology());
  };
  EXPECT_EQ(with(good.steps()).cost_us(), good.cost_us());
  EXPECT_THROW(with({good.steps()[1], good.steps()[0]}), ShapeError);
  EXPECT_THROW(with({good.steps()[0]}), ShapeError);
  EXPECT_THROW(with({}), ShapeError);
}

// A slice reads nobody, so what is called one would give unsummed terms without a word.
TEST(Plans, FromElsewhereAreWhatTheyAreCalled) {
  const Dims shape{64, 64};
  const auto called = [&](const char* from, const char* to, StepKind kind) {
    const Plan good = plan_of(kMesh, from, to, shape);
    std::vector<Step> steps = good.steps();
    steps.at(0).kind = kind;
    return Plan(good.from(), good.to(), shape, DType::f32, std::move(steps), good.topology());
  };
  EXPECT_EQ(called("R,R", "S0,R", StepKind::slice).steps().size(), 1u);
  EXPECT_EQ(called("R,S1", "R,R", StepKind::direct).steps().size(), 1u);
  EXPECT_THROW(called("R,P", "R,S0", StepKind::slice), Error);
  EXPECT_THROW(called("R,S1", "R,R", StepKind::slice), Error);
  EXPECT_THROW(called("R,S1", "R,R", StepKind::embed), Error);
  EXPECT_THROW(called("R,S1", "R,R", StepKind::all_reduce), Error);
}

// Every step moves just what it says, within its groups, and the last one leaves the tensor in its layout.
void require_runs(const Plan& plan) {
  Parts parts = spread(plan.from(), plan.shape());
  RC_ASSERT(hold_the_tensor(parts, plan.from(), plan.shape()));
  for (const Step& step : plan.steps()) {
    if (step.kind != StepKind::direct) {
      const Mesh& mesh = step.before.mesh();
      const Exchange exchange(step.before, step.after, plan.shape());
      const bool local = step.kind == StepKind::slice || step.kind == StepKind::embed;
      for (const int rank : mesh.ranks()) {
        for (const Overlap& o : exchange.receives(rank)) {
          const Dims here = *mesh.coordinate(rank), there = *mesh.coordinate(o.rank);
          for (size_t a = 0; a < mesh.ndim(); ++a) {
            const bool may_differ = !local && std::find(step.axes.begin(), step.axes.end(), a) != step.axes.end();
            RC_ASSERT(here[a] == there[a] || may_differ);
          }
        }
      }
    }
    parts = exchanged(parts, step.before, step.after, plan.shape());
    RC_ASSERT(hold_the_tensor(parts, step.after, plan.shape()));
  }
}

Topology pick_topology(const Mesh& from, const Mesh& to) {
  Topology topology = Topology::dtensor(from, to, pick(1, 8));
  if (pick(0, 1) == 0) topology.base_us = topology.exchange_base_us = 0.01;  // so that bytes of tiny tensors matter
  if (pick(0, 2) == 0) topology.copy = Curve::at(1e9);
  for (auto& axis : topology.axes) axis.link.latency_us = static_cast<double>(pick(0, 3)) / 4;
  for (auto& axis : topology.axes) axis.link.transfer = Curve{{{8, static_cast<double>(pick(1, 9))}, {64, 20}}};
  return topology;
}

RC_GTEST_PROP(PlanProperty, StepsDoWhatTheySay, ()) {
  const Mesh mesh = pick_mesh();
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape), to = pick_layout(mesh, shape);
  const Plan found = plan(from, to, shape, DType::f32, pick_topology(mesh, mesh));
  RC_LOG() << found.explain();
  require_runs(found);
}

RC_GTEST_PROP(PlanProperty, StepsBetweenMeshesDoWhatTheySay, ()) {
  const Mesh mesh = pick_mesh(2, 6), other = pick_mesh(2, 6, static_cast<int>(pick(0, 8)));
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape), to = pick_layout(other, shape);
  Topology topology = pick_topology(mesh, other);
  if (!(mesh == other) && topology.target_axes.empty()) topology.target_axes = Topology::dtensor(other).axes;
  const Plan found = plan(from, to, shape, DType::f32, topology);
  RC_LOG() << found.explain();
  require_runs(found);
}

RC_GTEST_PROP(PlanProperty, ALimitIsKeptAndTheLeastIsTrue, ()) {
  const Mesh mesh = pick_mesh(3, 8);
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape), to = pick_layout(mesh, shape);
  const Topology topology = Topology::dtensor(mesh, 2);
  const int64_t limit = pick(0, 4 * volume(shape) * 3);
  const auto within = [&](int64_t most) { return plan(from, to, shape, DType::f32, topology, {.max_bytes = most}); };
  int64_t least = 0;
  try {
    const Plan found = within(limit);
    for (const Step& step : found.steps()) RC_ASSERT(step.peak_bytes <= limit);
    RC_ASSERT(found.cost_us() >= plan(from, to, shape, DType::f32, topology).cost_us());
    return;
  } catch (const Error& error) {
    const std::string text = error.what();
    least = std::stoll(text.substr(text.find("would do is ") + 12));
  }
  RC_ASSERT(least > limit);
  RC_ASSERT(within(least).peak_bytes() == least);
  try {
    within(least - 1);
  } catch (const Error&) {
    return;
  }
  RC_FAIL("less would have done");
}

}  // namespace
}  // namespace tessera::testing_support
