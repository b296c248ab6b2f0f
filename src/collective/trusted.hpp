// An all_gather without agreement, where the caller vouches for what all ranks say.
#pragma once

#include <tessera/detail/description.hpp>

#include "collective/replay.hpp"
#include "comm/transport.hpp"

namespace tessera::detail {

// Worked out once, for this call and later ones like it.
class TrustedGather {
 public:
  // Whether it is of this call, too.
  bool fits(const Asked& asked) const;
  // False: the transport has no way for it. That is the same on all ranks where the caller is right. Throws, on this rank
  // alone, where its own arguments do not fit.
  bool work_out(CommState& comm, const Asked& asked);
  // Throws PeerTrouble.
  void run(CommState& comm, const Asked& asked, Outcome& outcome, int64_t call, Deadline deadline);
  // What a run adds to the statistics.
  const Stats& counted() const { return counted_; }

 private:
  void count(int ranks, int64_t own_bytes);

  bool noted_ = false;
  int64_t dim_ = 0;
  TensorForm x_, out_;
  bool x_is_contiguous_ = false;
  Dims shape_;  // of the result
  TrustedRows rows_;
  Stats counted_;
};

}  // namespace tessera::detail
