// Reducing boxes: the typed hot loops.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <tessera/reduction.hpp>

#include "tensor/reduce_kernels.hpp"
#include "tensor/view.hpp"

namespace tessera {

// dst = the terms combined in the fixed order of Reduction (term i is rank
// i's). At least one term; all have dst's dtype and shape (unchecked), any
// strides, any alignment. dst may be exactly one of the terms (same data and
// strides), else it must not overlap them. One term: dst = that term,
// multiplied by the factor of a premul_sum. avg divides by the number of terms,
// or by its factor where that is not 1. `total_bytes` as for copy_box(). `axes`:
// the terms lie row-major over axes of these sizes, and the last one is combined
// first. `read_next`: some other core reads dst at once, so it stays in the cache
// as long as a copy does.
void reduce_boxes(const View& dst, std::span<const ConstView> terms, Reduction reduction, int64_t total_bytes = 0,
                  const Dims& axes = {}, bool read_next = false);

// The same for many sums of memory of the same shapes and strides: what they are made of is worked out once.
class PreparedSum {
 public:
  // Where the views lie does not matter.
  PreparedSum(const View& dst, std::span<const ConstView> terms, Reduction reduction, const Dims& axes = {});
  // `terms`: as many as there were views.
  void run(std::byte* dst, const std::byte* const* terms);

 private:
  ReduceKernels::Fold fold_ = nullptr;  // where one kernel does it all
  int64_t elements_ = 0;
  View dst_;
  std::vector<ConstView> terms_;
  Reduction reduction_;
  Dims axes_;
};

// Where some of the terms may be combined first, and what comes of it then with the rest, as if it were a term, without
// another bit than where all `terms` are combined at once.
struct InParts {
  Reduction first, last;
};
std::optional<InParts> in_parts(Reduction reduction, DType dtype, int terms);

}  // namespace tessera
