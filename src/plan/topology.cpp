#include <tessera/topology.hpp>

#include <algorithm>
#include <cmath>

#include <tessera/cost.hpp>
#include <tessera/error.hpp>

#include "layout/text.hpp"

namespace tessera {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kBaseUs = 6.6;         // of launching a collective
constexpr double kExchangeExtraUs = 1;  // what DTensor adds to an all-to-all, so that an all-gather is preferred

std::vector<Topology::Axis> axes_of(const MeshTopoInfo& info) {
  std::vector<Topology::Axis> axes;
  for (size_t a = 0; a < info.mesh.ndim(); ++a) {
    axes.push_back(
        {info.mesh.axes()[a].name, {info.mesh_dim_latency[a], Curve::at(info.mesh_dim_bandwidth[a] * kGiB), {}}});
  }
  return axes;
}

bool is_time(double us) { return std::isfinite(us) && us >= 0; }

void check_us(double us, const std::string& field) {
  if (!is_time(us)) throw Error(fmt::format("the topology's {} is {}: give microseconds, 0 or more", field, us));
}

void check_curve(const Curve& curve, const std::string& field) {
  Curve::Knot before;
  for (const Curve::Knot& knot : curve.knots) {
    if (!std::isfinite(knot.bytes) || knot.bytes <= before.bytes || !is_time(knot.us) || knot.us < before.us) {
      throw Error(
          fmt::format("the topology's {} has the knot ({} bytes, {} us) behind ({}, {}): bytes must ascend from "
                      "above 0, and time must not fall",
                      field, knot.bytes, knot.us, before.bytes, before.us));
    }
    before = knot;
  }
}

void check_link(const Link& link, const std::string& field) {
  check_us(link.latency_us, field + " latency");
  check_curve(link.transfer, field + " transfer");
  check_curve(link.reduce, field + " reduce");
  check_curve(link.exchange, field + " exchange");
  check_curve(link.scatter, field + " scatter");
  check_curve(link.all_reduce, field + " all_reduce");
}

void check_axis(const Topology::Axis& axis, const std::string& field) {
  check_link(axis.link, field);
  if (axis.ranks >= 0) return;
  throw Error(fmt::format("the topology's {} is for {} ranks: give their number, or 0 for any", field, axis.ranks));
}

// How far an entry for so many ranks is from an axis of that size. One for any number is nearer than one for another.
double distance(const Topology::Axis& entry, int64_t size) {
  constexpr double kAny = 1e-9;
  return entry.ranks == 0 ? kAny : std::abs(std::log(static_cast<double>(entry.ranks) / static_cast<double>(size)));
}

// The nearest of that name; null: none has it.
const Topology::Axis* nearest(const std::vector<Topology::Axis>& known, const std::string& name, int64_t size) {
  const Topology::Axis* best = nullptr;
  for (const Topology::Axis& entry : known) {
    if (entry.name == name && (best == nullptr || distance(entry, size) < distance(*best, size))) best = &entry;
  }
  return best;
}

void mix_in(size_t& seed, double value) { mix(seed, std::hash<double>{}(value)); }
void mix_in(size_t& seed, const Curve& curve) {
  mix(seed, curve.knots.size());
  for (const Curve::Knot& knot : curve.knots) {
    mix_in(seed, knot.bytes);
    mix_in(seed, knot.us);
  }
}
void mix_in(size_t& seed, const Link& link) {
  mix_in(seed, link.latency_us);
  mix_in(seed, link.transfer);
  mix_in(seed, link.reduce);
  mix_in(seed, link.exchange);
  mix_in(seed, link.scatter);
  mix_in(seed, link.all_reduce);
}

}  // namespace

Curve Curve::at(double bytes_per_second) { return {{{bytes_per_second, 1e6}}}; }

double Curve::operator()(double bytes) const {
  if (knots.empty()) return 0;
  if (knots.size() == 1) return bytes * (knots[0].us / knots[0].bytes);
  Knot before, last;
  for (const Knot& knot : knots) {
    before = last;
    last = knot;
    if (bytes <= knot.bytes) break;
  }
  return before.us + (bytes - before.bytes) * ((last.us - before.us) / (last.bytes - before.bytes));
}

Topology Topology::dtensor(const Mesh& mesh, int64_t devices_per_host) { return dtensor(mesh, mesh, devices_per_host); }

Topology Topology::dtensor(const Mesh& from, const Mesh& to, int64_t devices_per_host) {
  Topology topology;
  topology.base_us = kBaseUs;
  topology.exchange_base_us = kBaseUs + kExchangeExtraUs;
  topology.axes = axes_of(MeshTopoInfo::build_from_mesh(from, devices_per_host));
  if (from == to) {
    topology.between = topology.axes.empty() ? Link() : topology.axes[0].link;
    return topology;
  }
  topology.target_axes = axes_of(MeshTopoInfo::build_from_mesh(to, devices_per_host));
  const std::vector<int> ranks = from.ranks(), others = to.ranks();
  const int64_t host = ranks[0] / devices_per_host;
  const auto here = [&](int rank) { return rank / devices_per_host == host; };
  const bool one_host =
      std::all_of(ranks.begin(), ranks.end(), here) && std::all_of(others.begin(), others.end(), here);
  // As an axis within a host, or one that leaves it.
  const Mesh pair({{"pair", 2}});
  topology.between = axes_of(MeshTopoInfo::build_from_mesh(pair, one_host ? 2 : 1))[0].link;
  return topology;
}

std::vector<Link> Topology::links(const Mesh& mesh, bool target) const {
  const std::vector<Axis>& known = target && !target_axes.empty() ? target_axes : axes;
  std::vector<Link> list;
  for (const MeshAxis& axis : mesh.axes()) {
    const Axis* found = nearest(known, axis.name, axis.size);
    if (found == nullptr) found = nearest(known, "*", axis.size);
    if (found == nullptr) {
      throw Error(fmt::format(
          "the topology says nothing of the axis {} of the mesh {}: add it, or one called * that stands for all "
          "others, or use Topology::dtensor(mesh, devices_per_host)",
          axis.name, mesh));
    }
    list.push_back(found->link);
  }
  return list;
}

void Topology::check() const {
  check_us(base_us, "base latency");
  check_us(exchange_base_us, "base latency of exchanges");
  check_curve(copy, "copy");
  for (const Axis& axis : axes) check_axis(axis, "axis " + axis.name);
  for (const Axis& axis : target_axes) check_axis(axis, "target axis " + axis.name);
  check_link(between, "way between meshes");
}

size_t hash_of(const Topology& topology) {
  size_t seed = topology.axes.size();
  mix_in(seed, topology.base_us);
  mix_in(seed, topology.exchange_base_us);
  mix_in(seed, topology.copy);
  for (const auto* axes : {&topology.axes, &topology.target_axes}) {
    for (const Topology::Axis& axis : *axes) {
      mix(seed, std::hash<std::string>{}(axis.name));
      mix(seed, static_cast<size_t>(axis.ranks));
      mix_in(seed, axis.link);
    }
  }
  mix_in(seed, topology.between);
  return seed;
}

}  // namespace tessera
