// Copying boxes.
#pragma once

#include "tensor/view.hpp"

namespace tessera {

// Copies src over dst, element by element. Both have the same dtype and shape
// (unchecked); any strides and any alignment; they must not overlap. dst may
// not have two elements in one place. `total_bytes` is the size of the whole
// job this copy is a part of: from kStreamBytes on, the copy goes around the
// cache. What was streamed is visible to whoever the calling thread
// synchronises with afterwards.
void copy_box(const View& dst, const ConstView& src, int64_t total_bytes = 0);

}  // namespace tessera
