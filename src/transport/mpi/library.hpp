// Which MPI this process runs under, and its functions.
#pragma once

#include <optional>
#include <string>

#include "transport/mpi/api.hpp"

namespace tessera::mpi {

// Whether TESSERA_MPI says which.
bool names_mpi();
// "openmpi" or "mpich", by what its launcher has left in the environment (TESSERA_MPI says it outright); none: no MPI's
// launcher started this process.
std::optional<std::string> launched_by();

// The functions of that MPI; loads it once. Throws Error where tessera has none for it, with where it looked.
const Api& load(const std::string& name);

// Throws Error with MPI's text where the code is not 0; `what` names the call.
void check(const Api& api, int code, const char* what);

}  // namespace tessera::mpi
