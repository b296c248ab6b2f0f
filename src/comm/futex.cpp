#include "comm/futex.hpp"

#include <linux/futex.h>
#include <sched.h>
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

namespace {

int all_cores() { return static_cast<int>(std::thread::hardware_concurrency()); }

}  // namespace

int spins_for(int ranks, int cores) { return ranks <= cores ? 2000 : 20; }

Looks::Looks(int ranks) : spins_(spins_for(ranks, all_cores())), yields_(ranks <= all_cores() ? 0 : 100) {}

bool Looks::leave_core() {
  // Somebody who computes now and then costs a short rest; somebody who is still there after that, long ones.
  constexpr std::chrono::milliseconds kLong{1}, kSoon{100}, kShortRest{50}, kLongRest{2000};
  static std::atomic<Clock::rep> rested_at{0};
  const auto before = Clock::now();
  const Clock::time_point rested(Clock::duration(rested_at.load(std::memory_order_relaxed)));
  if (before < rested) return false;
  sched_yield();
  const auto after = Clock::now();
  if (after - before < kLong) return true;
  const auto rest = before - rested < kSoon ? kLongRest : kShortRest;
  rested_at.store((after + rest).time_since_epoch().count(), std::memory_order_relaxed);
  return false;
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, address(word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera
