// Topologies as JSON files.
#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <tessera/topology.hpp>

namespace tessera::cli {

nlohmann::json to_json(const Topology& topology);
// Throw Error, naming the field, for what is no topology.
Topology topology_from(const nlohmann::json& json);
Topology read_topology(const std::string& path);

}  // namespace tessera::cli
