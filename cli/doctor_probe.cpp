#include "doctor_probe.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>

#include "comm/futex.hpp"
#include "descriptor.hpp"
#include "transport/shm/process.hpp"
#include "transport/shm/segment.hpp"

namespace tessera::cli {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

using shm::kPage;

constexpr auto kLongWait = 5s;  // for a child that only has to get a core

// Memory that a parent and its children share; a descriptor of -1: anonymous.
class Mapping {
 public:
  explicit Mapping(size_t bytes, int flags = MAP_SHARED | MAP_ANONYMOUS, int descriptor = -1) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (base_ == MAP_FAILED) fail_with_errno("cannot map memory");
  }
  ~Mapping() { munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;

  char* data() const { return static_cast<char*>(base_); }

 private:
  size_t bytes_;
  void* base_;
};

// Shared memory as ranks have it.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : segment_(shm::Segment::create(1, static_cast<int64_t>(bytes), false)) {
    huge_ = shm::ask_for_huge_pages(segment_->arena(0).data(), segment_->arena(0).size());
  }
  char* data() const { return reinterpret_cast<char*>(segment_->arena(0).data()); }
  shm::Huge huge() const { return huge_; }

 private:
  const std::shared_ptr<shm::Segment> segment_;
  shm::Huge huge_;
};

// A child that runs fn() and exits with what it returns; killed when this goes, and when the parent does.
class Child {
 public:
  explicit Child(const std::function<int()>& fn) : pid_(fork()) {
    if (pid_ < 0) fail_with_errno("cannot start a process");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(fn());
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int exit_code() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  }

 private:
  pid_t pid_;
};

// What the processes of a measurement tell each other.
struct Control {
  std::atomic<uint32_t> turn{0}, done{0};
  size_t stage_from = 0, stage_bytes = 0;  // what the owner is to copy into the stage
  double stage_s = 0;                      // how long that took it
  uint64_t private_address = 0;            // of the owner's memory
};

// False: it did not come in time.
bool wait_until(const std::atomic<uint32_t>& word, uint32_t value) {
  const Deadline deadline = Clock::now() + kLongWait;
  for (int spins = 0; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins < 2000) {
      cpu_relax();
    } else {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != value) futex_wait(word, now, deadline);
      if (Clock::now() >= deadline) return false;
    }
  }
  return true;
}

void set_and_wake(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value, std::memory_order_release);
  futex_wake_all(word);
}

[[noreturn]] void sleep_for_good() {
  while (true) pause();
}

// The errno with which one child fails to read the other's memory.
int try_attach_once(bool admit) {
  const Mapping shared(kPage);
  auto* control = new (shared.data()) Control;
  const pid_t parent = getpid();
  const Child owner([&]() -> int {
    static uint64_t word;
    word = 42;
    if (admit) shm::admit_readers(parent);
    control->private_address = reinterpret_cast<uint64_t>(&word);
    set_and_wake(control->done, 1);
    sleep_for_good();
  });
  if (!wait_until(control->done, 1)) return ETIMEDOUT;
  Child reader([&] {
    uint64_t word = 0;
    const iovec here = {&word, sizeof(word)};
    const iovec there = {reinterpret_cast<void*>(control->private_address), sizeof(word)};
    if (process_vm_readv(owner.pid(), &here, 1, &there, 1, 0) < 0) return errno;
    return word == 42 ? 0 : EIO;
  });
  return reader.exit_code();
}

}  // namespace

int try_sealed_memory() {
  const Descriptor file(memfd_create("tessera-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), kPage) != 0) return errno;
  const Mapping mapping(kPage, MAP_SHARED, file.get());
  mapping.data()[0] = 1;
  return fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? 0 : errno;
}

shm::Huge try_huge_pages() {
  try {
    return SharedMemory(shm::kHugePage).huge();
  } catch (const Error&) {
    return shm::Huge::never;  // no shared memory at all: another check tells
  }
}

int try_process_handle() {
  Child child([] { return 0; });
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  if (!process) return errno;
  pollfd ended = {process.get(), POLLIN, 0};
  const int found = poll(&ended, 1, static_cast<int>(std::chrono::milliseconds(kLongWait).count()));
  return found == 1 ? child.exit_code() : ETIMEDOUT;
}

int try_futex() {
  const Mapping shared(kPage);
  auto* control = new (shared.data()) Control;
  const Child child([&] {
    futex_wait(control->turn, 0, Clock::now() + 2 * kLongWait);
    return 0;
  });
  // The kernel says how many it woke: one, as soon as the child sleeps.
  for (const auto deadline = Clock::now() + kLongWait; Clock::now() < deadline; usleep(200)) {
    const long woken = syscall(SYS_futex, &control->turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    if (woken < 0) return errno;
    if (woken > 0) return 0;
  }
  return ETIMEDOUT;
}

Attach try_attach() { return {try_attach_once(false), try_attach_once(true)}; }

namespace {

constexpr size_t kMost = size_t{16} << 20;    // the largest copy
constexpr size_t kStage = size_t{256} << 10;  // a staged copy goes in pieces, so that they stay in cache
constexpr size_t kWindow = size_t{4} << 20;   // small copies go through so much: more than a core's own cache
constexpr size_t kTouched = size_t{64} << 20;
constexpr auto kTime = 12ms;  // for one figure, in each of so many rounds: others disturb, nobody helps
constexpr int kProbeRounds = 4;
constexpr double kForever_s = 1e9;
constexpr double kBatch_s = 0.5e-3;  // the mean of so long; the best counts

template <class Fn>
double seconds_of(Fn fn) {
  const auto start = Clock::now();
  fn();
  return Seconds(Clock::now() - start).count();
}

// As tessera asks for, where it allocates a tensor.
void prefer_huge_pages(const Mapping& mapping, size_t bytes) { madvise(mapping.data(), bytes, MADV_HUGEPAGE); }

// Two processes: this one, which takes, and an owner, which has the bytes in shared and in private memory.
class WayTimer {
 public:
  WayTimer()
      : shared_(kPage + kStage + kMost),
        control_(new (shared_.data()) Control),
        target_(kMost, MAP_PRIVATE | MAP_ANONYMOUS),
        owner_([this] { return own(); }) {
    prefer_huge_pages(target_, kMost);
    std::memset(target_.data(), 1, kMost);
    take_turn(0, 0);  // the owner has touched all its memory then
  }

  // The ways take turns, so that what disturbs one disturbs all.
  CopySpeed speeds(size_t bytes, bool attach_works) {
    double in_place = kForever_s, attach = kForever_s, staged = kForever_s;
    for (int round = 0; round < kProbeRounds; ++round) {
      in_place = std::min(in_place, best(bytes, [&](size_t from) { return take_in_place(from, bytes); }));
      staged = std::min(staged, best(bytes, [&](size_t from) { return take_staged(from, bytes); }));
      if (attach_works) attach = std::min(attach, best(bytes, [&](size_t from) { return take_attached(from, bytes); }));
    }
    const auto size = static_cast<double>(bytes);
    return {static_cast<int64_t>(bytes), size / in_place, attach_works ? size / attach : 0, size / staged};
  }

 private:
  char* stage() const { return shared_.data() + kPage; }
  char* source() const { return stage() + kStage; }

  // Seconds for one copy.
  double take_in_place(size_t from, size_t bytes) const {
    return seconds_of([&] { std::memcpy(target_.data() + from, source() + from, bytes); });
  }

  double take_attached(size_t from, size_t bytes) const {
    const iovec here = {target_.data() + from, bytes};
    const iovec there = {reinterpret_cast<void*>(control_->private_address + from), bytes};
    ssize_t got = 0;
    const double seconds = seconds_of([&] { got = process_vm_readv(owner_.pid(), &here, 1, &there, 1, 0); });
    if (got != static_cast<ssize_t>(bytes)) fail_with_errno("process_vm_readv");
    return seconds;
  }

  // Both copies, one after the other: ranks that all give and take have no core to spare for one of them. Waiting does not
  // count, since the other ways have to wait as well until the owner has something.
  double take_staged(size_t from, size_t bytes) {
    double seconds = 0;
    for (size_t at = 0; at < bytes; at += kStage) {
      const size_t part = std::min(kStage, bytes - at);
      take_turn(from + at, part);
      seconds += control_->stage_s + seconds_of([&] { std::memcpy(target_.data() + from + at, stage(), part); });
    }
    return seconds;
  }

  int own() {
    const Mapping mine(kMost, MAP_PRIVATE | MAP_ANONYMOUS);
    prefer_huge_pages(mine, kMost);
    std::memset(mine.data(), 2, kMost);
    std::memset(source(), 3, kMost);
    std::memset(stage(), 4, kStage);
    shm::admit_readers(getppid());
    control_->private_address = reinterpret_cast<uint64_t>(mine.data());
    for (uint32_t turn = 1; true; ++turn) {
      while (!wait_until(control_->turn, turn)) continue;
      control_->stage_s =
          seconds_of([&] { std::memcpy(stage(), mine.data() + control_->stage_from, control_->stage_bytes); });
      set_and_wake(control_->done, turn);
    }
  }

  void take_turn(size_t from, size_t bytes) {
    control_->stage_from = from;
    control_->stage_bytes = bytes;
    const uint32_t turn = control_->turn.load() + 1;
    set_and_wake(control_->turn, turn);
    wait_until(control_->done, turn);
  }

  // The mean of the best batch; copy(from) returns its seconds.
  template <class Fn>
  static double best(size_t bytes, Fn copy) {
    const size_t window = std::max(bytes, kWindow);
    const auto end = Clock::now() + kTime;
    double result = kForever_s;
    size_t from = 0;
    do {
      double seconds = 0;
      size_t count = 0;
      do {
        seconds += copy(from);
        from = from + 2 * bytes <= window ? from + bytes : 0;
        ++count;
      } while (seconds < kBatch_s && Clock::now() < end);
      result = std::min(result, seconds / static_cast<double>(count));
    } while (Clock::now() < end);
    return result;
  }

  const SharedMemory shared_;
  Control* const control_;
  const Mapping target_;
  const Child owner_;
};

double time_to_fill(char* data) {
  return seconds_of([&] { std::memset(data, 5, kTouched); });
}

void measure_first_touch(Speeds& speeds) {
  const auto speed = [](double seconds) { return static_cast<double>(kTouched) / seconds; };
  for (int i = 0; i < 2; ++i) {
    std::optional<SharedMemory> shared;
    const double fresh = seconds_of([&] {
      shared.emplace(kTouched);
      time_to_fill(shared->data());
    });
    speeds.fresh_shared = std::max(speeds.fresh_shared, speed(fresh));
    speeds.warm_shared = std::max(speeds.warm_shared, speed(time_to_fill(shared->data())));
  }
  for (int i = 0; i < 2; ++i) {
    const Mapping mine(kTouched, MAP_PRIVATE | MAP_ANONYMOUS);
    prefer_huge_pages(mine, kTouched);
    speeds.fresh_private_huge = std::max(speeds.fresh_private_huge, speed(time_to_fill(mine.data())));
  }
}

bool attach_wins(const CopySpeed& copy) { return copy.attach > copy.staged; }

// The smallest power of two from which on attach is faster, between a size at which it is not and one at which it is.
int64_t find_crossing(WayTimer& timer, int64_t loses, int64_t wins) {
  while (2 * loses < wins) {
    int64_t middle = loses;
    while (middle * middle < loses * wins) middle *= 2;
    (attach_wins(timer.speeds(static_cast<size_t>(middle), true)) ? wins : loses) = middle;
  }
  return wins;
}

void measure_copies(Speeds& speeds, bool attach_works) {
  WayTimer timer;
  for (const size_t bytes : {kPage, size_t{64} << 10, size_t{1} << 20, kMost}) {
    speeds.copies.push_back(timer.speeds(bytes, attach_works));
  }
  const auto end = speeds.copies.end();
  const auto first = std::find_if(speeds.copies.begin(), end, attach_wins);
  if (first == end) return;
  const auto beyond = std::find_if_not(first, end, attach_wins);
  speeds.attach_wins = {first->bytes, std::nullopt};
  if (first != speeds.copies.begin()) speeds.attach_wins->from = find_crossing(timer, (first - 1)->bytes, first->bytes);
  if (beyond != end) speeds.attach_wins->to = (beyond - 1)->bytes;
}

}  // namespace

Speeds measure(bool attach_works) {
  Speeds speeds;
  measure_copies(speeds, attach_works);
  measure_first_touch(speeds);
  return speeds;
}

}  // namespace tessera::cli
