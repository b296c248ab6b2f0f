// How a process says on which host it is.
#pragma once

#include <string>
#include <string_view>

#include "comm/hosts.hpp"

namespace tessera::mpi {

// The host of this rank, for Hosts. TESSERA_HOSTS=n takes the ranks for those of n hosts, in order: what is really apart
// stays so. Throws Error.
std::string host_key(int rank, int size);
// The same for ranks of one machine, whatever they are taken for.
std::string_view machine_of(const std::string& key);

}  // namespace tessera::mpi
