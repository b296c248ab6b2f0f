// The memory that the ranks of one host share: one anonymous file, handed over by descriptor, that nobody else can open.
//
//   header | a place for each rank | who can read whom | the world's board | arena of rank 0 | arena of rank 1 | …
//
// It is sealed against shrinking and growing, so a mapped page of it never goes away under a reader. Arenas are as large
// as the machine's memory and take none until they are written to.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/board.hpp"

namespace tessera::shm {

inline constexpr size_t kPage = 4096;
inline constexpr size_t kHugePage = size_t{2} << 20;

inline constexpr int kMaxRanks = static_cast<int>(kMostRanks);

// Names one process for good. Its number alone does not: it goes to another process some time after the end.
struct Identity {
  int64_t pid = 0;
  uint64_t started = 0;        // when it began
  uint64_t token = 0;          // a random word that lies in its own memory, at …
  uint64_t token_address = 0;  // … this address: whoever reads it there has the right process
};

// What is known of one rank. Plain words: processes map it at different addresses, and a peer may write anything here.
struct alignas(128) Place {
  // By the rank.
  std::atomic<uint32_t> joined{0};  // 2: it is present
  Identity identity;                // where nobody leads, it is there before any rank joins
  char last_words[1024] = {};       // the exception that nobody caught
  // Of memory that its heap may take, and has not taken yet: others leave that alone.
  std::atomic<int64_t> promised{0};
  // By whoever has something for the rank, which sleeps on it.
  alignas(128) std::atomic<uint32_t> bell{0};
  std::atomic<uint32_t> sleepers{0};
  // By the launcher.
  std::atomic<uint32_t> ended{0};  // 1: wait_status is there
  int32_t wait_status = 0;
};

class Segment {
 public:
  // For `ranks` ranks; each arena is `arena_bytes` long (0: as long as this machine's memory). Where it is led, the calling
  // process is the launcher: ranks end when it does. Throws Error.
  static std::shared_ptr<Segment> create(int ranks, int64_t arena_bytes = 0, bool led = true);
  // Takes the descriptor over (and closes it where it throws). Throws Error for anything that is no whole segment.
  static std::shared_ptr<Segment> attach(int descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int ranks() const { return ranks_; }
  int descriptor() const { return descriptor_; }
  Place& place(int rank) const;
  // Whether `reader` could read the memory of `owner`'s process at start-up: 0 not tried, 1 no, 2 yes.
  std::atomic<uint8_t>& reads(int reader, int owner) const;
  void* board() const;
  std::span<std::byte> arena(int rank) const;
  std::span<std::byte> all() const { return {base_, bytes_}; }
  bool led() const { return launcher() != 0; }
  int64_t launcher() const;
  uint64_t launcher_started() const;

  // Wakes the rank: something happened that may concern it.
  void ring(int rank) const;
  void ring_all() const;

  // For the launcher. note_end() tells the ranks how one of them ended (a wait status). What the rank said of the exception
  // that ended it; empty: nothing.
  void note_end(int rank, int wait_status) const;
  std::string last_words(int rank) const;
  bool has_joined(int rank) const { return place(rank).joined.load(std::memory_order_acquire) == 2; }

 private:
  Segment(int descriptor, std::byte* base, size_t bytes, int ranks, size_t arena_bytes);

  const int descriptor_;
  std::byte* const base_;
  const size_t bytes_;
  const int ranks_;
  const size_t arena_bytes_;
};

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string text_of_status(int wait_status);

// What the launcher tells a rank through its environment.
struct HandOver {
  int rank = 0;
  int ranks = 1;
  int descriptor = -1;
};
inline constexpr const char* kRankVariable = "TESSERA_RANK";
inline constexpr const char* kRanksVariable = "TESSERA_RANKS";
inline constexpr const char* kDescriptorVariable = "TESSERA_SHM_FD";

// In the child, between fork and exec: sets the variables and lets the descriptor through exec (the rank closes it to its
// own children as soon as it has joined).
void hand_over(const Segment& segment, int rank);
// None where no launcher started this process. Throws Error where the variables make no sense. Null: not set.
std::optional<HandOver> parse_hand_over(const char* rank, const char* ranks, const char* descriptor);
std::optional<HandOver> hand_over_from_environment();

}  // namespace tessera::shm
