// An all_gather without agreement, where the caller vouches for what all ranks say.
#pragma once

#include <tessera/detail/description.hpp>

#include "comm/futex.hpp"

namespace tessera::detail {

// Whether the transport has a way for it: the same on all ranks where the caller is right.
bool can_trust(CommState& comm, const Description& description);
// Returns what it adds to the statistics. Throws, on this rank alone, where its own arguments do not fit; PeerTrouble.
Stats gather_trusted(CommState& comm, const Description& description, Outcome& outcome, int64_t call,
                     Deadline deadline);

}  // namespace tessera::detail
