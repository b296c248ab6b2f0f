// How long a message may be that MPI takes from its sender before the receiver has asked for it. A longer one waits for an
// answer first, which takes longer than two or three short ones do. No MPI tells, and each network has another limit: so it
// is tried out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/mpi/world.hpp"

namespace tessera::mpi {

// Of a message that is at most so many times as long as MPI takes at once, each part goes by itself. Measured between two
// ranks, in one and in two parts: with Open MPI 2.8 and 1.0 us at 6 KiB through shared memory, 42 and 26 at 64 KiB over TCP;
// with MPICH 58 and 13 at 8 KiB over TCP. In three parts 8 KiB took 1.8 instead of 3.0 through shared memory, but at times when
// small calls take longer a gather of them took 7.4 instead of 6.5.
inline constexpr int64_t kMostEagerParts = 2;

// The ranks of a circle send to the one behind them, all at the same time, and `tell_all` says a line to all ranks and
// returns everyone's; whoever is not in the circle has only that part in it. All ranks get the same; 0: there is no limit, or
// none that is known. Less than a millisecond where each has a core. Throws Error, PeerTrouble.
int64_t find_eager_bytes(World& world, CommHandle comm, const std::vector<int>& circle, int rank, Deadline deadline,
                         const std::function<std::vector<std::string>(const std::string&)>& tell_all);

}  // namespace tessera::mpi
