#include "rank_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace tessera::cli {
namespace {

// A launcher needs three descriptors a rank. Ranks get the old limit back: select() fails beyond 1024.
rlimit raise_files_limit() {
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised = {before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

void bind_to(std::span<const int> cpus, const auto& on_error) {
  const int most = *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most) + 1);
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  if (sched_setaffinity(0, bytes, set) != 0) on_error();
  CPU_FREE(set);
}

}  // namespace

bool RankProcess::group_lives() const {
  if (pid < 0) return false;
  if (!reaped) return true;
  // What a rank left behind is our child now (the launcher is a subreaper): as long as one is in the group, the number
  // is taken.
  siginfo_t info = {};
  return waitid(P_PGID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void RankProcess::signal_group(int signal) const {
  if (group_lives()) kill(-pid, signal);
}

Starter::Starter(const Job& job, const shm::Segment& segment, const Signals& signals)
    : job_(job), segment_(segment), signals_(signals), files_before_(raise_files_limit()) {
  gate_ = make_pipe();
  failures_ = make_pipe();
  fcntl(failures_.read.get(), F_SETFL, O_NONBLOCK);
  for (const std::string& word : job.command)
    arguments_.push_back(const_cast<char*>(word.c_str()));  // as exec wants it
  arguments_.push_back(nullptr);
}

Starter::Started Starter::start(int rank) {
  Pipe output, errors;
  if (job_.prefix) {
    output = make_pipe();
    errors = make_pipe();
  }
  const pid_t child = fork();
  if (child < 0) fail_with_errno("cannot start a process");
  if (child == 0) become(rank, output, errors);
  Started started;
  started.rank.pid = child;
  setpgid(child, child);  // the child does so too: whoever comes first
  started.rank.process = watch_process(child);
  started.output = std::move(output.read);
  started.errors = std::move(errors.read);
  return started;
}

void Starter::open_gate() {
  const std::string passes(static_cast<size_t>(job_.ranks), '.');
  if (write(gate_.write.get(), passes.data(), passes.size()) != static_cast<ssize_t>(passes.size())) {
    fail_with_errno("cannot let the ranks start");
  }
  gate_.write.reset();
  failures_.write.reset();
}

std::optional<StartFailure> Starter::failure() const {
  StartFailure failure;
  if (read(failures_.read.get(), &failure, sizeof(failure)) != sizeof(failure)) return std::nullopt;
  return failure;
}

// In the child, from here on. It is a copy of a process with one thread, so it may do anything.

void Starter::become(int rank, const Pipe& output, const Pipe& errors) const {
  setpgid(0, 0);
  wait_at_gate();
  set_streams(rank, output, errors);
  shm::hand_over(segment_, rank);
  if (!job_.timeout.empty()) setenv("TESSERA_TIMEOUT", job_.timeout.c_str(), 1);
  if (!job_.cpus.empty()) {
    bind_to(job_.cpus[static_cast<size_t>(rank)], [&] { give_up({rank, StartFailure::Step::bind, errno}); });
  }
  setrlimit(RLIMIT_NOFILE, &files_before_);
  signals_.restore();
  execvp(arguments_[0], arguments_.data());
  give_up({rank, StartFailure::Step::run, errno});
}

void Starter::wait_at_gate() const {
  close(gate_.write.get());  // so that the launcher's end is the end of the pipe
  char pass = 0;
  ssize_t got = 0;
  do {
    got = read(gate_.read.get(), &pass, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) _exit(1);
}

void Starter::set_streams(int rank, const Pipe& output, const Pipe& errors) const {
  // A terminal can be read by its foreground group only, which is the launcher's.
  if (rank != 0 || isatty(STDIN_FILENO) != 0) {
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
  }
  if (!job_.prefix) return;
  dup2(output.write.get(), STDOUT_FILENO);
  dup2(errors.write.get(), STDERR_FILENO);
}

void Starter::give_up(StartFailure failure) const {
  [[maybe_unused]] const ssize_t written = write(failures_.write.get(), &failure, sizeof(failure));
  _exit(127);
}

}  // namespace tessera::cli
