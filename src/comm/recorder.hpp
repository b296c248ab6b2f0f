// The flight recorder: the last calls of a rank.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include <tessera/comm.hpp>

#include "comm/statement.hpp"

namespace tessera {

inline constexpr int64_t kRecordedCalls = 64;

// What the processor counts: a third of the price of a clock, of which every call would need two.
inline uint64_t ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Not thread-safe: its owner guards it.
class Recorder {
 public:
  void begin(int64_t call, OpCode op, size_t batch, const Site& site, int64_t bytes_received);
  // `schedule`: in words; null: there was none to choose.
  void end(int64_t call, int64_t bytes_received, const std::string* schedule, const char* error);
  // The same for a call that had the bytes told with begin(). The one function that needs no guard.
  void end(int64_t call) { entry(call).end.store(ticks_now(), std::memory_order_relaxed); }

  // A message between two ranks, which has no number among the calls; many may be under way at once. What is returned
  // stands for it at its end.
  int64_t begin_message(OpCode op, std::string with, const Site& site);
  void end_message(int64_t message, int64_t bytes_received, const char* error);

  std::vector<CallRecord> calls() const;
  // "#15 all_gather at train.cpp:41 (1024 bytes), send to rank 1 (tag 0) at train.cpp:42", the last few.
  std::string summary() const;

 private:
  struct Entry {
    int64_t call = 0;
    OpCode op = OpCode::none;
    size_t batch = 1;
    Site site;
    int64_t bytes_received = 0;
    uint64_t start = 0;            // ticks
    std::atomic<uint64_t> end{0};  // 0: it has not
    std::string schedule, error;
  };
  struct Message : Entry {  // its `call` counts messages
    std::string with;       // "to rank 1 (tag 0)"
  };
  Entry& entry(int64_t call) { return entries_[static_cast<size_t>(call % kRecordedCalls)]; }

  std::array<Entry, kRecordedCalls> entries_;
  int64_t last_ = 0;
  std::vector<Message> messages_;  // none before the first
  int64_t last_message_ = 0;
  const uint64_t born_ticks_ = ticks_now();
  const std::chrono::steady_clock::time_point born_ = std::chrono::steady_clock::now();
};

// "train.cpp" of a site, and "train.cpp:41".
const char* file_of(const Site& site);
std::string site_text(const Site& site);

// The calls of one rank in the Chrome trace format.
std::string chrome_trace(const std::vector<CallRecord>& calls, const std::string& comm, int rank);

}  // namespace tessera
