// The way from a segment to a communicator.
#pragma once

#include <memory>

#include <tessera/comm.hpp>

#include "transport/shm/world.hpp"

namespace tessera::shm {

// The communicator of all ranks of the segment, for `rank` of them. Collective. Throws Error, PeerLostError, TimeoutError.
// The deadline is that of coming together; the first form takes it from the options.
Comm connect(std::shared_ptr<Segment> segment, int rank, Way way, const RunOptions& options);
Comm connect(std::shared_ptr<Segment> segment, int rank, Way way, const RunOptions& options, Deadline deadline);

// From now on an exception that nobody catches in this process is told to the launcher, if there is one.
void keep_last_words(const std::shared_ptr<Segment>& segment, int rank);

// When the time that a call may wait, counted from now, is over.
Deadline deadline_of(const RunOptions& options);

}  // namespace tessera::shm
