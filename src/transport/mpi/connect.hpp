// Makes a Comm of a communicator of MPI's, or of what stands in for one.
#pragma once

#include <string>

#include <tessera/carrier.hpp>
#include <tessera/comm.hpp>

namespace tessera::mpi {

// All ranks that this process was started with, under that MPI ("openmpi" or "mpich").
Comm connect(const std::string& mpi, const RunOptions& options);

// All ranks of a group that has a carrier. Collective. Throws Error, PeerLostError, TimeoutError, and what the carrier does.
Comm connect(std::shared_ptr<Carrier> carrier, int rank, int size, const RunOptions& options);

}  // namespace tessera::mpi
