// How much memory there is: asked before it is taken, since too much is a kill later and not an error now.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::shm {

struct MemoryLimit {
  int64_t total_bytes = 0;      // that this process could ever have
  int64_t available_bytes = 0;  // that can be taken now
  std::string set_by;           // "the machine", "control group /sys/fs/cgroup/…"
};

// The tightest of the machine's memory and the control groups' (version 2 and 1) that this process is in.
MemoryLimit memory_limit();

}  // namespace tessera::shm
