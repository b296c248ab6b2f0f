#include <tessera/cost.hpp>

#include <cmath>

#include <tessera/error.hpp>

#include "plan/golden.hpp"

namespace tessera::testing_support {
namespace {

double cost(const Mesh& mesh, const char* from, const char* to, const Dims& shape = {64, 64}, int64_t per_host = 8) {
  return redistribute_cost({Layout::parse(mesh, from), shape}, {Layout::parse(mesh, to), shape}, per_host);
}

TEST(SeedCost, AllGoldenCases) {
  const auto cases = golden_cases();
  ASSERT_EQ(cases.size(), 379u);
  for (const GoldenCase& c : cases) {
    EXPECT_NEAR(redistribute_cost(c.from, c.to, c.per_host), c.seed_us, 1e-9 * std::max(1.0, c.seed_us)) << c.text;
  }
}

TEST(SeedCost, TopoInfoHasFourFields) {
  const Mesh mesh({{"dp", 2}, {"tp", 8}});
  const MeshTopoInfo info = MeshTopoInfo::build_from_mesh(mesh);
  EXPECT_EQ(info.mesh, mesh);
  EXPECT_EQ(info.mesh_dim_devices, (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(info.mesh_dim_bandwidth, (std::vector<double>{87.7 * 0.22, 87.7}));
  EXPECT_EQ(info.mesh_dim_latency, (std::vector<double>{2.7, 0.6}));
  EXPECT_EQ(MeshTopoInfo::build_from_mesh(mesh, 4).mesh_dim_latency, (std::vector<double>{2.7, 2.7}));
  EXPECT_THROW(MeshTopoInfo::build_from_mesh(mesh, 0), Error);
}

TEST(SeedCost, OfEachCollective) {
  const MeshTopoInfo info = MeshTopoInfo::build_from_mesh(Mesh({{"x", 4}}));
  EXPECT_DOUBLE_EQ(allgather_cost(1, info, 0), 6.6 + 3 * 0.6 + 0.75 / 87.7 * 1e6);
  EXPECT_DOUBLE_EQ(reduce_scatter_cost(1, info, 0), 6.6 + 3 * 0.6 + 0.75 / 87.7 * 1e6);
  EXPECT_DOUBLE_EQ(allreduce_cost(1, info, 0), 6.6 + 7 * 0.6 + 1.75 / 87.7 * 1e6);
}

TEST(SeedCost, SpecialCases) {
  const Mesh mesh({{"dp", 2}, {"tp", 4}}), other({{"dp", 4}, {"tp", 2}});
  const MeshTopoInfo info = MeshTopoInfo::build_from_mesh(mesh);
  const double gb = 64 * 64 * 4 / 1024.0 / 1024 / 1024;
  // Another mesh, even where nothing would move.
  EXPECT_TRUE(std::isinf(redistribute_cost({Layout::parse(mesh, "R,R"), {64}}, {Layout::parse(other, "R,R"), {64}})));
  EXPECT_EQ(cost(mesh, "R,R", "S0,P"), 0);
  EXPECT_TRUE(std::isinf(cost(mesh, "S0,R", "P,R")));
  EXPECT_EQ(cost(mesh, "P(sum),S0", "P(max),S0"), 0);
  // Replicate to shard keeps the running bytes: the all-gather behind it is of the whole quarter times four.
  EXPECT_DOUBLE_EQ(cost(mesh, "R,S0", "S1,R"), allgather_cost(gb, info, 1));
  EXPECT_DOUBLE_EQ(cost(mesh, "S0,R", "S1,R"), allgather_cost(gb / 2, info, 0) + 1);
  EXPECT_DOUBLE_EQ(cost(mesh, "P,P", "S0,R"), reduce_scatter_cost(gb, info, 0) + allreduce_cost(gb / 2, info, 1));
  EXPECT_EQ(cost(mesh, "S-1,R", "S1,R"), 0);
  EXPECT_THROW(cost(mesh, "At(0),R", "R,R"), ShapeError);
}

TEST(SeedCost, BytesOfASpec) {
  EXPECT_EQ(spec_to_bytes({Layout(), {3, 5}, DType::bf16}), 30);
  EXPECT_EQ(spec_to_bytes({Layout(), {}, DType::f64}), 8);
  EXPECT_EQ(spec_to_bytes({Layout(), {0, 5}, DType::f64}), 0);
  EXPECT_THROW(spec_to_bytes({Layout(), {int64_t{1} << 61}, DType::f64}), ShapeError);
}

}  // namespace
}  // namespace tessera::testing_support
