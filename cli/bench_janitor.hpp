// Cleans up after a benchmark, however it ends.
#pragma once

#include <sys/types.h>

#include <string>

namespace tessera::cli {

// A small process beside the coordinator, which holds the other end of a pipe. When the coordinator closes it, or dies
// by any signal, the janitor ends the processes it was told of and removes the directory. So there is one way of
// cleaning up, for a good end, an error, Ctrl-C and SIGKILL alike.
class Janitor {
 public:
  explicit Janitor(const std::string& directory);
  ~Janitor();  // returns when all is clean; also reaps every child of this process
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  void watch_group(pid_t group);
  void forget_group(pid_t group);     // it has ended and its number may be used again
  void watch_process(pid_t process);  // for one that is in a group of its own, as MPI's launchers make them

 private:
  void tell(char what, pid_t pid);

  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tessera::cli
