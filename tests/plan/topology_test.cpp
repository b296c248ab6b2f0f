#include <tessera/topology.hpp>

#include <cmath>

#include <gtest/gtest.h>
#include <tessera/error.hpp>

namespace tessera::testing_support {
namespace {

TEST(Curve, RunsThroughItsKnots) {
  const Curve curve{{{100, 10}, {200, 12}, {400, 20}}};
  EXPECT_EQ(curve(0), 0);
  EXPECT_DOUBLE_EQ(curve(50), 5);
  EXPECT_DOUBLE_EQ(curve(100), 10);
  EXPECT_DOUBLE_EQ(curve(150), 11);
  EXPECT_DOUBLE_EQ(curve(300), 16);
  EXPECT_DOUBLE_EQ(curve(1400), 60);
  EXPECT_EQ(Curve()(1e9), 0);
  EXPECT_DOUBLE_EQ(Curve::at(1e9)(1e6), 1000);
}

TEST(Topology, DTensorsPreset) {
  const Topology topology = Topology::dtensor(Mesh({{"dp", 2}, {"tp", 8}}));
  EXPECT_EQ(topology.base_us, 6.6);
  EXPECT_EQ(topology.axes[0].link.latency_us, 2.7);
  EXPECT_EQ(topology.axes[1].link.latency_us, 0.6);
  EXPECT_NEAR(topology.axes[1].link.transfer(87.7 * (1 << 30)), 1e6, 1e-6);
  EXPECT_NEAR(topology.axes[0].link.transfer(0.22 * 87.7 * (1 << 30)), 1e6, 1e-6);
}

TEST(Topology, BetweenMeshesTheWayMayLeaveTheHost) {
  const Mesh from({{"dp", 4}}), near({{"tp", 4}}, {4, 5, 6, 7}), far({{"tp", 4}}, {8, 9, 10, 11});
  EXPECT_EQ(Topology::dtensor(from, near, 8).between.latency_us, 0.6);
  EXPECT_EQ(Topology::dtensor(from, far, 8).between.latency_us, 2.7);
  EXPECT_EQ(Topology::dtensor(from, far, 8).links(far, true).size(), 1u);
}

TEST(Topology, MissesNoAxisSilently) {
  const Topology topology = Topology::dtensor(Mesh({{"dp", 2}}));
  try {
    topology.links(Mesh({{"tp", 2}}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("says nothing of the axis tp"), std::string::npos) << error.what();
  }
}

TEST(Topology, RefusesWhatIsNoTime) {
  Topology topology = Topology::dtensor(Mesh({{"dp", 2}}));
  EXPECT_NO_THROW(topology.check());
  topology.base_us = -1;
  EXPECT_THROW(topology.check(), Error);
  topology = Topology::dtensor(Mesh({{"dp", 2}}));
  topology.axes[0].link.transfer.knots = {{100, 5}, {50, 6}};
  EXPECT_THROW(topology.check(), Error);
  topology.axes[0].link.transfer.knots = {{100, 5}, {150, 4}};
  EXPECT_THROW(topology.check(), Error);
  topology.axes[0].link.transfer.knots = {{100, std::nan("")}};
  EXPECT_THROW(topology.check(), Error);
}

TEST(Topology, HashFollowsTheContent) {
  const Topology one = Topology::dtensor(Mesh({{"dp", 2}}));
  Topology two = Topology::dtensor(Mesh({{"dp", 2}}));
  EXPECT_EQ(hash_of(one), hash_of(two));
  EXPECT_EQ(one, two);
  two.axes[0].link.transfer.knots[0].us += 1;
  EXPECT_NE(hash_of(one), hash_of(two));
  EXPECT_FALSE(one == two);
}

}  // namespace
}  // namespace tessera::testing_support
