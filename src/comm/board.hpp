// The announcing and waiting protocol of ranks that share memory, be they
// threads or processes.
//
// Every rank owns one slot. It counts its steps there (an announcement, a
// finished move), and others wait for the count.
//   announce   write the record, say so in its first line, make a step; then wait for everybody's and read their records
//   move       claim, copy out of the peers' memory, drop the claim, make a step; wait for that step of one's readers
//   abort      publish a verdict (the first one stands), close every slot, wake all sleepers; then wait until no claim is
//              left: only then may a rank give up its memory
//   death      of a process, seen by the others: its slot is closed as if it had left
// A claim is taken before the verdict is looked at, and a verdict is published before claims are looked at; so either the
// reader sees the verdict and does not copy, or the owner sees the claim and waits. All words on that path are
// sequentially consistent for this reason. docs/protocol.md has the whole story, and a model that is checked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/futex.hpp"
#include "comm/saying.hpp"

namespace tessera {

// Of elements that travel within a record, at most; of such as do not lie in shared memory; of such as each peer reads a box
// of, so that only boxes are written there.
inline constexpr size_t kInlineBytes = 8192, kInlineUnsharedBytes = 12288, kInlineBoxesBytes = 16384;
// Where another has more than that, so that all wait a second time anyway.
inline constexpr size_t kRidingBytes = 1024;
// Of a record that needs one step only; longer ones take several.
inline constexpr size_t kRecordBytes = kInlineBoxesBytes + 2048;
inline constexpr size_t kVerdictBytes = 8192;  // longest text of a verdict
inline constexpr size_t kMostRanks = 4096;

// Between two calls of the hook of set_wait_hook().
inline constexpr std::chrono::milliseconds kHookInterval{100};

enum class Waited { reached, closed, timed_out };

// Plain words: the memory may be mapped by processes at different addresses.
struct alignas(128) Slot {
  std::atomic<uint32_t> step{0};  // twice the steps made; odd once the slot is
                                  // closed and no more will be made
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint64_t> call{0};  // what the rank is in, for messages: number × 256 + operation
  // What is announced, and in the same line the word that says so: who looks for it has the record with it, or is about to.
  // Nobody looks at it any more when its rank writes there again, so that its lines can come back before.
  struct alignas(128) Page {
    std::atomic<uint32_t> said{0};  // the step that follows
    uint64_t bytes = 0;
    std::byte record[kRecordBytes];
  };
  Page pages[2];                                // in turns
  alignas(128) std::atomic<uint32_t> claim{0};  // written by its rank alone: not 0 while it reads others' memory
  std::atomic<uint32_t> left{0};                // a Left
  // Whether the rank came to survivors(), and whether it could make what the new communicator needs.
  enum Shrinks : uint32_t { not_yet, came, has_no_room };
  std::atomic<uint32_t> shrinks{not_yet};
  char farewell[256] = {};
  // What this rank would tell all, written whole before it is offered; the head says whose offer stands.
  uint32_t verdict_kind = 0;
  char verdict_text[kVerdictBytes] = {};
  uint64_t heir = 0;
  uint64_t chosen[kMostRanks / 64] = {};
};

// How a rank left: by itself, and `farewell` says why; or its process is gone.
enum class Left : uint32_t { no, farewell, dead };

struct BoardHead {
  std::atomic<uint32_t> verdict{0};    // 1 + the rank whose verdict stands; 0: there is none
  std::atomic<uint32_t> survivors{0};  // 1 + the rank whose choice of survivors stands
  std::atomic<uint32_t> users{0};      // ranks that still hold the board
};

// One rank's hold on the board. For one thread at a time, except abort(),
// verdict() and where().
class Board {
 public:
  static size_t bytes(int size);
  static void initialise(void* memory, int size);

  // `memory` as initialise()d; it must outlive the Board. `patience`: how long an abort waits for a reader that has
  // stopped. A thread reads the owner's own memory, so for ever; a process can do no harm by reading late. `neighbours`: how
  // many ranks share the machine's cores, where these are not all.
  Board(void* memory, int rank, int size, std::chrono::nanoseconds patience = std::chrono::nanoseconds::max(),
        int neighbours = 0);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // What goes on while this rank sleeps: called before each sleep, it says how long that one may be.
  void set_idle(std::function<std::chrono::nanoseconds()> idle) { idle_ = std::move(idle); }
  // Lets it go on. Until when a sleep may last that would last until then.
  Deadline idle(Deadline until) const { return idle_ ? std::min(until, Clock::now() + idle_()) : until; }

  // Publishes `mine` and waits for everybody's. records[r] is valid until this rank's next announcement, and lies where
  // its owner wrote it, unless one of them is long.
  // Otherwise returns what happened, and `culprit` is the rank waited for. Throws Error where a length is beyond reason.
  Waited announce(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                  Deadline deadline, int& culprit);

  // False, and nothing claimed, where there is a verdict.
  bool claim();
  void drop_claim();
  void step();
  // Waits until `peer` has made as many steps as this rank.
  Waited wait_for(int peer, Deadline deadline);

  void leave(std::string_view farewell);
  bool has_left(int peer) const { return left(peer) != Left::no; }
  Left left(int peer) const { return static_cast<Left>(slots_[peer].left.load(std::memory_order_acquire)); }
  std::string farewell(int peer) const;
  // The peer's process is gone. Any thread.
  void declare_dead(int peer);

  // Publishes the verdict unless there is one, closes all slots, and returns when no peer has a claim any more.
  void abort(uint32_t kind, std::string_view text);
  bool aborted() const { return head_->verdict.load(std::memory_order_seq_cst) != 0; }
  // After an abort: the verdict that stands.
  void verdict(uint32_t& kind, std::string& text) const;

  // After an abort: who else came here before the deadline, or before all who have not left did; the same on every rank
  // that is among them; none for a rank that came too late. Each may call heir(); `said` is what the one whose choice
  // stands got from it. None: this rank has no room for it, and another one chooses. Throws Error, on all, where no rank has.
  using Heir = std::function<std::optional<uint64_t>(int members)>;
  std::vector<int> survivors(Deadline deadline, const Heir& heir, uint64_t& said);

  // Counts those that hold the board, from size() down; true for the last.
  bool let_go() { return head_->users.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  uint64_t call_of(int peer) const { return slots_[peer].call.load(std::memory_order_relaxed); }
  // What this rank is in, beside its announcements: unless it has announced a later call meanwhile.
  void note_message(uint64_t call);
  bool has_come(int peer) const;
  // Whether a peer has gone on beyond this rank's last step: then that one had
  // come together for somebody at least.
  bool is_behind() const;

 private:
  void close(Slot& slot);
  // With `lost`, where all must come: any process that died ends the wait too, and is named there.
  Waited sleep_for(Slot& slot, Deadline deadline, int* lost);
  int first_dead() const;
  Waited everyone(uint32_t side, Deadline deadline, int& culprit);
  void write_record(const Saying& mine, size_t from, uint64_t call);
  void take_back(uint32_t side, size_t bytes);
  void take_records(std::vector<std::span<const std::byte>>& records, uint32_t side, size_t from);
  bool claimed(int peer) const;
  bool any_to_shrink(uint32_t state) const;
  bool chosen() const { return head_->survivors.load(std::memory_order_seq_cst) != 0; }
  void choose(const Heir& heir, std::chrono::nanoseconds patience);
  void close_all();
  void publish(uint32_t kind, std::string_view text);

  BoardHead* head_;
  Slot* slots_;
  int rank_;
  int size_;
  Looks looks_;
  uint32_t steps_ = 0;          // twice the steps this rank has made
  uint32_t met_ = 0;            // of these, those that everybody is known to have made, or to be about to
  uint32_t announcements_ = 0;  // their parity says which of the two pages is in use
  std::chrono::nanoseconds patience_;
  std::function<std::chrono::nanoseconds()> idle_;
  uint64_t written_[2] = {0, 0};  // which version lies in each of the two
  std::vector<std::vector<std::byte>> records_;
  std::unique_ptr<std::mutex> offering_ = std::make_unique<std::mutex>();  // threads of this rank that abort at once
};

}  // namespace tessera
