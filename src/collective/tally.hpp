// What one call adds to the statistics, and to the flight recorder.
#pragma once

#include <mutex>
#include <string>
#include <utility>

#include "comm/comm_state.hpp"

namespace tessera::detail {

class Tally {
 public:
  // Nothing, where it has begun. `ahead`: what it moves unless it fails, and then the end costs next to nothing.
  void begin(CommState& comm, int64_t call, OpCode op, size_t operations, const Site& site, bool exchanges,
             const Stats* ahead) {
    if (std::exchange(begun_, true)) return;
    std::lock_guard lock(comm.guard());
    comm.recorder.begin(call, op, operations, site, ahead == nullptr ? 0 : ahead->bytes_received);
    comm.stats.calls += static_cast<int64_t>(operations);
    if (exchanges) ++comm.stats.exchanges;
    if (ahead == nullptr) return;
    moved_ = ahead;
    ahead_ = true;
    resets_ = comm.resets;
    add_to(comm.stats);
  }

  void allocated(int64_t bytes) {
    ++allocations_;
    bytes_allocated_ += bytes;
  }
  void forget_allocations() { allocations_ = bytes_allocated_ = 0; }
  // `schedule`: in words; null: there was none to choose.
  void moved(const Stats& counted, const std::string* schedule) {
    moved_ = &counted;
    schedule_ = schedule;
  }
  // What was counted ahead did not come.
  void take_back(CommState& comm) {
    if (!std::exchange(ahead_, false)) return;
    std::lock_guard lock(comm.guard());
    if (resets_ == comm.resets)
      each(comm.stats, [](int64_t& all, int64_t more) { all -= more; });  // else it is forgotten
    moved_ = nullptr;
  }

  // Of a call that has begun.
  void end(CommState& comm, int64_t call, const char* error) {
    if (error != nullptr) take_back(comm);
    if (ahead_) return comm.recorder.end(call);
    std::lock_guard lock(comm.guard());
    add_to(comm.stats);
    comm.recorder.end(call, moved_ == nullptr ? 0 : moved_->bytes_received, schedule_, error);
  }

 private:
  // Puts each of the statistics to what this call adds to it.
  template <class Put>
  void each(Stats& s, const Put& put) const {
    put(s.allocations, allocations_);
    put(s.bytes_allocated, bytes_allocated_);
    if (moved_ == nullptr) return;
    put(s.moves, moved_->moves);
    put(s.messages, moved_->messages);
    put(s.bytes_received, moved_->bytes_received);
    put(s.bytes_sent, moved_->bytes_sent);
    put(s.bytes_between_hosts, moved_->bytes_between_hosts);
    put(s.bytes_within_host, moved_->bytes_within_host);
    put(s.copies, moved_->copies);
    put(s.bytes_copied, moved_->bytes_copied);
  }
  void add_to(Stats& s) const {
    each(s, [](int64_t& all, int64_t more) { all += more; });
  }

  bool begun_ = false;
  bool ahead_ = false;
  int64_t resets_ = 0;            // when it was counted ahead
  const Stats* moved_ = nullptr;  // what was moved, once it was
  const std::string* schedule_ = nullptr;
  int64_t allocations_ = 0;
  int64_t bytes_allocated_ = 0;
};

}  // namespace tessera::detail
