// Ranks as processes, forked out of the test: what `tessera run` does, with a function in place of a program.
#pragma once

#include <sys/wait.h>

#include <functional>
#include <string>
#include <vector>

#include <tessera/comm.hpp>

#include "transport/shm/world.hpp"

namespace tessera::testing_support {

struct ProcessOptions {
  shm::Way way = shm::Way::choose;
  RunOptions run = {};
  int64_t heap_bytes = int64_t{1} << 30;
  std::chrono::seconds limit = std::chrono::seconds(150);  // what is not over by then is killed
  std::function<Comm(int rank)> come = {};  // how a rank comes by its communicator, where no launcher is to give it
};

// How a rank's process ended.
struct Ended {
  int status = 0;        // as wait() has it
  std::string failures;  // what the checks in it found wrong
  std::string threw;     // what its body threw
  std::string said;      // what it told by tell()
  bool killed_by(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
  bool exited(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
};

// Runs body on that many processes and returns how they ended, when all have. `started`, if given, is called in this
// process with their ids.
std::vector<Ended> run_processes(int ranks, const std::function<void(Comm&)>& body, const ProcessOptions& options = {},
                                 const std::function<void(const std::vector<pid_t>&)>& started = {});

// Whether the system lets one child of this process read another's memory: tried here by itself, so that a transport which
// gives up on it too early is found out.
bool attach_allowed();
// Every way of moving that works here.
std::vector<shm::Way> ways();

// In a rank: tells the test something.
void tell(const std::string& text);

// As run_processes(), for a body that must end well on every rank: throws Error with what was wrong.
void run_processes_well(int ranks, const std::function<void(Comm&)>& body, const ProcessOptions& options = {});

}  // namespace tessera::testing_support
