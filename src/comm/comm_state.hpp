// What stands behind a Comm: its transport, its order of calls, its worker, its
// statistics and its flight recorder.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tessera/comm.hpp>
#include <tessera/work.hpp>

#include "comm/agreement.hpp"
#include "comm/agreements.hpp"
#include "comm/brief_lock.hpp"
#include "comm/fiber.hpp"
#include "comm/recorder.hpp"
#include "comm/transport.hpp"

namespace tessera::detail {

// Counts forks, so that a child knows that it is one without asking the system at every call.
inline std::atomic<int> fork_generation{0};

class CommState : public std::enable_shared_from_this<CommState> {
 public:
  CommState(std::unique_ptr<Transport> transport, std::string name, std::chrono::nanoseconds timeout);
  ~CommState();

  // Finishes what is pending and leaves.
  void close(const std::string& farewell) noexcept;

  Transport& transport() { return *transport_; }
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::nanoseconds timeout() const { return std::chrono::nanoseconds(timeout_.load()); }
  void set_timeout(std::chrono::nanoseconds timeout);
  Deadline deadline() const;

  // Runs fn now if nothing is pending, else on the worker after all that is,
  // and waits for it. Throws as check_open().
  template <class Fn>
  void call(Fn&& fn) {
    check_open();
    if (pending_.load(std::memory_order_acquire) == 0) return fn();
    const auto later = [&] {
      check_usable();
      fn();
    };
    Work(submit(later)).wait();
  }
  bool has_pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // Runs fn on the worker; where only one thread may call, it starts now and goes on with that thread (go_on()).
  std::shared_ptr<Task> submit(std::function<void()> fn);

  // Lets all that was started by this thread go on, on other communicators too. Throws Error on another thread.
  void go_on() {
    fibers_.check_thread();
    FiberQueue::progress_all();
  }
  bool may_go_on() const { return fibers_.is_own_thread(); }

  // Throws where this communicator cannot be used: in a forked child, after an
  // abort. A new call asks for an open one too: what is pending when it closes
  // still runs.
  void check_usable() {
    if (in_forked_child() || transport_->aborted()) throw_unusable();
  }
  // For who has lost the communicator.
  std::string remedy() const;
  void set_remedy(const std::string& text) { remedy_ = text; }
  void check_open() {
    if (closed_) throw_closed();
    transport_->check_thread();
    check_usable();
  }
  bool in_forked_child() const { return fork_generation.load(std::memory_order_relaxed) != born_in_; }
  void check_not_forked() const;
  int64_t next_call() {  // calls are made one after the other; others only look
    const int64_t call = calls_.load(std::memory_order_relaxed) + 1;
    calls_.store(call, std::memory_order_release);
    return call;
  }
  int64_t last_call() const { return calls_; }
  CallName call_name(int64_t number) const { return {number, name_, size_}; }

  // How a record (of words) is said: as a repetition where this rank said the same from that place before, and that helps.
  Saying saying(std::span<int64_t> words, const Place& place);
  // Says `mine` to everybody and returns what everybody said, as it came. Valid until the next exchange.
  const RawRecords& exchange(const Saying& mine, int64_t call, OpCode op, Deadline deadline);
  // Works out what that was, when all agree; throws on every rank otherwise. The place of the call says where to look for
  // an earlier one like it. Valid until the next call.
  Agreement& agree(int64_t call, const Place& place);
  // All said the same as in an earlier call, but for what changes: that is noted.
  void decode_changes(Agreement& agreement) const;
  Agreement& agreement_at(const Place& place) { return agreements_->at(place); }
  Agreements& agreements() { return *agreements_; }
  // What was said in the last exchange; copies of it after agree().
  const RawRecords& said() const { return said_; }
  // Whether that was of all ranks: not where they have voted.
  bool all_said() const {
    return std::none_of(said_.begin(), said_.end(), [](const auto& record) { return record.empty(); });
  }
  // Whether all were to vote that they repeat an earlier call, and somebody did not.
  bool lost_vote() const { return transport_->votes() && all_said(); }
  // An error of a Work that was dropped is told to all by the next call.
  bool has_deferred() const { return has_deferred_.load(std::memory_order_acquire); }
  void attach_deferred(Record& mine);
  // Makes the error that all ranks see out of a peer that did not come; the
  // communicator is dead then.
  [[noreturn]] void fail(const PeerTrouble& trouble, int64_t call);
  // The same for a message between two ranks; `what` names it, `hint` is a line on how such a thing comes about.
  [[noreturn]] void fail_pair(const PeerTrouble& trouble, const std::string& what, std::string_view hint);
  // A message begins, and others see that this rank is in it. Returns what the recorder knows it by.
  int64_t begin_message(OpCode op, const std::string& with, const Site& site);
  // This rank cannot go on with a call that all agreed on.
  void abort(const std::string& reason);
  void defer(std::exception_ptr error);
  // The error of a Work that was dropped and that no later call could tell;
  // null: none.
  std::exception_ptr take_deferred();

  // Kept between calls by the engine that runs them, for its capacity.
  std::shared_ptr<void> workspace;
  std::shared_ptr<void> trusted;  // gathers, of which the next may be one

  BriefLock& guard() { return guard_; }  // of stats and recorder
  Stats stats;
  int64_t resets = 0;                 // of the statistics
  Transport::Traffic traffic_before;  // when the statistics were reset
  Recorder recorder;

 private:
  [[noreturn]] void throw_closed() const;
  [[noreturn]] void throw_unusable();
  void work_off();
  bool note_said(Agreement& agreement) const;
  std::string where_ranks_are(int64_t call) const;
  [[noreturn]] void die(PeerTrouble::Kind kind, const std::string& what, int64_t call, const std::vector<int>& missing,
                        std::string_view hint = {});

  std::unique_ptr<Transport> transport_;
  const std::string name_;
  const int rank_;
  const int size_;
  const int born_in_;  // which fork generation made it
  std::atomic<int64_t> timeout_;
  std::string remedy_;             // none: shrink(), where that works
  std::atomic<int64_t> calls_{0};  // a message that fails beside the worker's call asks for it

  BriefLock guard_;
  std::mutex queue_guard_;
  std::condition_variable queue_changed_;
  std::deque<std::function<void()>> queue_;
  std::atomic<int> pending_{0};
  bool closing_ = false;
  std::atomic<bool> closed_{false};
  std::atomic<bool> told_{false};  // this rank has thrown the verdict
  std::thread worker_;
  FiberQueue fibers_;  // instead of a worker
  std::exception_ptr deferred_;
  std::atomic<bool> has_deferred_{false};

  // Kept between calls for their capacity.
  RawRecords said_;
  std::vector<std::vector<std::byte>> copies_;
  std::unique_ptr<Agreements> agreements_;
};

// Sorts an exception into the kind and text that can be told to other ranks.
ErrorKind kind_of(const std::exception_ptr& error, std::string& text);

}  // namespace tessera::detail
