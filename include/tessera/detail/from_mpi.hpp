// What <tessera/mpi.hpp> calls: without MPI's types, so that the library is the same for every MPI.
#pragma once

#include <cstdint>
#include <string>

#include <tessera/comm.hpp>

namespace tessera::detail {

// With the timeout of TESSERA_TIMEOUT, where that is set. Throws Error where it makes no sense.
RunOptions options_from_env();
// `library`: what MPI_Get_library_version() says. `handle`: of the communicator, as Fortran has it.
Comm from_mpi(const std::string& library, int32_t handle, const RunOptions& options);

}  // namespace tessera::detail
