// Ranks that come late, or stand still within a call: who is told what, and what is kept meanwhile.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "plain.hpp"

using namespace tessera;

namespace {

// In KiB, of this process.
int64_t memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what)) return std::atoll(line.c_str() + what.size());
  }
  throw Error("/proc/self/status does not say " + what);
}

unsigned late_by = 0;  // seconds, that the last of four ranks takes within a call

std::vector<int> descriptors;

// What rank 1 does where it is about to share the memory of its host.
void join_oddly() {
  const char* what = std::getenv("TESSERA_TEST_JOIN");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMI_RANK");
  if (what == nullptr || rank == nullptr || std::string(rank) != "1") return;
  if (std::string(what) == "late") usleep(600'000);
  if (std::string(what) != "fails") return;
  rlimit limit{};  // it has no descriptor left to watch the others with
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int one = dup(1); one >= 0; one = dup(1)) descriptors.push_back(one);
}

}  // namespace

// In place of the C library's, which tessera calls there.
extern "C" int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long words[4];
  for (unsigned long& word : words) word = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_PTRACER) join_oddly();
  return static_cast<int>(syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]));
}

// A rank that comes late is waited for, and one that fails is not: then all do without shared memory.
void joins(Comm& comm) {
  for (const int one : descriptors) close(one);
  const std::string carrier = comm.transport(), what = std::getenv("TESSERA_TEST_JOIN");
  const bool shares = carrier.find("by messages too") == std::string::npos;
  if (shares != (what == "late") || carrier.find("did not") != std::string::npos) throw Error(carrier);
  require(all_reduce(comm, Tensor::full(DType::i64, {1}, 1)).at<int64_t>(0) == comm.size(), "a sum");
}

RunOptions options_of(const std::string& what) {
  if (what != "stands_still" && what != "late_term") return {};
  return {.probe = [](Moment moment, int rank, int64_t) {
    if (late_by > 0 && moment == Moment::during_copy && rank == 3) sleep(late_by);
  }};
}

// The last rank comes when the others have given up, and learns of it.
void comes_late(Comm& world) {
  Comm comm = world.split(0);
  comm.barrier();
  comm.set_timeout(std::chrono::seconds(1));
  if (comm.rank() == comm.size() - 1) sleep(3);
  try {
    all_gather(comm, Tensor::full(DType::u8, {100}, 7));
  } catch (const TimeoutError&) {
    return;
  }
  throw Error("a call succeeds that others have given up");
}

// The last rank stands still in a call in which one other waits for it. The rest wait for both, in the next one.
void stands_still(Comm& comm) {
  const int me = comm.rank();
  comm.barrier();
  comm.set_timeout(std::chrono::seconds(2));
  late_by = 60;
  const Tensor x = Tensor::empty(DType::u8, {me == 3 ? 100'000 : 0});
  all_to_all_v(comm, x, me == 3 ? Sizes{0, 0, 100'000, 0} : Sizes(4, 0));
  comm.barrier();
}

// Rank 0 gives up a message that it has begun to receive. Nobody writes to its memory any more.
void gives_up(Comm& comm) {
  constexpr int64_t kBytes = 4 << 20;
  std::vector<uint8_t> memory(kBytes, 1);
  Comm other = comm.split(0);
  comm.set_timeout(std::chrono::seconds(1));
  if (comm.rank() == 1) {
    auto sending = start_send(comm, Tensor::full(DType::u8, {kBytes}, 9), 0);
    usleep(1'200'000);
    try {
      sending.wait();
    } catch (const Error&) {}
    return other.barrier();
  }
  try {
    recv(comm, 1, 0, Tensor::view(std::span(memory), {kBytes}));
    throw Error("a message came that nobody has sent yet");
  } catch (const TimeoutError&) {
    std::fill(memory.begin(), memory.end(), uint8_t{1});
    other.barrier();
    for (const uint8_t byte : memory) require(byte == 1, "memory of a call that has failed");
  }
}

// While one rank is late, the others keep no more of a sum's terms than a few pieces.
void late_term(Comm& comm) {
  const int64_t elements = int64_t{32} << 20;
  const Tensor x = Tensor::full(DType::f32, {elements}, 1 + comm.rank());
  const Tensor out = Tensor::full(DType::f32, {elements / comm.size()}, 0);
  comm.barrier();
  const int64_t before = memory("VmHWM:");
  late_by = 1;
  reduce_scatter(comm, x, {.dim = 0, .out = out});
  const int64_t more = memory("VmHWM:") - before;
  if (more > 48 << 10) throw Error(fmt::format("{} MiB were kept", more >> 10));
  for (int64_t i = 0; i < out.elements(); i += 1001) require(out.at<float>(i) == 10, "a sum");
}

// Nothing is left of messages that are over.
void many_messages(Comm& comm) {
  const Tensor x = Tensor::full(DType::i64, {1}, comm.rank());
  const auto send_some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      if (comm.rank() == 0) send(comm, x, 1);
      else require(recv(comm, 0, 0, x).tensor.at<int64_t>(0) == 0, "a message");
      if (i % 100 == 0) comm.barrier();
    }
  };
  send_some(2'000);
  const int64_t before = memory("VmRSS:");
  send_some(20'000);
  const int64_t more = memory("VmRSS:") - before;
  if (more > 2 << 10) throw Error(fmt::format("{} KiB are left of 20000 messages", more));
}
