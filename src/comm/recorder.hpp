// The flight recorder: the last calls of a rank.
#pragma once

#include <array>
#include <string>
#include <vector>

#include <tessera/comm.hpp>

#include "comm/statement.hpp"

namespace tessera {

inline constexpr int64_t kRecordedCalls = 64;

// Not thread-safe: its owner guards it.
class Recorder {
 public:
  void begin(int64_t call, OpCode op, size_t batch, const Site& site, std::chrono::steady_clock::time_point now);
  void end(int64_t call, int64_t bytes_received, const char* error);

  std::vector<CallRecord> calls() const;
  // "#15 all_gather 1024 bytes, #16 barrier", the last few.
  std::string summary() const;

 private:
  struct Entry {
    int64_t call = 0;
    OpCode op = OpCode::none;
    size_t batch = 1;
    Site site;
    int64_t bytes_received = 0;
    std::chrono::steady_clock::time_point start, end;
    bool finished = false;
    std::string error;
  };
  Entry& entry(int64_t call) { return entries_[static_cast<size_t>(call % kRecordedCalls)]; }

  std::array<Entry, kRecordedCalls> entries_;
  int64_t last_ = 0;
};

// "train.cpp" of a site, and "train.cpp:41".
const char* file_of(const Site& site);
std::string site_text(const Site& site);

// The calls of one rank in the Chrome trace format.
std::string chrome_trace(const std::vector<CallRecord>& calls, const std::string& comm, int rank);

}  // namespace tessera
