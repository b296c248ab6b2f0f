// The keeper: a process beside the launcher, for the one case in which the launcher cannot clean up: when it is killed.
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "rank_process.hpp"

namespace tessera::cli {
namespace {

constexpr unsigned kWholeGroup = 1u << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

// close_range() is there from Linux 5.9 on.
void close_from_to(unsigned first, unsigned last, unsigned limit) {
  if (first > last || syscall(SYS_close_range, first, last, 0) == 0) return;
  for (unsigned d = first; d <= std::min(last, limit); ++d) close(static_cast<int>(d));
}

// Whoever reads what the launcher prints waits for the end of every descriptor: the keeper must hold none of them.
void close_all_but(std::span<const unsigned> kept) {
  const unsigned limit = static_cast<unsigned>(sysconf(_SC_OPEN_MAX));
  unsigned first = 0;
  for (const unsigned d : kept) {
    if (d > first) close_from_to(first, d - 1, limit);
    first = d + 1;
  }
  close_from_to(first, ~0u, limit);
}

void wait_for(int process) {
  pollfd ended = {process, POLLIN, 0};
  while (poll(&ended, 1, -1) < 0 && errno == EINTR) continue;
}

bool has_ended(int process) {
  pollfd ended = {process, POLLIN, 0};
  return poll(&ended, 1, 0) != 0;
}

// By the descriptor the kernel knows the group even after the end of its leader. Before 6.9 there is only the number: it is
// the right one as long as the leader lives.
void kill_group(const RankProcess& rank) {
  const int process = rank.process.get();
  if (syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, kWholeGroup) == 0 || errno == ESRCH) return;
  if (!has_ended(process)) kill(-rank.pid, SIGKILL);
}

// The launcher may have threads by now, so this does nothing but system calls.
[[noreturn]] void keep(std::span<const RankProcess> ranks, int launcher, std::span<const unsigned> kept,
                       const shm::Segment& segment) {
  setsid();  // what is sent to the launcher's group or terminal is not for the keeper
  prctl(PR_SET_NAME, "tessera-keeper");
  munmap(segment.all().data(), segment.all().size());  // or the ranks' memory would live as long as the keeper
  close_all_but(kept);
  [[maybe_unused]] const int moved = chdir("/");
  wait_for(launcher);
  for (const RankProcess& rank : ranks) kill_group(rank);
  _exit(0);
}

}  // namespace

pid_t start_keeper(std::span<const RankProcess> ranks, const shm::Segment& segment) {
  const Descriptor launcher = watch_process(getpid());
  std::vector<unsigned> kept = {static_cast<unsigned>(launcher.get())};
  for (const RankProcess& rank : ranks) kept.push_back(static_cast<unsigned>(rank.process.get()));
  std::sort(kept.begin(), kept.end());
  const pid_t child = fork();
  if (child < 0) fail_with_errno("cannot start a process");
  if (child == 0) keep(ranks, launcher.get(), kept, segment);
  return child;
}

}  // namespace tessera::cli
