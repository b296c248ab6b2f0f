#include "plan/exchange_price.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <tessera/overlap.hpp>

#include "layout/random_layout.hpp"

namespace tessera::testing_support {
namespace {

// Later axes are faster. The time of an axis is no straight line, so that no load can stand for another.
Topology uneven_topology(const Mesh& mesh) {
  Topology topology;
  topology.exchange_base_us = 5;
  double slow = 1 << mesh.ndim();
  for (const MeshAxis& axis : mesh.axes()) {
    Link link{0.3 * slow, {{{8, slow}, {64, 3 * slow}, {512, 40 * slow}}}, {{{16, 1}, {100, 9}}}};
    link.scatter = {{{8, 2 * slow}, {256, 30 * slow}}};
    topology.axes.push_back({axis.name, link});
    slow /= 2;
  }
  return topology;
}

struct RankLoad {
  double latency = 0;
  std::map<size_t, double> bytes;  // by the slowest axis on which the two differ
};

// By the boxes of every rank.
double price_of_boxes(const Layout& from, const Layout& to, const Dims& shape, const Topology& topology) {
  const Mesh& mesh = from.mesh();
  const Exchange exchange(from, to, shape);
  bool reduces = false;
  for (size_t a = 0; a < mesh.ndim(); ++a) {
    const bool pending = from.placements()[a].kind == Placement::Kind::partial;
    reduces = reduces || (mesh.size(a) > 1 && pending && !(to.placements()[a] == from.placements()[a]));
  }
  std::map<int, RankLoad> received, sent;
  for (const int rank : mesh.ranks()) {
    for (const Overlap& o : exchange.receives(rank)) {
      if (o.rank == rank) continue;
      const Dims here = *mesh.coordinate(rank), there = *mesh.coordinate(o.rank);
      size_t axis = 0;
      while (here[axis] == there[axis]) ++axis;
      for (RankLoad* load : {&received[rank], &sent[o.rank]}) {
        load->latency += topology.axes[axis].link.latency_us;
        load->bytes[axis] += 4 * static_cast<double>(o.box.elements());
      }
    }
  }
  double most = topology.exchange_base_us;
  for (const auto* loads : {&received, &sent}) {
    for (const auto& [rank, load] : *loads) {
      double us = topology.exchange_base_us + load.latency;
      for (const auto& [axis, bytes] : load.bytes) {
        const Link& link = topology.axes[axis].link;
        us += (reduces ? link.of_scatter() : link.of_exchange())(bytes);
        if (reduces && loads == &received) us += link.reduce(bytes);
      }
      most = std::max(most, us);
    }
  }
  return most;
}

RC_GTEST_PROP(ExchangePriceProperty, IsThatOfTheBoxesOfAllRanks, ()) {
  const Mesh mesh = pick_mesh(4, 24);
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape).resolved(shape), to = pick_layout(mesh, shape).resolved(shape);
  RC_PRE(!from.pending() || !to.pending() || from.pending() == to.pending());
  RC_LOG() << fmt::format("{} to {} on {} of {}", from, to, mesh, shape);
  const Topology topology = uneven_topology(mesh);
  Graph graph(mesh, &from, &to, shape, DType::f32, topology.links(mesh), topology, true);
  RC_PRE(graph.may_exchange(graph.source(), graph.target()));
  ExchangePricer pricer(graph, topology.exchange_base_us);
  pricer.set(graph.source(), graph.target());
  const double expected = price_of_boxes(from, to, shape, topology);
  const double bound = pricer.bound(kNever), price = pricer.price(kNever).us;
  RC_LOG() << fmt::format("{} and not {}, bound {}", price, expected, bound);
  RC_ASSERT(std::abs(price - expected) <= 1e-9 * expected);
  RC_ASSERT(bound <= price * (1 + 1e-12));
  RC_ASSERT(pricer.price(price * 1.01).us == price);
  RC_ASSERT(pricer.price(price * 0.99).us == kNever);
}

// Where replicas take turns: whichever of the axes is the slow one, of a sum, and where a receiver has a piece itself.
TEST(ExchangePrice, OfReplicasThatTakeTurns) {
  const Dims shape = {11, 6, 9};
  for (const char* text : {"a=2,b=4", "a=4,b=2", "a=2,b=3,c=2"}) {
    const Mesh mesh = Mesh::parse(text);
    const Topology topology = uneven_topology(mesh);
    const std::string rest = mesh.ndim() == 3 ? ",S1" : "";
    for (const char* source : {"R,S0", "S0,R", "R,S2", "S2,R", "R,P", "P,R", "R,At(1)", "At(1),R", "R,R"}) {
      for (const char* target : {"S0,At(1)", "At(1),S1", "S1,S0", "S0,S2", "R,S0", "S0@b,a", "At(0),At(1)", "S1,R"}) {
        const Layout from = Layout::parse(mesh, source + rest).resolved(shape);
        const Layout to = Layout::parse(mesh, mesh.ndim() == 3 ? fmt::format("{},R", target) : target).resolved(shape);
        Graph graph(mesh, &from, &to, shape, DType::f32, topology.links(mesh), topology, true);
        ExchangePricer pricer(graph, topology.exchange_base_us);
        pricer.set(graph.source(), graph.target());
        const double expected = price_of_boxes(from, to, shape, topology);
        EXPECT_NEAR(pricer.price(kNever).us, expected, 1e-9 * expected)
            << fmt::format("{} to {} on {}", from, to, mesh);
      }
    }
  }
}

// An axis of one rank cuts nothing, though a layout may say so: not for who sends, and not for the price. Each of the four
// replicas has what it needs.
TEST(ExchangePrice, AxesOfOneRankCutNothing) {
  const Mesh mesh = Mesh::parse("a=1,b=4");
  const Dims shape = {8, 8};
  for (const char* source : {"S0,R", "S0[8],R", "R,R"}) {
    const Layout from = Layout::parse(mesh, source).resolved(shape), to = Layout::parse(mesh, "R,S0").resolved(shape);
    const Exchange exchange(from, to, shape);
    int64_t moved = 0;
    for (const int rank : mesh.ranks()) {
      for (const Overlap& o : exchange.receives(rank)) moved += o.rank == rank ? 0 : o.box.elements() * 4;
    }
    EXPECT_EQ(moved, 0) << source;
    EXPECT_EQ(plan(from, to, shape, DType::f32, uneven_topology(mesh)).bytes_moved(), moved) << source;
  }
  // Of two replicas each serves every second: the same with the axis and without.
  const Mesh trainer = Mesh::parse("a=1,b=2"), server = Mesh(std::vector<MeshAxis>{{"c", 4}}, {2, 3, 4, 5});
  for (const char* source : {"S0,R", "S0[8],R", "R,R"}) {
    const Exchange exchange(Layout::parse(trainer, source), Layout::parse(server, "S0"), shape);
    for (const int rank : server.ranks()) {
      const auto list = exchange.receives(rank);
      ASSERT_EQ(list.size(), 1u);
      EXPECT_EQ(list[0].rank, rank % 2) << source;
    }
  }
}

}  // namespace
}  // namespace tessera::testing_support
