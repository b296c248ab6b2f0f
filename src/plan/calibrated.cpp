#include "plan/calibrated.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <tessera/error.hpp>
#include <tessera/topology.hpp>

namespace tessera {
namespace {

constexpr const char* kFile = "/tessera/topology.json";

// Empty: not set, or set to nothing, which means the same.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::vector<std::string> calibrated_paths() {
  if (const auto named = environment("TESSERA_TOPOLOGY"); !named.empty()) return {named};
  std::vector<std::string> paths;
  if (const auto config = environment("XDG_CONFIG_HOME"); !config.empty()) paths.push_back(config + kFile);
  if (const auto home = environment("HOME"); !home.empty()) paths.push_back(home + "/.config" + kFile);
  return paths;
}

Topology read_topology(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw Error(fmt::format("cannot read the topology {}", path));
  try {
    return Topology::from_json(text.str());
  } catch (Error& error) {
    error.add_context(path);
    throw;
  }
}

Topology Topology::calibrated() {
  const auto paths = calibrated_paths();
  for (const std::string& path : paths) {
    if (std::ifstream(path)) return read_topology(path);
  }
  throw Error(fmt::format("this machine is not calibrated: {}; run `tessera calibrate` once",
                          paths.empty() ? "none of TESSERA_TOPOLOGY, XDG_CONFIG_HOME and HOME says where to look"
                                        : fmt::format("there is no {}", fmt::join(paths, ", nor "))));
}

}  // namespace tessera
