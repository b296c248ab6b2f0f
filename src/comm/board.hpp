// The announcing and waiting protocol of ranks that share memory, be they
// threads or processes.
//
// Every rank owns one slot. It counts its steps there (an announcement, a
// finished move), and others wait for the count.
//   announce   write the record, make a step; then wait for that step of
//   everybody and read their records move       claim, copy out of the peers'
//   memory, drop the claim, make a step; wait for that step of one's readers
//   abort      publish a verdict (the first one stands), close every slot, wake
//   all sleepers; then wait until no claim is
//              left: only then may a rank give up its memory
// A claim is taken before the verdict is looked at, and a verdict is published
// before claims are looked at; so either the reader sees the verdict and does
// not copy, or the owner sees the claim and waits. All words on that path are
// sequentially consistent for this reason.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/futex.hpp"

namespace tessera {

inline constexpr size_t kRecordBytes = 1536;   // of a record that needs one step only; longer ones take several
inline constexpr size_t kVerdictBytes = 8192;  // longest text of a verdict

enum class Waited { reached, closed, timed_out };

// Plain words: the memory may be mapped by processes at different addresses.
struct alignas(128) Slot {
  std::atomic<uint32_t> step{0};  // twice the steps made; odd once the slot is
                                  // closed and no more will be made
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint64_t> call{0};  // what the rank is in, for messages: number × 256 + operation
  uint64_t record_bytes[2] = {0, 0};
  std::byte record[2][kRecordBytes];
  alignas(128) std::atomic<uint32_t> claim{0};  // written by its rank alone: not 0 while it reads others' memory
  std::atomic<uint32_t> left{0};                // the rank closed its slot itself; `farewell` says why
  char farewell[256] = {};
};

struct BoardHead {
  std::atomic<uint32_t> verdict{0};  // 0 none, 1 being written, 2 published
  uint32_t verdict_kind = 0;
  char verdict_text[kVerdictBytes] = {};
};

// One rank's hold on the board. For one thread at a time, except abort(),
// verdict() and where().
class Board {
 public:
  static size_t bytes(int size);
  static void initialise(void* memory, int size);

  // `memory` as initialise()d; it must outlive the Board.
  Board(void* memory, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Publishes `mine` and waits for everybody's. records[r] stays valid until
  // this rank's next announcement. Otherwise returns what happened, and
  // `culprit` is the rank waited for.
  Waited announce(std::span<const std::byte> mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                  Deadline deadline, int& culprit);

  // False, and nothing claimed, where there is a verdict.
  bool claim();
  void drop_claim();
  void step();
  // Waits until `peer` has made as many steps as this rank.
  Waited wait_for(int peer, Deadline deadline);

  void leave(std::string_view farewell);
  bool has_left(int peer) const { return slots_[peer].left.load(std::memory_order_acquire) != 0; }
  std::string farewell(int peer) const { return slots_[peer].farewell; }

  // Publishes the verdict unless there is one, closes all slots, and returns
  // when no peer has a claim any more.
  void abort(uint32_t kind, std::string_view text);
  bool aborted() const { return head_->verdict.load(std::memory_order_seq_cst) != 0; }
  // Waits for a verdict that is being written; kind and text are the published
  // one's.
  void verdict(uint32_t& kind, std::string& text) const;
  uint64_t call_of(int peer) const { return slots_[peer].call.load(std::memory_order_relaxed); }
  bool has_come(int peer) const;
  // Whether a peer has gone on beyond this rank's last step: then that one had
  // come together for somebody at least.
  bool is_behind() const;

 private:
  void close(Slot& slot);
  Waited sleep_for(Slot& slot, Deadline deadline);
  Waited everyone(Deadline deadline, int& culprit);
  void write_record(std::span<const std::byte> mine, size_t from);

  BoardHead* head_;
  Slot* slots_;
  int rank_;
  int size_;
  int spins_;
  uint32_t steps_ = 0;          // twice the steps this rank has made
  uint32_t announcements_ = 0;  // their parity says which of the two records is in use
  std::vector<std::vector<std::byte>> long_records_;
};

}  // namespace tessera
