// The stretches of bytes that lie together in two views of one shape.
#pragma once

#include "tensor/loop_nest.hpp"

namespace tessera {

// Calls fn(dst, src, bytes) for each stretch, in the order of dst's memory, until it returns false. Neither is read or
// written, so src may be another process's address.
template <class Fn>
void for_each_run(const View& dst, const ConstView& src, const Fn& fn) {
  LoopNest<std::array<NestOperand, 2>> nest(dst.shape, {operand_of(dst), operand_of(src)});
  if (nest.empty()) return;
  int64_t bytes = size_bytes(dst.dtype);
  if (nest.loops() > 0 && nest.stride(0, 0) == bytes && nest.stride(1, 0) == bytes) {
    bytes *= nest.extent(0);
    nest.drop_innermost();
  }
  std::array<int64_t, kMaxDims> index{};
  int64_t to = nest.offset(0), from = nest.offset(1);
  while (fn(dst.data + to, src.data + from, bytes)) {
    size_t loop = 0;
    for (; loop < nest.loops(); ++loop) {
      to += nest.stride(0, loop);
      from += nest.stride(1, loop);
      if (++index[loop] < nest.extent(loop)) break;
      to -= nest.stride(0, loop) * nest.extent(loop);
      from -= nest.stride(1, loop) * nest.extent(loop);
      index[loop] = 0;
    }
    if (loop == nest.loops()) return;
  }
}

}  // namespace tessera
