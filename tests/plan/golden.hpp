// The cases of tests/data/redistribute_cost.json: DTensor's own figures.
#pragma once

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tessera/cost.hpp>

namespace tessera::testing_support {

struct GoldenCase {
  TensorSpec from, to;
  int64_t per_host;
  double seed_us, torch_us, torch_min_us;
  std::string text;
};

inline std::vector<GoldenCase> golden_cases() {
  const auto path = std::filesystem::path(__FILE__).parent_path().parent_path() / "data/redistribute_cost.json";
  std::ifstream file(path);
  std::vector<GoldenCase> cases;
  for (const auto& json : nlohmann::json::parse(file)) {
    std::vector<MeshAxis> axes;
    for (const int64_t size : json["mesh"]) axes.push_back({"a" + std::to_string(axes.size()), size});
    const Mesh mesh(axes);
    const auto layout = [&](const nlohmann::json& list) {
      std::vector<Placement> placements;
      for (const std::string text : list) placements.push_back(parse_placement(text));
      return Layout(mesh, placements);
    };
    const Dims shape(json["shape"].get<std::vector<int64_t>>());
    const DType dtype = parse_dtype(json["dtype"].get<std::string>());
    cases.push_back({{layout(json["from"]), shape, dtype},
                     {layout(json["to"]), shape, dtype},
                     json["per_host"],
                     json["seed_us"],
                     json["torch_us"],
                     json["torch_min_us"],
                     json.dump()});
  }
  return cases;
}

}  // namespace tessera::testing_support
