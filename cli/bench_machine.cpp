#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "bench.hpp"
#include "tensor/cache.hpp"

namespace tessera::cli {
namespace {

// What stands behind "key…:" in a file of such lines.
std::string field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = field("/proc/cpuinfo", "model name");
  utsname names{};
  uname(&names);
  if (machine.cpu.empty()) machine.cpu = names.machine;
  machine.kernel = std::string(names.sysname) + " " + names.release;
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.cache_bytes = last_level_cache_bytes();
  machine.available_bytes = std::atoll(field("/proc/meminfo", "MemAvailable").c_str()) * 1024;
  std::ifstream("/proc/loadavg") >> machine.load;
  return machine;
}

}  // namespace tessera::cli
