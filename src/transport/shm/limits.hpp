// How much memory there is: asked before it is taken, since too much is a kill later and not an error now.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::shm {

struct MemoryLimit {
  int64_t total_bytes = 0;      // that this process could ever have
  int64_t available_bytes = 0;  // that can be taken now
  std::string set_by;           // who sets the total: "the machine", "control group /sys/fs/cgroup/…"
  std::string tightest;         // who has the least left, and of how much; an outer group may be larger and more full
  int64_t tightest_bytes = 0;
};

// The tightest of the machine's memory and the control groups' (version 2 and 1) that this process is in. `root` is a folder
// that holds the /proc and /sys to look at.
MemoryLimit memory_limit(const std::string& root = "");

}  // namespace tessera::shm
