// The way from a segment to a communicator.
#pragma once

#include <memory>

#include <tessera/comm.hpp>

#include "transport/shm/world.hpp"

namespace tessera::shm {

// The communicator of all ranks of the segment, for `rank` of them. Collective. Throws Error, PeerLostError, TimeoutError.
Comm connect(std::shared_ptr<Segment> segment, int rank, Way way, const RunOptions& options);

}  // namespace tessera::shm
