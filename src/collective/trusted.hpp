// An all_gather without agreement, where the caller vouches for what all ranks say.
#pragma once

#include <tessera/detail/description.hpp>

#include "collective/replay.hpp"
#include "comm/transport.hpp"

namespace tessera {
struct AllGather;
}

namespace tessera::detail {

// Worked out once, for this call and later ones like it.
class TrustedGather {
 public:
  // Whether it is of this call, too.
  bool fits(const Tensor& x, const Tensor& out, int64_t dim, const Sizes& sizes) const;
  // Throws, on this rank alone, where its own arguments do not fit.
  void work_out(CommState& comm, const Asked& asked);
  // `out`: as it was given; `result`: the same, or new. Throws PeerTrouble, Error.
  void run(CommState& comm, const Tensor& x, const Tensor& out, const Tensor& result, int64_t call) const;
  const Dims& shape() const { return shape_; }  // of the result
  // What a run adds to the statistics.
  const Stats& counted() const { return counted_; }

 private:
  void count(int ranks, int64_t own_bytes);

  int64_t dim_ = 0;
  TensorForm x_, out_;
  bool x_is_contiguous_ = false;
  Dims shape_;
  TrustedRows rows_;
  Stats counted_;
};

// Those of a communicator, for loops with a few of them.
class TrustedGathers {
 public:
  // Null: none fits.
  const TrustedGather* find(const Tensor& x, const Tensor& out, int64_t dim, const Sizes& sizes);
  // In place of the oldest, where they are many.
  const TrustedGather& add(TrustedGather gather);

 private:
  static constexpr size_t kMost = 8;
  std::vector<TrustedGather> all_;
  size_t last_ = 0;    // found
  size_t oldest_ = 0;  // once they are many
};

// Runs what is asked for and trusted, from within CommState::call() or the worker, where the transport has a way without
// agreement; false: nothing was done. That is the same on all ranks where the caller is right.
bool gather_trusted(CommState& comm, const Asked& asked, Outcome& outcome, const Site& site);
// The same for a trusted call like an earlier one, with an output that it was given: in as few instructions as can be, as
// MPI's own call takes a fifth of a microsecond. False: nothing was done, and the call above may do it.
bool gather_again(CommState& comm, const Tensor& x, const AllGather& op, const Site& site);

}  // namespace tessera::detail
