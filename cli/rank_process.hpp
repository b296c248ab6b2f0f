// Starting the processes of ranks, and ending them.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "signals.hpp"
#include "transport/shm/segment.hpp"

namespace tessera::cli {

// What the user asked for.
struct Job {
  int ranks = 1;
  std::vector<std::string> command;    // the program and its arguments
  int64_t heap_bytes = 0;              // 0: as the machine has memory
  std::string timeout;                 // in seconds, for the ranks; empty: theirs
  double grace_s = 2;                  // for the others, when one has failed
  std::vector<std::vector<int>> cpus;  // of every rank; empty: not bound
  bool prefix = true;
  bool keep_going = false;
  bool verbose = false;
};

// One rank. Its process leads a process group of the same number, in which its children are.
struct RankProcess {
  pid_t pid = -1;
  Descriptor process;   // readable when it has ended
  bool reaped = false;  // `status` is there
  bool ended = false;   // and has been dealt with
  int status = 0;

  // Whether the group still has a process. Until then its number cannot belong to strangers.
  bool group_lives() const;
  void signal_group(int signal) const;
};

// A rank whose program could not be started.
struct StartFailure {
  enum class Step : int32_t { bind, run };
  int32_t rank = 0;
  Step step = Step::run;
  int32_t error = 0;  // errno
};

// Every rank waits at a gate before it becomes the program, until all are there: where one cannot be started, or the
// launcher is killed meanwhile, none has begun.
class Starter {
 public:
  Starter(const Job& job, const shm::Segment& segment, const Signals& signals);

  struct Started {
    RankProcess rank;
    Descriptor output, errors;  // where output gets a prefix
  };
  Started start(int rank);
  void open_gate();
  // What ranks said of why they did not become the program: before their end is known, it is here.
  std::optional<StartFailure> failure() const;

 private:
  [[noreturn]] void become(int rank, const Pipe& output, const Pipe& errors) const;
  void wait_at_gate() const;
  void set_streams(int rank, const Pipe& output, const Pipe& errors) const;
  [[noreturn]] void give_up(StartFailure failure) const;

  const Job& job_;
  const shm::Segment& segment_;
  const Signals& signals_;
  std::vector<char*> arguments_;
  rlimit files_before_;
  Pipe gate_, failures_;
};

// Forks the keeper: it waits for the end of this process and then kills the groups of all ranks. Its own end harms nobody:
// the launcher starts another one.
pid_t start_keeper(std::span<const RankProcess> ranks, const shm::Segment& segment);

}  // namespace tessera::cli
