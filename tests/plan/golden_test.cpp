#include <tessera/plan.hpp>

#include "plan/golden.hpp"

namespace tessera::testing_support {
namespace {

TEST(GoldenPlans, DTensorsDefaultRouteCostsWhatPyTorchSays) {
  for (const GoldenCase& c : golden_cases()) {
    const Topology topology = Topology::dtensor(c.from.layout.mesh(), c.per_host);
    const auto route = dtensor_route(c.from.layout, c.to.layout, c.from.shape, c.from.dtype, topology);
    ASSERT_TRUE(route.has_value()) << c.text;
    EXPECT_NEAR(route->cost_us, c.torch_us, 1e-9 * std::max(1.0, c.torch_us)) << c.text;
  }
}

TEST(GoldenPlans, NeverDearerThanPyTorchsGraphSearch) {
  double ours = 0, searched = 0, standard = 0;
  for (const GoldenCase& c : golden_cases()) {
    const Topology topology = Topology::dtensor(c.from.layout.mesh(), c.per_host);
    const Plan found = plan(c.from.layout, c.to.layout, c.from.shape, c.from.dtype, topology);
    EXPECT_LE(found.cost_us(), c.torch_min_us + 1e-9) << c.text << "\n" << found.explain();
    ours += found.cost_us();
    searched += c.torch_min_us;
    standard += c.torch_us;
  }
  EXPECT_LT(ours, searched);
  RecordProperty("ours_us", std::to_string(ours));
  RecordProperty("graph_search_us", std::to_string(searched));
  RecordProperty("default_us", std::to_string(standard));
}

}  // namespace
}  // namespace tessera::testing_support
