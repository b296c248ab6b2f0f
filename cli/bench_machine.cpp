#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "bench.hpp"

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

int64_t last_level_cache() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size * (unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1));
  }
  return largest > 0 ? largest : int64_t{32} << 20;
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
  machine.cache_bytes = last_level_cache();
  machine.available_bytes = std::atoll(field("/proc/meminfo", "MemAvailable").c_str()) * 1024;
  std::ifstream("/proc/loadavg") >> machine.load;
  return machine;
}

}  // namespace tessera::cli
