#include <tessera/error.hpp>

#include "binding.hpp"

namespace tessera::cli {

std::vector<std::vector<int>> bind_ranks(int) {
  throw Error("--bind needs hwloc, and this tessera was built without it: install libhwloc-dev and build again");
}

int usable_cores() { return 0; }

std::string hwloc_version() { return {}; }

}  // namespace tessera::cli
