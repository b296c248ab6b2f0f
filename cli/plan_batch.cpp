// `tessera plan --batch`: a JSON line for a JSON line.
#include <istream>
#include <ostream>

#include <tessera/error.hpp>

#include "plan.hpp"
#include "plan/json_field.hpp"

namespace tessera::cli {
namespace {

using nlohmann::json;

// "dp=2,tp=4", or the sizes alone.
Mesh mesh_in(const Field& field) {
  return field.read([&] {
    if (field.is_text()) return Mesh::parse(field.text());
    std::vector<MeshAxis> axes;
    for (const Field& size : field.items()) axes.push_back({fmt::format("a{}", axes.size()), size.count()});
    return Mesh(std::move(axes));
  });
}

// "S0,R", or a placement for each axis.
Layout layout_in(const Mesh& mesh, const Field& field) {
  return field.read([&] {
    if (field.is_text()) return Layout::parse(mesh, field.text());
    std::vector<Placement> placements;
    for (const Field& item : field.items()) placements.push_back(parse_placement(item.text()));
    return Layout(mesh, std::move(placements));
  });
}

// dtype, per_host, max_bytes and to_mesh may be left out; fields besides are the asker's own.
json answer(const Field& asked) {
  const Mesh mesh = mesh_in(asked["mesh"]);
  const Mesh to_mesh = asked.has("to_mesh") ? mesh_in(asked["to_mesh"]) : mesh;
  const Layout from = layout_in(mesh, asked["from"]), to = layout_in(to_mesh, asked["to"]);
  Dims shape;
  for (const Field& extent : asked["shape"].items()) shape.push_back(extent.count());
  const DType dtype =
      asked.has("dtype") ? asked["dtype"].read([&] { return parse_dtype(asked["dtype"].text()); }) : DType::f32;
  const int64_t per_host = asked.has("per_host") ? asked["per_host"].count() : 8;
  PlanOptions options;
  if (asked.has("max_bytes")) options.max_bytes = asked["max_bytes"].count();
  const json full =
      to_json(make_report(from, to, shape, dtype, Topology::dtensor(mesh, to_mesh, per_host), options, per_host));
  json reply;
  for (const char* field : {"seed_us", "cost_us", "dtensor_us", "steps"}) reply[field] = full[field];
  return reply;
}

}  // namespace

int answer_batch(std::istream& lines, std::ostream& answers) {
  int failed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    json reply;
    try {
      const Json asked = Json::parse(line);
      reply = answer(Field(asked, "the line"));
    } catch (const std::exception& error) {  // tessera's, or of the JSON library for what is none
      reply = {{"error", error.what()}};
      ++failed;
    }
    // An error may quote bytes that are no UTF-8.
    answers << reply.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
  }
  answers.flush();
  return failed;
}

}  // namespace tessera::cli
