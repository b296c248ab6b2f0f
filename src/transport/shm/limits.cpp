#include "transport/shm/limits.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace tessera::shm {
namespace {

// -1: there is no such number ("max" in a control group).
int64_t number_in(const std::string& file) {
  std::ifstream in(file);
  int64_t value = -1;
  return in >> value ? value : -1;
}

void consider(MemoryLimit& limit, int64_t most, int64_t used, const std::string& group) {
  if (most < 0) return;
  if (most < limit.total_bytes) {
    limit.total_bytes = most;
    limit.set_by = "control group " + group;
  }
  const int64_t left = std::max<int64_t>(most - std::max<int64_t>(used, 0), 0);
  if (left >= limit.available_bytes) return;
  limit.available_bytes = left;
  limit.tightest = "control group " + group;
  limit.tightest_bytes = most;
}

// What the page cache of a group holds is given up before anything is killed.
int64_t reclaimable(const std::string& folder) {
  std::ifstream in(folder + "/memory.stat");
  std::string name;
  int64_t value = 0, sum = 0;
  while (in >> name >> value) {
    if (name == "inactive_file" || name == "active_file") sum += value;
  }
  return sum;
}

MemoryLimit machine(const std::string& root) {
  int64_t total = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), available = -1;
  std::ifstream in(root + "/proc/meminfo");
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (!(words >> name >> kib)) continue;
    if (name == "MemTotal:") total = kib * 1024;
    if (name == "MemAvailable:") available = kib * 1024;
  }
  return {total, available >= 0 ? available : total, "the machine", "the machine", total};
}

}  // namespace

MemoryLimit memory_limit(const std::string& root) {
  MemoryLimit limit = machine(root);
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    const bool v2 = line.starts_with("0::");
    if (!v2 && line.find("memory") == std::string::npos) continue;
    const std::string top = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // A limit of any group above holds too.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const std::string group = top + (path == "/" ? "" : path), folder = root + group;
      const int64_t most = number_in(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      const int64_t used = number_in(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
      consider(limit, most, used - reclaimable(folder), group);
      if (path.empty() || path == "/") break;
    }
  }
  return limit;
}

}  // namespace tessera::shm
