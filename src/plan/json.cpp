// Topologies and plans as JSON, both ways.
#include <algorithm>
#include <functional>

#include <tessera/overlap.hpp>
#include <tessera/plan.hpp>

#include "plan/json_field.hpp"

namespace tessera {
namespace {

Json parsed(const std::string& text, const char* what) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(fmt::format("{} is no JSON: {}", what, error.what()));
  }
}

// Topologies ----------------------------------------------------------------------------------------------------------

double number_or(const Field& object, const char* key, double otherwise) {
  return object.has(key) ? object[key].number() : otherwise;
}

Curve curve_in(const Field& object, const char* key) {
  Curve curve;
  if (!object.has(key)) return curve;
  for (const Field& knot : object[key].items()) {
    const auto pair = knot.items();
    if (pair.size() != 2) throw Error(fmt::format("{} is no knot: write [bytes, microseconds]", knot.path()));
    curve.knots.push_back({pair[0].number(), pair[1].number()});
  }
  return curve;
}

Link link_in(const Field& object) {
  return {number_or(object, "latency_us", 0), curve_in(object, "transfer"), curve_in(object, "reduce"),
          curve_in(object, "exchange"),       curve_in(object, "scatter"),  curve_in(object, "all_reduce")};
}

std::vector<Topology::Axis> axes_in(const Field& object, const char* key) {
  std::vector<Topology::Axis> axes;
  if (!object.has(key)) return axes;
  for (const Field& axis : object[key].items()) {
    axes.push_back({axis["name"].text(), link_in(axis), axis.has("ranks") ? axis["ranks"].count() : 0});
  }
  return axes;
}

Topology topology_in(const Field& object) {
  Topology topology;
  topology.base_us = number_or(object, "base_us", 0);
  topology.exchange_base_us = number_or(object, "exchange_base_us", topology.base_us);
  topology.copy = curve_in(object, "copy");
  static_cast<void>(object["axes"]);  // without any it is hardly a topology, but a file of something else
  topology.axes = axes_in(object, "axes");
  topology.target_axes = axes_in(object, "target_axes");
  if (object.has("between")) topology.between = link_in(object["between"]);
  topology.check();
  return topology;
}

std::string text_of(const Curve& curve) {
  std::string text;
  for (const Curve::Knot& knot : curve.knots) {
    text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", knot.bytes, knot.us);
  }
  return "[" + text + "]";
}

std::string text_of(const Link& link, const std::string& indent) {
  std::string text = fmt::format("\"latency_us\": {}", link.latency_us);
  const auto add = [&](const char* name, const Curve& curve) {
    text += fmt::format(",\n{}\"{}\": {}", indent, name, text_of(curve));
  };
  add("transfer", link.transfer);
  add("reduce", link.reduce);
  if (!link.exchange.knots.empty()) add("exchange", link.exchange);
  if (!link.scatter.knots.empty()) add("scatter", link.scatter);
  if (!link.all_reduce.knots.empty()) add("all_reduce", link.all_reduce);
  return text;
}

std::string text_of(const std::vector<Topology::Axis>& axes) {
  std::string text;
  for (const Topology::Axis& axis : axes) {
    const std::string ranks = axis.ranks == 0 ? "" : fmt::format("\"ranks\": {}, ", axis.ranks);
    text += fmt::format("{}\n    {{\"name\": {}, {}{}}}", text.empty() ? "" : ",", Json(axis.name).dump(), ranks,
                        text_of(axis.link, "     "));
  }
  return "[" + text + "]";
}

// Plans ---------------------------------------------------------------------------------------------------------------

Json json_of(const Step& step) {
  Json axes = Json::array();
  for (const size_t a : step.axes) axes.push_back(step.before.mesh().axes()[a].name);
  return {{"kind", name(step.kind)},
          {"axes", std::move(axes)},
          {"from_dims", step.from_dims},
          {"to_dims", step.to_dims},
          {"before_mesh", to_string(step.before.mesh())},
          {"before", to_string(step.before)},
          {"after_mesh", to_string(step.after.mesh())},
          {"after", to_string(step.after)},
          {"cost_us", step.cost_us},
          {"bytes", step.bytes},
          {"peak_bytes", step.peak_bytes}};
}

Layout layout_in(const Field& object, const char* mesh, const char* layout, const Dims& shape) {
  const Field mesh_field = object[mesh], field = object[layout];
  const Mesh on = mesh_field.read([&] { return Mesh::parse(mesh_field.text()); });
  return field.read([&] { return Layout::parse(on, field.text()).resolved(shape); });
}

StepKind kind_in(const Field& field) {
  const std::string text = field.text();
  for (auto kind = StepKind::slice; kind <= StepKind::direct;
       kind = static_cast<StepKind>(static_cast<int>(kind) + 1)) {
    if (name(kind) == text) return kind;
  }
  throw Error(fmt::format("{} is {}, which is no kind of step", field.path(), text));
}

int64_t bytes_in(const Field& field) {
  if (field.count() < 0) throw Error(fmt::format("{} is negative", field.path()));
  return field.count();
}

Step step_in(const Field& object, const Dims& shape) {
  Step step;
  step.kind = kind_in(object["kind"]);
  step.before = layout_in(object, "before_mesh", "before", shape);
  step.after = layout_in(object, "after_mesh", "after", shape);
  const Field axes = object["axes"];
  for (const Field& axis : axes.items()) {
    step.axes.push_back(axis.read([&] { return step.before.mesh().axis(axis.text()); }));
  }
  if (!std::is_sorted(step.axes.begin(), step.axes.end(), std::less_equal<>())) {
    throw Error(fmt::format("{} are not each once, in the mesh's order", axes.path()));
  }
  if (!step.axes.empty() && !(step.before.mesh() == step.after.mesh())) {
    throw Error(fmt::format("{} are some, but a step to another mesh has none", axes.path()));
  }
  const Field cost = object["cost_us"];
  step.cost_us = cost.number();
  if (!(step.cost_us >= 0)) throw Error(fmt::format("{} is negative", cost.path()));
  step.bytes = bytes_in(object["bytes"]);
  step.peak_bytes = bytes_in(object["peak_bytes"]);
  return step;
}

Dims shape_in(const Field& field) {
  return field.read([&] {
    Dims shape;
    for (const Field& extent : field.items()) shape.push_back(extent.count());
    volume(shape);
    return shape;
  });
}

}  // namespace

Topology Topology::from_json(const std::string& text) {
  const Json document = parsed(text, "the topology");
  return topology_in({document, "the topology"});
}

std::string Topology::to_json() const {
  return fmt::format(
      "{{\n  \"base_us\": {},\n  \"exchange_base_us\": {},\n  \"copy\": {},\n  \"axes\": {},\n  \"target_axes\": {},\n"
      "  \"between\": {{{}}}\n}}\n",
      base_us, exchange_base_us, text_of(copy), text_of(axes), text_of(target_axes), text_of(between, "   "));
}

std::string Plan::to_json() const {
  Json list = Json::array();
  for (const Step& step : steps()) list.push_back(json_of(step));
  const Json document = {{"mesh", to_string(from().mesh())},
                         {"from", to_string(from())},
                         {"to_mesh", to_string(to().mesh())},
                         {"to", to_string(to())},
                         {"shape", std::vector<int64_t>(shape().begin(), shape().end())},
                         {"dtype", name(dtype())},
                         {"cost_us", cost_us()},
                         {"bytes", bytes_moved()},
                         {"peak_bytes", peak_bytes()},
                         {"scale", scale()},
                         {"steps", std::move(list)},
                         {"max_bytes", options().max_bytes},
                         {"any_order", options().any_order},
                         {"topology", Json::parse(topology().to_json())}};
  return document.dump();
}

Plan Plan::from_json(const std::string& text) {
  const Json document = parsed(text, "the plan");
  const Field plan(document, "the plan");
  const Field dtype = plan["dtype"];
  const Dims shape = shape_in(plan["shape"]);
  std::vector<Step> steps;
  for (const Field& step : plan["steps"].items()) steps.push_back(step_in(step, shape));
  const double scale = plan["scale"].number();
  return Plan(layout_in(plan, "mesh", "from", shape), layout_in(plan, "to_mesh", "to", shape), shape,
              dtype.read([&] { return parse_dtype(dtype.text()); }), std::move(steps), topology_in(plan["topology"]),
              {.max_bytes = bytes_in(plan["max_bytes"]), .any_order = plan["any_order"].flag()}, scale);
}

}  // namespace tessera
