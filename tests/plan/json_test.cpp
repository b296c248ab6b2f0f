// Topologies and plans as JSON, both ways, and where the figures of this machine are looked for.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "support/refusal.hpp"

namespace tessera::testing_support {
namespace {

// A copy of the text in which the first `what` is `with`.
std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what << " in " << text;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

Topology rich_topology() {
  Topology topology;
  topology.base_us = 1.0 / 3;
  topology.exchange_base_us = 1e-9;
  topology.copy = {{{4096, 0.1}, {1 << 20, 123.456789012345678}}};
  topology.axes = {{"dp", {2.5, {{{1e3, 0}, {1e9, 1e20}}}, {{{7, 3}}}}}, {"*", {0.25, {{{1, 1}}}, {}}, 4}};
  topology.target_axes = {{"a \"name\"\n", {}, 2}};
  topology.between = {3, {{{10, 20}}}, {{{30, 40}}}, {{{50, 60}}}, {{{70, 80}}}, {{{90, 100}, {91, 100}, {92, 105}}}};
  return topology;
}

TEST(TopologyJson, ComesBackAsItWas) {
  for (const Topology& topology : {Topology(), rich_topology(), Topology::dtensor(Mesh({{"dp", 2}, {"tp", 8}}), 4)}) {
    EXPECT_EQ(Topology::from_json(topology.to_json()), topology) << topology.to_json();
  }
}

TEST(TopologyJson, WhatIsLeftOutIsNothing) {
  const Topology topology = Topology::from_json(R"({"base_us": 5, "axes": [{"name": "x"}]})");
  EXPECT_EQ(topology.exchange_base_us, 5);
  EXPECT_EQ(topology.axes[0].link, Link());
}

TEST(TopologyJson, ComplaintsNameTheField) {
  const auto complaint = [](const char* text) { return refusal([&] { Topology::from_json(text); }); };
  EXPECT_NE(complaint("{").find("the topology is no JSON"), std::string::npos);
  EXPECT_EQ(complaint("[]"), "the topology is no object");
  EXPECT_EQ(complaint("{}"), "the topology has no axes");
  EXPECT_EQ(complaint(R"({"base_us": "much", "axes": []})"), "the topology's base_us is no number");
  EXPECT_EQ(complaint(R"({"axes": [{"name": "x"}, {"name": 5}]})"), "the topology's axes[1]'s name is no text");
  EXPECT_EQ(complaint(R"({"axes": [{"latency_us": 5}]})"), "the topology's axes[0] has no name");
  EXPECT_EQ(complaint(R"({"axes": [{"name": "x", "ranks": 1.5}]})"),
            "the topology's axes[0]'s ranks is no whole number");
  EXPECT_EQ(complaint(R"({"axes": [{"name": "x", "transfer": [[1, 2], [3]]}]})"),
            "the topology's axes[0]'s transfer[1] is no knot: write [bytes, microseconds]");
  EXPECT_EQ(complaint(R"({"axes": [], "between": {"reduce": 7}})"), "the topology's between's reduce is no list");
  EXPECT_NE(complaint(R"({"axes": [{"name": "x", "latency_us": -1}]})").find("axis x latency is -1"),
            std::string::npos);
  EXPECT_NE(complaint(R"({"axes": [{"name": "x", "ranks": -1}]})").find("axis x is for -1 ranks"), std::string::npos);
}

TEST(TopologyAxes, AreFoundByNameThenByNumberOfRanks) {
  Topology topology;
  const auto add = [&](const char* name, int64_t ranks, double latency) {
    topology.axes.push_back({name, {latency, {}, {}}, ranks});
  };
  add("tp", 2, 1);
  add("tp", 8, 2);
  add("*", 2, 3);
  add("*", 8, 4);
  const auto latency = [&](const char* name, int64_t size) {
    return topology.links(Mesh({{name, size}}))[0].latency_us;
  };
  EXPECT_EQ(latency("tp", 2), 1);
  EXPECT_EQ(latency("tp", 3), 1);
  EXPECT_EQ(latency("tp", 5), 2);
  EXPECT_EQ(latency("dp", 2), 3);
  EXPECT_EQ(latency("dp", 1024), 4);
  add("*", 0, 5);
  EXPECT_EQ(latency("dp", 8), 4);
  EXPECT_EQ(latency("dp", 7), 5);
  add("tp", 0, 6);
  EXPECT_EQ(latency("tp", 7), 6);
}

std::vector<Plan> some_plans() {
  const Mesh mesh({{"dp", 2}, {"tp", 4}}), other({{"x", 3}}, {9, 10, 11});
  const Topology topology = Topology::dtensor(mesh);
  const Dims shape = {24, 16};
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  return {plan(layout("S0,P(sum)"), layout("S1,S0"), shape, DType::f32, topology),
          plan(layout("S0[1,2,3,4,5,6,3,0]@tp,dp"), layout("R,S0"), shape, DType::bf16, topology,
               {.max_bytes = 1 << 20, .any_order = true}),
          plan(layout("At(1),R"), layout("P(max),S1"), shape, DType::i64, topology),
          plan(layout("R,R"), layout("R,R"), shape, DType::f32, topology),
          plan(layout("S0,S1"), Layout::parse(other, "S1"), shape, DType::c64, Topology::dtensor(mesh, other, 4)),
          plan(layout("S0,R"), layout("S0,P(avg)"), shape, DType::f32, topology).adjoint()};
}

TEST(PlanJson, ComesBackAsItWas) {
  for (const Plan& plan : some_plans()) {
    const Plan back = Plan::from_json(plan.to_json());
    EXPECT_EQ(back.to_json(), plan.to_json());
    EXPECT_EQ(back.explain(), plan.explain());
    EXPECT_EQ(back.cost_us(), plan.cost_us());
    EXPECT_EQ(back.peak_bytes(), plan.peak_bytes());
    EXPECT_EQ(back.scale(), plan.scale());
    EXPECT_EQ(back.topology(), plan.topology());
    EXPECT_EQ(back.options(), plan.options());
    ASSERT_EQ(back.steps().size(), plan.steps().size());
    for (size_t i = 0; i < plan.steps().size(); ++i) {
      const Step &a = back.steps()[i], &b = plan.steps()[i];
      EXPECT_TRUE(a.kind == b.kind && a.axes == b.axes && a.before == b.before && a.after == b.after) << plan.explain();
      EXPECT_TRUE(a.from_dims == b.from_dims && a.to_dims == b.to_dims) << plan.explain();
    }
  }
}

TEST(PlanJson, ComplaintsNameTheField) {
  const std::string good = some_plans()[0].to_json();
  const auto complaint = [&](const char* what, const char* with) {
    return refusal([&] { Plan::from_json(replaced(good, what, with)); });
  };
  EXPECT_NE(complaint("{", "").find("the plan is no JSON"), std::string::npos);
  EXPECT_EQ(complaint("\"scale\"", "\"stale\""), "the plan has no scale");
  EXPECT_EQ(complaint("\"any_order\":false", "\"any_order\":0"), "the plan's any_order is no true or false");
  EXPECT_EQ(complaint("[24,16]", "[24,\"16\"]"), "the plan's shape: the plan's shape[1] is no whole number");
  EXPECT_NE(complaint("[24,16]", "[24,-16]").find("the plan's shape: "), std::string::npos);
  EXPECT_NE(complaint("float32", "float33").find("the plan's dtype: "), std::string::npos);
  EXPECT_NE(complaint("\"mesh\":\"dp=2", "\"mesh\":\"dp=0").find("the plan's mesh: "), std::string::npos);
  EXPECT_NE(complaint("\"to\":\"S1", "\"to\":\"S7").find("the plan's to: "), std::string::npos);
  EXPECT_EQ(complaint("\"direct\"", "\"detour\""), "the plan's steps[0]'s kind is detour, which is no kind of step");
  EXPECT_NE(complaint("\"axes\":[\"dp\"", "\"axes\":[\"xp\"").find("the plan's steps[0]'s axes[0]: "),
            std::string::npos);
  EXPECT_EQ(complaint("\"axes\":[\"dp\"", "\"axes\":[\"tp\""),
            "the plan's steps[0]'s axes are not each once, in the mesh's order");
  EXPECT_NE(complaint("\"topology\":{\"base_us\":", "\"topology\":{\"base_us\":-").find("base latency is -"),
            std::string::npos);
}

TEST(PlanJson, StepsMustLeadThere) {
  const std::string good = some_plans()[0].to_json();
  EXPECT_THROW(Plan::from_json(replaced(good, "\"to\":\"S1,S0\"", "\"to\":\"S1,R\"")), ShapeError);
  EXPECT_THROW(Plan::from_json(replaced(good, "\"from\":\"S0,P(sum)\"", "\"from\":\"S0,R\"")), ShapeError);
}

// A step that is called a slice would else be one on every rank, whatever its layouts say.
TEST(PlanJson, AStepIsWhatItIsCalled) {
  const Mesh mesh({{"x", 2}});
  const auto complaint = [&](const char* from, const char* to, const char* kind, const char* called) {
    const Plan good =
        plan(Layout::parse(mesh, from), Layout::parse(mesh, to), {4, 6}, DType::f32, Topology::dtensor(mesh));
    EXPECT_EQ(name(good.steps()[0].kind), kind);
    const auto quoted = [](const char* text) { return "\"" + std::string(text) + "\""; };
    return refusal([&] { Plan::from_json(replaced(good.to_json(), quoted(kind), quoted(called))); });
  };
  EXPECT_EQ(complaint("P", "S0", "reduce_scatter", "slice"), "the plan's steps[0] is called slice, but sums 2 terms");
  EXPECT_EQ(complaint("S0", "R", "all_gather", "embed"),
            "the plan's steps[0] is called embed, but rank 0 gets elements from rank 1");
  EXPECT_EQ(complaint("P", "S0", "reduce_scatter", "all_reduce"),
            "the plan's steps[0] is called all_reduce, but goes from P(sum) to S0 along x");
  EXPECT_EQ(complaint("R", "P", "embed", "slice"),
            "the plan's steps[0] is called slice, but rank 1's part is one of a sum that becomes pending");
  EXPECT_EQ(complaint("At(0)", "P", "embed", "slice"),
            "the plan's steps[0] is called slice, but rank 1 has nothing to cut");
  EXPECT_EQ(complaint("R", "S0", "slice", "slice"), "accepted");
  const Plan gather =
      plan(Layout::parse(mesh, "S0"), Layout::parse(mesh, "R"), {4, 6}, DType::f32, Topology::dtensor(mesh));
  EXPECT_NE(refusal([&] {
              Plan::from_json(replaced(replaced(gather.to_json(), "\"all_gather\"", "\"all_reduce\""),
                                       "\"axes\":[\"x\"]", "\"axes\":[]"));
            }).find("is called all_reduce, but goes from S0 to R along x"),
            std::string::npos);
}

// Sets an environment variable, and puts it back.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (before_) setenv(name_, before_->c_str(), 1);
    else unsetenv(name_);
  }
  Environment(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class Calibrated : public ::testing::Test {
 protected:
  Calibrated() {
    char name[] = "/tmp/tessera-test-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Calibrated() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& path, double base_us) const {
    Topology topology;
    topology.base_us = base_us;
    const std::filesystem::path whole = folder_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << topology.to_json();
    return whole;
  }

  std::string folder_;
};

TEST_F(Calibrated, IsWhereTheEnvironmentSays) {
  write("home/.config/tessera/topology.json", 1);
  const Environment named("TESSERA_TOPOLOGY", ""), config("XDG_CONFIG_HOME", ""), home("HOME", folder_ + "/home");
  EXPECT_EQ(Topology::calibrated().base_us, 1);
  const Environment other("XDG_CONFIG_HOME", folder_ + "/config");
  EXPECT_EQ(Topology::calibrated().base_us, 1) << "the next place where there is none in the first";
  write("config/tessera/topology.json", 2);
  EXPECT_EQ(Topology::calibrated().base_us, 2);
  const Environment file("TESSERA_TOPOLOGY", write("mine.json", 3));
  EXPECT_EQ(Topology::calibrated().base_us, 3);
}

TEST_F(Calibrated, SaysWhereItLookedAndWhatToDo) {
  const Environment named("TESSERA_TOPOLOGY", ""), config("XDG_CONFIG_HOME", folder_ + "/a"),
      home("HOME", folder_ + "/b");
  const std::string text = refusal([] { Topology::calibrated(); });
  for (const std::string& piece : {folder_ + "/a/tessera/topology.json", folder_ + "/b/.config/tessera/topology.json",
                                   std::string("`tessera calibrate`")}) {
    EXPECT_NE(text.find(piece), std::string::npos) << text;
  }
  // A file that was named is not replaced by another one.
  const Environment file("TESSERA_TOPOLOGY", folder_ + "/none.json");
  write("b/.config/tessera/topology.json", 1);
  EXPECT_NE(refusal([] { Topology::calibrated(); }).find("/none.json"), std::string::npos);
  std::ofstream(folder_ + "/none.json") << "{}";
  EXPECT_EQ(refusal([] { Topology::calibrated(); }), folder_ + "/none.json: the topology has no axes");
}

}  // namespace
}  // namespace tessera::testing_support
