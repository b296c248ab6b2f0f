#include "machine.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "descriptor.hpp"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Of one control group of version 2 ("150000 100000", "max 100000") or 1 (two files).
std::optional<double> quota_of(const std::string& folder, bool v2) {
  const std::string text =
      v2 ? first_line_of(folder + "/cpu.max")
         : first_line_of(folder + "/cpu.cfs_quota_us") + ' ' + first_line_of(folder + "/cpu.cfs_period_us");
  std::istringstream words(text);
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// In the child: stdout is the pipe, all else nothing.
[[noreturn]] void run_quietly(const std::vector<std::string>& command, int output) {
  setpgid(0, 0);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

// False: the time is over.
bool read_all(int from, std::string& text, Clock::time_point deadline) {
  std::array<char, 4096> chunk;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd readable = {from, POLLIN, 0};
    if (left <= 0 || poll(&readable, 1, static_cast<int>(left)) <= 0) return false;
    const ssize_t got = read(from, chunk.data(), chunk.size());
    if (got <= 0) return got == 0;
    text.append(chunk.data(), static_cast<size_t>(got));
  }
}

}  // namespace

std::string first_line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string chosen_word(const std::string& line) {
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos || end == std::string::npos ? line : line.substr(begin + 1, end - begin - 1);
}

std::string status_field(const std::string& name) {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(name + ':')) continue;
    const size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

int usable_cpus() {
  // The kernel wants room for all CPUs that the machine could have.
  for (size_t most = 1024; most <= size_t{1} << 20; most *= 2) {
    cpu_set_t* set = CPU_ALLOC(most);
    const size_t bytes = CPU_ALLOC_SIZE(most);
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 1;
}

std::optional<CpuQuota> cpu_quota() {
  std::optional<CpuQuota> tightest;
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool v2 = line.starts_with("0::");
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    // A quota of any group above holds too.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const std::string folder = root + (path == "/" ? "" : path);
      const auto cpus = quota_of(folder, v2);
      if (cpus && (!tightest || *cpus < tightest->cpus)) tightest = CpuQuota{*cpus, folder};
      if (path.empty() || path == "/") break;
    }
  }
  return tightest;
}

std::optional<std::string> output_of(const std::vector<std::string>& command, std::chrono::milliseconds limit) {
  Pipe output = make_pipe();
  const pid_t child = fork();
  if (child < 0) return std::nullopt;
  if (child == 0) run_quietly(command, output.write.get());
  setpgid(child, child);
  output.write.reset();
  std::string text;
  const bool in_time = read_all(output.read.get(), text, Clock::now() + limit);
  if (!in_time) kill(-child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return in_time && status == 0 ? std::optional(text) : std::nullopt;
}

}  // namespace tessera::cli
