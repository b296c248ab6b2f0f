// Collectives along the axes of a mesh, and the communicators of its axes.
#include <tessera/mesh_collective.hpp>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class OnMesh : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, OnMesh, everywhere(), name_of);

// As many ranks as there are, in two axes; some may be left over.
Mesh two_axes(Comm& comm) {
  const int64_t n = comm.size();
  return n < 4 ? Mesh::over(comm, {{"dp", 1}, {"tp", n}}) : Mesh::over(comm, {{"dp", 2}, {"tp", n / 2}});
}

TEST_P(OnMesh, EachAxisHasItsCommunicator) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = two_axes(comm);
    const auto at = mesh.coordinate(comm.rank());
    for (size_t a = 0; a < mesh.ndim(); ++a) {
      Comm& along = mesh.comm(mesh.axes()[a].name);
      ASSERT_EQ(along.defined(), at.has_value());
      if (!at) continue;
      EXPECT_EQ(along.size(), mesh.size(a));
      EXPECT_EQ(along.rank(), (*at)[a]);
      EXPECT_EQ(along.name(), mesh.axes()[a].name);
      EXPECT_EQ(&along, &mesh.comm(mesh.axes()[a].name));
    }
    Comm& turned = mesh.comm("tp", "dp");
    if (!at) return;
    EXPECT_EQ(turned.size(), mesh.size());
    EXPECT_EQ(turned.rank(), (*at)[1] * mesh.size(0) + (*at)[0]);
  });
}

TEST_P(OnMesh, BroadcastInPlace) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = two_axes(comm);
    const auto at = mesh.coordinate(comm.rank());
    for (const int64_t elements : {0, 3, 5000}) {
      const Tensor tensor = Tensor::full(DType::i32, {elements}, comm.rank());
      mesh_broadcast(tensor, mesh, "tp");
      int source = comm.rank();  // outside: as it was
      if (at) source = mesh.rank_at({(*at)[0], 0});
      EXPECT_TRUE(tensor.equals(Tensor::full(DType::i32, {elements}, source)));
      const Tensor other = Tensor::full(DType::i32, {elements}, comm.rank());
      start_mesh_broadcast(other, mesh, 0).wait();
      if (at) source = mesh.rank_at({0, (*at)[1]});
      EXPECT_TRUE(other.equals(Tensor::full(DType::i32, {elements}, source)));
    }
  });
}

TEST_P(OnMesh, ScatterPartsOfAnyShape) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = two_axes(comm);
    const auto at = mesh.coordinate(comm.rank());
    for (const int64_t rows : {1, 700}) {
      std::vector<Tensor> parts;
      const bool source = at && (*at)[1] == 0;
      for (int64_t r = 0; r < mesh.size(1) && source; ++r) {
        parts.push_back(Tensor::full(DType::f32, {r * rows, 2}, static_cast<float>(100 * comm.rank() + r)));
      }
      const int64_t mine = at ? (*at)[1] : 4;
      for (const bool by_itself : {false, true}) {
        const Tensor output = Tensor::full(DType::f32, {mine * rows, 2}, -1.0f);
        if (by_itself) start_mesh_scatter(output, parts, mesh, -1).wait();
        else mesh_scatter(output, parts, mesh, "tp");
        const float value = at ? static_cast<float>(100 * mesh.rank_at({(*at)[0], 0}) + mine) : -1.0f;
        EXPECT_TRUE(output.equals(Tensor::full(DType::f32, output.shape(), value))) << comm.rank();
      }
    }
  });
}

TEST_P(OnMesh, WhatIsWrongIsToldToAllAlongTheAxis) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = Mesh::over(comm, {{"x", comm.size()}});
    const int n = comm.size();
    std::vector<Tensor> parts(static_cast<size_t>(comm.rank() == 0 ? n + 1 : 0), Tensor::zeros(DType::f32, {2}));
    const Tensor output = Tensor::zeros(DType::f32, {2});
    auto thrown = test::thrown_by([&] { mesh_scatter(output, parts, mesh, "x"); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    EXPECT_NE(thrown.text.find(fmt::format("mesh_scatter: {} parts for {} rank", n + 1, n)), std::string::npos)
        << thrown;
    if (comm.rank() == 0) parts.pop_back();
    const Tensor odd = Tensor::zeros(DType::f32, {comm.rank() == n - 1 ? 3 : 2});
    thrown = test::thrown_by([&] { mesh_scatter(odd, parts, mesh, "x"); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    EXPECT_NE(thrown.text.find("out does not fit the result"), std::string::npos) << thrown;
    mesh_scatter(output, parts, mesh, "x");
  });
}

TEST_P(OnMesh, ShardDimAllToAllIsOne) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh = Mesh::over(comm, {{"x", n}});
    const Dims shape = {4 * n, 3 * n + 1};
    const Layout from(mesh, {Shard(0)}), to(mesh, {Shard(1)});
    const auto fn = [](std::span<const int64_t> at) { return static_cast<float>(at[0] * 1000 + at[1]); };
    const Box mine = *from.box(shape, comm.rank()), other = *to.box(shape, comm.rank());
    Comm& axis = mesh.comm("x");
    axis.reset_stats();
    const Tensor moved = shard_dim_alltoall(Tensor::generate(DType::f32, mine.extent, fn, mine.offset), 0, 1, mesh, 0);
    EXPECT_TRUE(moved.equals(Tensor::generate(DType::f32, other.extent, fn, other.offset)));
    // No more than what is this rank's in the end.
    EXPECT_EQ(axis.stats().bytes_received, moved.bytes() - intersect(mine, other).elements() * 4);
  });
}

TEST_P(OnMesh, ShardDimAllToAllNeedsTwoDims) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = Mesh::over(comm, {{"x", comm.size()}});
    const Tensor x = Tensor::zeros(DType::f32, {2, 2});
    const auto thrown = test::thrown_by([&] { shard_dim_alltoall(x, 1, -1, mesh, "x"); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    EXPECT_NE(thrown.text.find("gather_dim and shard_dim are both 1"), std::string::npos) << thrown;
    const auto outside = test::thrown_by([&] { shard_dim_alltoall(x, 1, 5, mesh, "x"); });
    EXPECT_NE(outside.text.find("shard_dim 5 is out of range"), std::string::npos) << outside;
  });
}

TEST_P(OnMesh, DifferentMeshesAreToldToAll) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    if (n == 1) return;
    const bool odd = comm.rank() == n - 1;
    auto thrown = test::thrown_by([&] { Mesh::over(comm, {{"x", odd ? 1 : n}, {"y", odd ? n : 1}}); });
    EXPECT_EQ(thrown.type, "MismatchError") << thrown;
    EXPECT_NE(thrown.text.find(fmt::format("Mesh::over x={},y=1", n)), std::string::npos) << thrown;
    EXPECT_NE(thrown.text.find("mesh_collective_test.cpp:"), std::string::npos) << thrown;
    thrown = test::thrown_by([&] { Mesh::over(comm, {{"x", odd ? n + 1 : n}}); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    const Mesh mesh = Mesh::over(comm, {{"x", n}});
    thrown = test::thrown_by([&] { mesh_broadcast(odd ? Tensor() : Tensor::zeros(DType::f32, {2}), mesh, "x"); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    EXPECT_NE(thrown.text.find(fmt::format("rank  {}: broadcast: the tensor is undefined", n - 1)), std::string::npos)
        << thrown;
  });
}

// The communicators are this rank's alone; layouts and plans, which ranks that are threads share, have none.
TEST_P(OnMesh, PlansOverItKeepNoCommunicator) {
  on_ranks([](Comm& comm) {
    const Mesh mesh = Mesh::over(comm, {{"x", comm.size()}});
    const Dims shape = {2 * comm.size(), 6};
    const Layout from(mesh, {Shard(0)}), to(mesh, {Replicate()});
    const Plan forth = plan(from, to, shape, DType::f32, Topology::dtensor(mesh));
    EXPECT_THROW(forth.to().mesh().comm("x"), Error);
    const Tensor all = redistribute(comm, Tensor::full(DType::f32, {2, 6}, static_cast<float>(comm.rank())), forth);
    for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(all.at<float>(2 * r, 0), static_cast<float>(r));
    mesh_broadcast(all, mesh, "x");
  });
}

TEST(OverMesh, WithRanksThatAreNotThere) {
  run(2, [](Comm& comm) {
    auto thrown = test::thrown_by([&] { Mesh::over(comm, {{"x", 3}}); });
    EXPECT_EQ(thrown.type, "ShapeError");
    EXPECT_NE(thrown.text.find("has rank 2, the communicator \"world\" only 2 ranks"), std::string::npos) << thrown;
    thrown = test::thrown_by([&] { Mesh({{"x", 2}}).comm("x"); });
    EXPECT_NE(thrown.text.find("Mesh::over(comm, …)"), std::string::npos) << thrown;
    const Mesh mesh = Mesh::over(comm, {{"x", 2}});
    thrown = test::thrown_by([&] { mesh.comm("y"); });
    EXPECT_EQ(thrown.type, "ShapeError");
  });
}

// A rank outside gets nothing back, and does not fail.
TEST(OverMesh, OfSomeRanksLeavesTheOthersAlone) {
  run(3, [](Comm& comm) {
    const Mesh mesh = Mesh::over(comm, {{"x", 2}}, {2, 0});
    const Tensor tensor = Tensor::full(DType::i32, {2}, comm.rank());
    mesh_broadcast(tensor, mesh, "x");
    EXPECT_EQ(tensor.at<int32_t>(0), comm.rank() == 1 ? 1 : 2);
    EXPECT_EQ(shard_dim_alltoall(tensor.reshape({1, 2}), 0, 1, mesh, "x").defined(), comm.rank() != 1);
    EXPECT_TRUE(comm.rank() != 1 || start_mesh_scatter(tensor, {}, mesh, "x").done());
    const TensorSpec cut{{mesh, {Shard(0)}}, {8}, DType::f32}, whole{{mesh, {Replicate()}}, {8}, DType::f32};
    EXPECT_EQ(redistribute_cost(cut, whole) == 0, comm.rank() == 1);
    EXPECT_EQ(mesh.is_outside(), comm.rank() == 1);
  });
}

}  // namespace
}  // namespace tessera::testing_support
