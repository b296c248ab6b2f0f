#include <tessera/mesh.hpp>

#include <unordered_set>

#include <tessera/error.hpp>

#include "layout/random_layout.hpp"
#include "support/refusal.hpp"

namespace tessera::testing_support {
namespace {

TEST(Mesh, NumbersRanksRowMajor) {
  const Mesh mesh({{"dp", 2}, {"tp", 4}});
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.rank_at({1, 2}), 6);
  EXPECT_EQ(mesh.coordinate(6), (Dims{1, 2}));
  EXPECT_FALSE(mesh.coordinate(8));
  EXPECT_FALSE(mesh.contains(-1));
  EXPECT_EQ(mesh.axis("tp"), 1u);
}

TEST(Mesh, TakesAnyRanks) {
  const Mesh mesh({{"x", 2}, {"y", 2}}, {7, 3, 9, 0});
  EXPECT_EQ(mesh.rank_at({0, 1}), 3);
  EXPECT_EQ(mesh.coordinate(9), (Dims{1, 0}));
  EXPECT_FALSE(mesh.contains(1));
  EXPECT_EQ(mesh.ranks(), (std::vector<int>{7, 3, 9, 0}));
}

TEST(Mesh, OfNoAxisIsOneRank) {
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_EQ(Mesh().rank_at({}), 0);
  EXPECT_EQ(fmt::format("{}", Mesh()), "");
  EXPECT_EQ(Mesh::parse(""), Mesh());
}

TEST(Mesh, SubmeshHasTheRanksAlongItsAxes) {
  const Mesh mesh({{"dp", 2}, {"tp", 3}, {"pp", 2}});
  EXPECT_EQ(mesh.submesh({"tp"}, 7), Mesh({{"tp", 3}}, {7, 9, 11}));
  EXPECT_EQ(mesh.submesh({"pp", "dp"}, 2), Mesh({{"pp", 2}, {"dp", 2}}, {2, 8, 3, 9}));
  EXPECT_EQ(mesh.submesh({}, 5), Mesh({}, {5}));
  EXPECT_NE(refusal<ShapeError>([&] { mesh.submesh({"tp"}, 12); }).find("rank 12 is not in the mesh"),
            std::string::npos);
  EXPECT_NE(refusal<ShapeError>([&] { mesh.submesh({"xp"}, 0); }).find("has no axis xp: it has dp, tp, pp"),
            std::string::npos);
  EXPECT_NE(refusal<ShapeError>([&] { mesh.submesh({"tp", "tp"}, 0); }).find("tp"), std::string::npos);
}

TEST(Mesh, ReadsItsText) {
  EXPECT_EQ(Mesh::parse("dp=2,tp=4"), Mesh({{"dp", 2}, {"tp", 4}}));
  EXPECT_EQ(Mesh::parse(" dp = 2 , tp=2 @ 8-10, 3"), Mesh({{"dp", 2}, {"tp", 2}}, {8, 9, 10, 3}));
  EXPECT_EQ(fmt::format("{}", Mesh({{"dp", 2}, {"tp", 2}}, {8, 9, 10, 3})), "dp=2,tp=2@8-10,3");
  EXPECT_EQ(fmt::format("{}", Mesh({{"tp", 2}}, {1, 0})), "tp=2@1,0");
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  const auto parse = [](const char* text) { return refusal<ShapeError>([&] { Mesh::parse(text); }); };
  EXPECT_NE(parse("dp").find("write name=size"), std::string::npos);
  EXPECT_NE(parse("dp=x").find("write name=size"), std::string::npos);
  EXPECT_NE(parse("dp=0").find("mesh axis dp has the size 0"), std::string::npos);
  EXPECT_NE(parse("dp=2,dp=2").find("two mesh axes have the name dp"), std::string::npos);
  EXPECT_NE(parse("S0=2").find("reads as a placement"), std::string::npos);
  EXPECT_NE(parse("R=2").find("reads as a placement"), std::string::npos);
  EXPECT_NE(parse("dp=2@0").find("2 places and was given 1 ranks"), std::string::npos);
  EXPECT_NE(parse("dp=2@0,0").find("rank 0 twice"), std::string::npos);
  EXPECT_NE(parse("dp=2@4-3").find("neither a rank nor a range"), std::string::npos);
  EXPECT_NE(parse("dp=2@-1,0").find("neither a rank nor a range"), std::string::npos);
  EXPECT_NE(refusal<ShapeError>([] { Mesh({{"a", 2}}, {0, -3}); }).find("ranks begin at 0"), std::string::npos);
  EXPECT_NE(refusal<ShapeError>([] { Mesh({{"a", 1 << 20}, {"b", 1 << 20}}); }).find("too large"), std::string::npos);
}

RC_GTEST_PROP(MeshProperty, TextAndCoordinatesComeBack, ()) {
  const Mesh mesh = pick_mesh(4, 40, static_cast<int>(pick(0, 2)));
  RC_ASSERT(Mesh::parse(to_string(mesh)) == mesh);
  RC_ASSERT(hash_of(Mesh::parse(to_string(mesh))) == hash_of(mesh));
  const std::vector<int> ranks = mesh.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    RC_ASSERT(mesh.coordinate(ranks[i]) == mesh.coordinate_of(static_cast<int64_t>(i)));
    RC_ASSERT(mesh.rank_at(*mesh.coordinate(ranks[i])) == ranks[i]);
  }
}

}  // namespace
}  // namespace tessera::testing_support
