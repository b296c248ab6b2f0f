#include "topology_file.hpp"

#include <fstream>

#include <tessera/error.hpp>

namespace tessera::cli {
namespace {

using nlohmann::json;

json to_json(const Curve& curve) {
  json knots = json::array();
  for (const Curve::Knot& knot : curve.knots) knots.push_back({knot.bytes, knot.us});
  return knots;
}

json to_json(const Link& link) {
  return {{"latency_us", link.latency_us}, {"transfer", to_json(link.transfer)}, {"reduce", to_json(link.reduce)}};
}

json to_json(const std::vector<Topology::Axis>& axes) {
  json list = json::array();
  for (const Topology::Axis& axis : axes) {
    json item = to_json(axis.link);
    item["name"] = axis.name;
    list.push_back(std::move(item));
  }
  return list;
}

double number_in(const json& object, const char* field, double otherwise) {
  if (!object.contains(field)) return otherwise;
  if (!object[field].is_number()) throw Error(fmt::format("the topology's {} is no number", field));
  return object[field];
}

Curve curve_in(const json& object, const char* field) {
  Curve curve;
  if (!object.contains(field)) return curve;
  for (const json& knot : object[field]) {
    if (!knot.is_array() || knot.size() != 2 || !knot[0].is_number() || !knot[1].is_number()) {
      throw Error(fmt::format("the topology's {} has a knot that is not [bytes, microseconds]", field));
    }
    curve.knots.push_back({knot[0], knot[1]});
  }
  return curve;
}

Link link_in(const json& object) {
  if (!object.is_object()) throw Error("a topology's axis is an object with latency_us, transfer and reduce");
  return {number_in(object, "latency_us", 0), curve_in(object, "transfer"), curve_in(object, "reduce")};
}

std::vector<Topology::Axis> axes_in(const json& object, const char* field) {
  std::vector<Topology::Axis> axes;
  if (!object.contains(field)) return axes;
  for (const json& axis : object[field]) {
    if (!axis.is_object() || !axis.contains("name") || !axis["name"].is_string()) {
      throw Error(fmt::format("the topology's {} has an axis with no name", field));
    }
    axes.push_back({axis["name"], link_in(axis)});
  }
  return axes;
}

}  // namespace

json to_json(const Topology& topology) {
  return {{"base_us", topology.base_us},
          {"exchange_base_us", topology.exchange_base_us},
          {"copy", to_json(topology.copy)},
          {"axes", to_json(topology.axes)},
          {"target_axes", to_json(topology.target_axes)},
          {"between", to_json(topology.between)}};
}

Topology topology_from(const json& object) {
  if (!object.is_object() || !object.contains("axes")) throw Error("a topology is a JSON object with axes");
  Topology topology;
  topology.base_us = number_in(object, "base_us", 0);
  topology.exchange_base_us = number_in(object, "exchange_base_us", topology.base_us);
  topology.copy = curve_in(object, "copy");
  topology.axes = axes_in(object, "axes");
  topology.target_axes = axes_in(object, "target_axes");
  if (object.contains("between")) topology.between = link_in(object["between"]);
  topology.check();
  return topology;
}

Topology read_topology(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(fmt::format("cannot read the topology {}", path));
  try {
    return topology_from(json::parse(file));
  } catch (const json::exception& error) {
    throw Error(fmt::format("{} is no topology: {}", path, error.what()));
  } catch (Error& error) {
    error.add_context(path);
    throw;
  }
}

}  // namespace tessera::cli
