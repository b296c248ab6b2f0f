// A rank's own part of the shared memory, as a heap. What it knows of its blocks lies in the process's own memory, so no
// peer can damage it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/shm/limits.hpp"
#include "transport/shm/segment.hpp"

namespace tessera::shm {

// Thread safety: every function may be called from any thread.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  // Of the arena's bytes from `reserved` on. `system`: the folder that has the system's /proc and /sys.
  Heap(std::shared_ptr<Segment> segment, int rank, size_t reserved, std::string system = "");

  // At least `bytes` bytes, aligned to 64; goes back to the heap with the last reference, and the last reference keeps the
  // segment. Null where the arena is full. Throws Error where the machine, or the control group, has no memory left.
  std::shared_ptr<std::byte> allocate(int64_t bytes);

  // Throws Error where the machine, or the control group, has not so much memory left for the process's own use.
  void check_private(int64_t bytes);

  // Where `data` lies in the arena; -1: it does not.
  int64_t offset_of(const void* data) const;

  struct Usage {
    int64_t live_bytes = 0;     // in use
    int64_t touched_bytes = 0;  // taken from the machine and still held: what was ever in use, in whole huge pages
  };
  Usage usage() const;

 private:
  static constexpr size_t kSmall = size_t{64} << 10;  // up to here by powers of two, and never joined again
  static constexpr size_t kSmallest = 128;
  static constexpr size_t kClasses = 10;

  size_t take(size_t bytes);  // the offset; kNone: no room
  size_t take_small(size_t size_class);
  size_t take_large(size_t bytes);
  size_t take_fresh(size_t bytes);
  void hold(size_t end);
  void hold_step(size_t end);
  size_t hold_huge(size_t end);  // up to where there is memory then, or is to be
  void give(size_t offset, size_t bytes);
  void add_free(size_t offset, size_t bytes);
  void erase_free(std::map<size_t, size_t>::iterator block);
  bool can_spare(int64_t bytes) const;
  void check_limit(int64_t wanted, const char* kind);
  MemoryLimit limit_for_this() const;
  void promise(int64_t bytes) const { segment_->place(rank_).promised.store(bytes, std::memory_order_seq_cst); }

  static constexpr size_t kNone = SIZE_MAX;

  const std::shared_ptr<Segment> segment_;
  const std::string system_;
  const int rank_;
  std::byte* const base_;
  const size_t end_;

  mutable std::mutex guard_;
  size_t fresh_;                                // from here on nothing was ever used
  const size_t first_;                          // where the heap begins
  size_t held_;                                 // up to here there is memory, or will be at the first touch
  bool asks_for_huge_ = true;                   // until the kernel has said that it has none
  size_t refused_ = 0;                          // up to here it had none to give when it was asked
  std::map<size_t, size_t> free_by_place_;      // offset to bytes
  std::multimap<size_t, size_t> free_by_size_;  // bytes to offset
  std::vector<size_t> small_[kClasses];
  int64_t live_ = 0;
  int64_t credit_ = 0;  // fresh bytes until the limits are asked again
};

}  // namespace tessera::shm
