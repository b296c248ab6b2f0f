#include "signals.hpp"

#include <sys/signalfd.h>

namespace tessera::cli {
namespace {

// Not SIGWINCH: ranks have no terminal of their own.
constexpr int kTaken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// nohup, or a shell that starts a job in the background, has asked for that; a blocked signal would come all the same.
bool is_ignored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  struct sigaction ignore = {}, by_default = {};
  ignore.sa_handler = SIG_IGN;
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &ignore, &pipe_before_);       // whoever reads our output may go: write() says so
  sigaction(SIGCHLD, &by_default, &child_before_);  // ignored, the statuses of ranks would be lost
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGCHLD);
  for (const int signal : kTaken) {
    if (!is_ignored(signal)) sigaddset(&taken, signal);
  }
  sigprocmask(SIG_BLOCK, &taken, &mask_before_);
  descriptor_ = Descriptor(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) fail_with_errno("signalfd");
}

std::optional<int> Signals::next() const {
  signalfd_siginfo info;
  if (read(descriptor_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void Signals::restore() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace tessera::cli
