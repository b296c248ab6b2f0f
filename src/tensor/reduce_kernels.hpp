// The loops of a reduction over contiguous blocks, compiled for every
// instruction set and chosen when they run.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/reduction.hpp>

namespace tessera {

// Counts are in elements; no pointer need be aligned. out may be one of the
// inputs, else it must not overlap them.
struct ReduceKernels {
  // out = 2, 3 or 4 accumulators combined: a b, (a b) c, (a b) (c d). near: some cache holds what is read, so it seems.
  using Fold = void (*)(std::byte* out, const std::byte* const* in, int64_t count, bool near);
  using Convert = void (*)(std::byte* out, const std::byte* in, int64_t count);
  using Scale = void (*)(std::byte* out, const std::byte* in, int64_t count, double factor);

  int64_t accumulator_bytes = 0;
  Fold fold[3] = {};
  Fold fold_elements[3] = {};  // the same of elements that are promoted on the
                               // way; null where there is no such kernel
  Fold stream_fold[3] = {};    // around the cache: out is at the beginning of a line; of sums, else null
  Convert promote = nullptr;   // elements to accumulators; null where an element is one already
  Convert demote = nullptr;    // and back, rounded to nearest even
  Scale multiply = nullptr, divide = nullptr;
};

// Throws DTypeError where there is no such kernel; check_reducible() rules that
// out.
ReduceKernels reduce_kernels(DType dtype, ReduceOp op);

}  // namespace tessera
