// What the system says of itself: files under /proc and /sys, and programs that are installed.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

// The first line; empty: there is no such file.
std::string first_line_of(const std::string& file);
// The word in brackets: "madvise" of "always [madvise] never".
std::string chosen_word(const std::string& line);
// What /proc/self/status has behind "name:".
std::string status_field(const std::string& name);

// Logical CPUs that the scheduler may give to this process.
int usable_cpus();

// CPUs' worth of time that the tightest control group grants; none: no limit.
struct CpuQuota {
  double cpus = 0;
  std::string set_by;
};
std::optional<CpuQuota> cpu_quota();

// What a command prints on stdout; none: it is not there, failed, or did not end in time.
std::optional<std::string> output_of(const std::vector<std::string>& command, std::chrono::milliseconds limit);

}  // namespace tessera::cli
