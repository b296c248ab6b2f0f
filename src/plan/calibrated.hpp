// Where the figures of `tessera calibrate` lie.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct Topology;

// The files that Topology::calibrated() looks for, in this order; it is written to the first. None: neither
// TESSERA_TOPOLOGY nor XDG_CONFIG_HOME nor HOME is set.
std::vector<std::string> calibrated_paths();

// Throws Error, naming the file and the field.
Topology read_topology(const std::string& path);

}  // namespace tessera
