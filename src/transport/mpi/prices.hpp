// What the way between hosts costs: as a file says, as measured, or as networks of today have it.
#pragma once

#include <string>

#include "comm/network.hpp"
#include "transport/mpi/world.hpp"

namespace tessera::mpi {

// What this process's TESSERA_NETWORK asks for, in words that rank 0 tells all others: every rank must have the same. Empty
// where it says nothing.
std::string wanted_prices();
bool is_to_be_measured(const std::string& wanted);
// Throws Error for what cannot be had.
Prices prices_from(const std::string& wanted);
// Where nothing is wanted: those of networks of today, or of messages through shared memory. `near`: all are on one machine,
// each with a core for itself; `eager_bytes`: what MPI takes at once, or 0.
Prices typical_prices(bool near, int64_t eager_bytes);

// Rank `rank` sends to those behind it in the circle, all at the same time. Some 25 MB out of each at most: 20 ms of a network
// of 10 Gbit/s. Throws PeerTrouble.
Prices measure(World& world, CommHandle comm, const std::vector<int>& circle, int rank, int64_t eager_bytes,
               Deadline deadline);
std::string to_words(const Prices& prices);
// For people: "20 us a round, 1 us a message, 10 GB/s".
std::string describe(const Prices& prices);
// Of each price the median.
Prices middle_of(const std::vector<Prices>& measured);

}  // namespace tessera::mpi
