// `tessera plan --batch`: a JSON line for a JSON line.
#include <istream>
#include <ostream>

#include <tessera/error.hpp>

#include "plan.hpp"

namespace tessera::cli {
namespace {

using nlohmann::json;

// "dp=2,tp=4", or the sizes alone.
Mesh mesh_of(const json& value) {
  if (value.is_string()) return Mesh::parse(value.get<std::string>());
  std::vector<MeshAxis> axes;
  for (const json& size : value) axes.push_back({fmt::format("a{}", axes.size()), size.get<int64_t>()});
  return Mesh(std::move(axes));
}

// "S0,R", or a placement for each axis.
Layout layout_of(const Mesh& mesh, const json& value) {
  if (value.is_string()) return Layout::parse(mesh, value.get<std::string>());
  std::vector<Placement> placements;
  for (const json& item : value) placements.push_back(parse_placement(item.get<std::string>()));
  return Layout(mesh, std::move(placements));
}

json answer(const json& asked) {
  const Mesh mesh = mesh_of(asked.at("mesh"));
  const Mesh to_mesh = asked.contains("to_mesh") ? mesh_of(asked["to_mesh"]) : mesh;
  const Layout from = layout_of(mesh, asked.at("from")), to = layout_of(to_mesh, asked.at("to"));
  const Dims shape(asked.at("shape").get<std::vector<int64_t>>());
  const DType dtype = parse_dtype(asked.value("dtype", "float32"));
  const int64_t per_host = asked.value("per_host", int64_t{8});
  const PlanOptions options{.max_bytes = asked.value("max_bytes", PlanOptions{}.max_bytes)};
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
      reply = answer(json::parse(line));
    } catch (const std::exception& error) {  // tessera's, or of the JSON library for a field that is missing
      reply = {{"error", error.what()}};
      ++failed;
    }
    answers << reply.dump() << "\n";
  }
  answers.flush();
  return failed;
}

}  // namespace tessera::cli
