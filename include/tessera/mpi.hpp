// For programs that use MPI themselves. Include it where <mpi.h> can be included; all else of tessera knows no MPI, which
// is why this is a function of its own and no member of Comm.
#pragma once

#include <mpi.h>

#include <tessera/detail/from_mpi.hpp>

namespace tessera {

// The ranks of `comm` as a communicator of tessera's. Collective among them. It is a duplicate: `comm` itself carries no
// message of tessera's, and may be freed. MPI must be initialised, with MPI_THREAD_FUNNELED or more. Below
// MPI_THREAD_MULTIPLE other threads get an Error, and asynchronous calls go on only within calls of tessera's: done(),
// wait(), later collectives. Whoever initialised MPI finalises it, when the Comm is gone.
// Where no options are given, TESSERA_TIMEOUT is the timeout.
// Throws Error, also where tessera was built without this MPI or where the launcher is another one's, and TimeoutError where a
// rank does not come in time: one that cannot say which, as there is nothing yet but `comm` by which ranks could ask each
// other. Cost: one MPI_Comm_idup.
inline Comm from_mpi(MPI_Comm comm, const RunOptions& options = detail::options_from_env()) {
  int flag = 0;
  MPI_Initialized(&flag);
  if (flag == 0) throw Error("from_mpi(): MPI is not initialised: call MPI_Init_thread() first");
  MPI_Finalized(&flag);
  if (flag != 0) throw Error("from_mpi(): MPI is finalised");
  if (comm == MPI_COMM_NULL) throw Error("from_mpi(): the communicator is MPI_COMM_NULL: this rank is in no group");
  MPI_Comm_test_inter(comm, &flag);
  if (flag != 0) {
    throw Error("from_mpi(): this is an intercommunicator, of two groups: make one of both with MPI_Intercomm_merge()");
  }
  char library[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
  int length = 0;
  MPI_Get_library_version(library, &length);
  return detail::from_mpi(library, static_cast<int32_t>(MPI_Comm_c2f(comm)), options);
}

}  // namespace tessera
