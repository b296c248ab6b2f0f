// Makes a Comm of a communicator of MPI's.
#pragma once

#include <string>

#include <tessera/comm.hpp>

namespace tessera::mpi {

// All ranks that this process was started with, under that MPI ("openmpi" or "mpich").
Comm connect(const std::string& mpi, const RunOptions& options);

}  // namespace tessera::mpi
