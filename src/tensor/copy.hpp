// Copying boxes.
#pragma once

#include <array>
#include <optional>

#include "tensor/copy_kernels.hpp"
#include "tensor/loop_nest.hpp"

namespace tessera {

// Copies src over dst, element by element. Both have the same dtype and shape
// (unchecked); any strides and any alignment; they must not overlap. dst may
// not have two elements in one place. `total_bytes` is the size of the whole
// job this copy is a part of: from copy_stream_bytes() on, the copy goes around the
// cache. What was streamed is visible to whoever the calling thread
// synchronises with afterwards.
void copy_box(const View& dst, const ConstView& src, int64_t total_bytes = 0);

// The same for many copies between memory of the same shapes and strides: how the loops run is worked out once.
class PreparedCopy {
 public:
  // Where the views lie does not matter.
  PreparedCopy(const View& dst, const ConstView& src, int64_t total_bytes = 0);
  void run(std::byte* dst, const std::byte* src) const;

 private:
  void run_nest(std::byte* dst, const std::byte* src) const;

  bool stream_;
  int64_t bytes_;
  using Nest = LoopNest<std::array<NestOperand, 2>>;
  std::optional<Nest> nest_;  // none: the bytes lie together in both
  PlaneKernel kernel_ = nullptr;
  Plane plane_ = {};
};

}  // namespace tessera
