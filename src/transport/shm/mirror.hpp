// A copy in the shared heap of a tensor that peers cannot read where it lies: row-major, filled piece by piece while they
// read behind.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include <tessera/tensor.hpp>

#include "comm/futex.hpp"
#include "transport/shm/heap.hpp"

namespace tessera::shm {

// Stands in the heap before the elements.
struct alignas(64) MirrorHead {
  std::atomic<uint64_t> filled{0};  // bytes, from the front
  std::atomic<uint32_t> count{0};   // changes with every piece: readers sleep on it
  std::atomic<uint32_t> sleepers{0};
};

class Mirror {
 public:
  // Empty where the heap has no room.
  static std::unique_ptr<Mirror> make(Heap& heap, const Tensor& tensor);

  // Of the elements in the arena.
  int64_t offset() const { return offset_; }
  int64_t copied_bytes() const { return copied_bytes_; }
  bool full() const { return next_ == pieces_; }
  // Peers read this box of it. Where nobody says so, they read all.
  void want(const Box& box);
  // Copies what peers read of the next piece, and tells who waits for it.
  void fill_next();
  void fill() {
    while (!full()) fill_next();
  }

 private:
  Mirror(std::shared_ptr<std::byte> block, int64_t offset, const Tensor& tensor);

  std::shared_ptr<std::byte> block_;
  MirrorHead* head_;
  int64_t offset_;
  Tensor tensor_;
  std::vector<Box> wanted_;  // none: all
  int64_t next_ = 0;
  int64_t pieces_;
  int64_t copied_bytes_ = 0;
};

}  // namespace tessera::shm
