// Which cores each rank gets. With hwloc or without: the build takes one of the two sources.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// The logical CPUs of each rank: neighbours share as little as they can and lie close together; ranks on one core take
// turns where there are more ranks than cores. Throws Error where tessera was built without hwloc.
std::vector<std::vector<int>> bind_ranks(int ranks);

// Cores that this process may use, each with one or several logical CPUs; 0: not known.
int usable_cores();

// Of its interface, such as "2.8"; empty: built without it.
std::string hwloc_version();

}  // namespace tessera::cli
