#include "comm/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <thread>

namespace tessera {
namespace {

uint32_t* address(const std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&word));
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  // steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as an
  // absolute time.
  const auto since_epoch = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  const timespec until{static_cast<time_t>(seconds.count()),
                       static_cast<long>(std::chrono::nanoseconds(since_epoch - seconds).count())};
  syscall(SYS_futex, address(word), FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

Clock::time_point coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

int spins_for(int ranks) { return ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 20; }

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, address(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera
