// What the way between hosts costs: as a file says, as measured, or as networks of today have it.
#pragma once

#include <string>

#include "comm/network.hpp"
#include "transport/mpi/world.hpp"

namespace tessera::mpi {

// What this process's TESSERA_NETWORK asks for, in words that rank 0 tells all others: every rank must have the same.
std::string wanted_prices();
bool is_to_be_measured(const std::string& wanted);
// Throws Error for what cannot be had.
Prices prices_from(const std::string& wanted);

// Rank `rank` sends to the one behind it in the circle, all at the same time. A few milliseconds. Throws PeerTrouble.
Prices measure(World& world, CommHandle comm, const std::vector<int>& circle, int rank, Deadline deadline);
std::string to_words(const Prices& prices);
// For people: "20 us a round, 1 us a message, 10 GB/s".
std::string describe(const Prices& prices);
// Of each price the median.
Prices middle_of(const std::vector<Prices>& measured);

}  // namespace tessera::mpi
