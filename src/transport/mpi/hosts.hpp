// How a process says on which host it is.
#pragma once

#include <string>

#include "comm/hosts.hpp"

namespace tessera::mpi {

// The host of this rank, for Hosts. TESSERA_HOSTS=n takes the ranks for those of n hosts, in order: what is really apart
// stays so. Throws Error.
std::string host_key(int rank, int size);

}  // namespace tessera::mpi
