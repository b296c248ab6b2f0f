#include "plan/exchange_between.hpp"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <tessera/overlap.hpp>

#include "layout/random_layout.hpp"

namespace tessera::testing_support {
namespace {

using Load = ExchangeBetween::Load;

// Of every rank that receives, or sends, something.
struct Loads {
  std::map<int, Load> received, sent;
};

Loads loads_of_all(const Layout& from, const Layout& to, const Dims& shape) {
  const Exchange exchange(from, to, shape);
  Loads loads;
  for (const int rank : to.mesh().ranks()) {
    for (const Overlap& o : exchange.receives(rank)) {
      if (o.rank == rank) continue;
      for (Load* load : {&loads.received[rank], &loads.sent[o.rank]}) {
        load->peers += 1;
        load->elements += static_cast<double>(o.box.elements());
      }
    }
  }
  return loads;
}

std::set<Load> kinds_of(const std::map<int, Load>& loads) {
  std::set<Load> kinds;
  for (const auto& [rank, load] : loads) kinds.insert(load);
  return kinds;
}

RC_GTEST_PROP(ExchangeBetweenProperty, LoadsAreThoseOfAllRanks, ()) {
  const Mesh mesh = pick_mesh(3, 12), other = pick_mesh(3, 12, static_cast<int>(mesh.size()));
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape).resolved(shape), to = pick_layout(other, shape).resolved(shape);
  RC_LOG() << fmt::format("{} on {} to {} on {} of {}", from, mesh, to, other, shape);
  const Loads all = loads_of_all(from, to, shape);
  const ExchangeBetween between(from, to, shape);
  RC_ASSERT(between.received() == kinds_of(all.received));
  std::set<Load> sent = between.sent();
  sent.erase(Load());  // more replicas than receivers
  RC_ASSERT(sent == kinds_of(all.sent));
}

// A rank of both needs nobody for what it has; of each kind there is one that needs the rest.
RC_GTEST_PROP(ExchangeBetweenProperty, BoundsThoseOfRanksInBothMeshes, ()) {
  const Mesh mesh = pick_mesh(3, 12), other = pick_mesh(3, 12, static_cast<int>(pick(0, mesh.size())));
  if (mesh == other) return;
  const Dims shape = pick_shape();
  const Layout from = pick_layout(mesh, shape).resolved(shape), to = pick_layout(other, shape).resolved(shape);
  const Loads all = loads_of_all(from, to, shape);
  const ExchangeBetween between(from, to, shape);
  for (const Load& kind : between.received()) {
    const Load least = between.least_of(kind);
    const bool found = std::any_of(all.received.begin(), all.received.end(), [&](const auto& entry) {
      return entry.second.peers >= least.peers && entry.second.elements >= least.elements;
    });
    RC_ASSERT(found || (least.peers == 0 && least.elements == 0));
  }
}

}  // namespace
}  // namespace tessera::testing_support
