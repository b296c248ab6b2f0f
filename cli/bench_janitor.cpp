#include "bench_janitor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include <tessera/error.hpp>

namespace tessera::cli {
namespace {

struct Note {
  char what;  // '+' a group, '-' no longer a group, 'p' a process
  pid_t pid;
};

constexpr auto kGrace = std::chrono::seconds(5);  // more than launchers give their ranks

class Cleaner {
 public:
  void run(int pipe, const std::string& directory) {
    Note note{};
    while (read_note(pipe, note)) {
      if (note.what == '+') groups_.insert(note.pid);
      if (note.what == '-') groups_.erase(note.pid);
      // A handle, because the number of a process that has ended may be another's by then.
      if (note.what == 'p') processes_.push_back(static_cast<int>(syscall(SYS_pidfd_open, note.pid, 0)));
    }
    end_all();
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }

 private:
  static bool read_note(int pipe, Note& note) {
    ssize_t n = 0;
    do {
      n = read(pipe, &note, sizeof(note));
    } while (n < 0 && errno == EINTR);
    return n == sizeof(note);  // so short a write to a pipe is never cut
  }

  // Launchers forward SIGTERM and take down what they made; who does not heed it in time is killed.
  void end_all() {
    signal_groups(SIGTERM);
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    while (some_live() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    signal_groups(SIGKILL);
    for (const int process : processes_) {
      if (process >= 0) syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0);
    }
  }

  void signal_groups(int signal) const {
    for (const pid_t group : groups_) kill(-group, signal);
  }

  bool some_live() const {
    for (const pid_t group : groups_) {
      if (kill(-group, 0) == 0) return true;
    }
    for (const int process : processes_) {
      pollfd ended{process, POLLIN, 0};  // readable once the process has ended
      if (process >= 0 && poll(&ended, 1, 0) == 0) return true;
    }
    return false;
  }

  std::set<pid_t> groups_;
  std::vector<int> processes_;
};

}  // namespace

Janitor::Janitor(const std::string& directory) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("no pipe: ") + std::strerror(errno));
  pid_ = fork();
  if (pid_ < 0) throw Error(std::string("cannot fork: ") + std::strerror(errno));
  if (pid_ == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
    close(ends[1]);
    Cleaner().run(ends[0], directory);
    _exit(0);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

Janitor::~Janitor() {
  close(pipe_);
  // A player that has ended stays in its group until it is reaped: that is done here while the janitor waits for it.
  for (pid_t ended = 0; ended != pid_;) {
    ended = waitpid(-1, nullptr, 0);
    if (ended < 0 && errno != EINTR) return;
  }
  while (waitpid(-1, nullptr, WNOHANG) > 0) {}
}

void Janitor::tell(char what, pid_t pid) {
  Note note;
  std::memset(&note, 0, sizeof(note));
  note.what = what;
  note.pid = pid;
  if (write(pipe_, &note, sizeof(note)) != sizeof(note)) throw Error("its cleaning process has gone");
}
void Janitor::watch_group(pid_t group) { tell('+', group); }
void Janitor::forget_group(pid_t group) { tell('-', group); }
void Janitor::watch_process(pid_t process) { tell('p', process); }

}  // namespace tessera::cli
