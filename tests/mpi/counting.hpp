// The functions of MPI's that tessera may call while it moves data, each replaced by one that counts, or fails, or stands still
// where a test wants that, and calls the real one. For one program, which includes it once.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include <mpi.h>

namespace counting {

struct Calls {
  int all = 0, gathers = 0, sends = 0;
  int looks = 0;  // whether anything has come; they are none of `all`
  int types = 0;  // made of rows
};
inline Calls calls;

// Where only one thread may call: which, and how often another one did.
inline std::atomic<std::thread::id> only_thread{};
inline std::atomic<int> calls_elsewhere{0};
inline void note_thread() {
  const std::thread::id only = only_thread;
  if (only != std::thread::id() && only != std::this_thread::get_id()) ++calls_elsewhere;
}
inline void count() {
  ++calls.all;
  note_thread();
}

// Whether a trusted gather is polled: it is where ranks share a core.
enum class Polls { maybe, never, always };
inline Polls polls = Polls::maybe;

inline bool stops_in_split = false;
inline std::atomic<int> in_split{0};
inline int duplicates = 0;
inline int sends_to_failure = -1;  // the send that fails; none yet: negative
inline bool gather_fails = false;
inline bool abort_is_told = false;

inline void require(bool right, const char* what) {
  if (right) return;
  std::printf("%s is wrong: %d calls, %d gathers, %d sends, %d looks\n", what, calls.all, calls.gathers, calls.sends,
              calls.looks);
  std::fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, 4);
}

inline void require_one_gather(const char* what) {
  require(calls.all == 1 && calls.gathers == 1, what);
  if (polls == Polls::maybe) return;
  require((calls.looks > 0) == (polls == Polls::always), "that it is polled where ranks share a core, and only there");
}

}  // namespace counting

using namespace counting;

extern "C" {
int MPI_Allgatherv(const void* data, int count, MPI_Datatype type, void* out, const int counts[], const int places[],
                   MPI_Datatype out_type, MPI_Comm comm) {
  counting::count();
  ++calls.gathers;
  if (gather_fails) return MPI_ERR_OTHER;
  return PMPI_Allgatherv(data, count, type, out, counts, places, out_type, comm);
}
int MPI_Iallgatherv(const void* data, int count, MPI_Datatype type, void* out, const int counts[], const int places[],
                    MPI_Datatype out_type, MPI_Comm comm, MPI_Request* request) {
  counting::count();
  ++calls.gathers;
  if (gather_fails) return MPI_ERR_OTHER;
  return PMPI_Iallgatherv(data, count, type, out, counts, places, out_type, comm, request);
}
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  counting::count();
  ++calls.sends;
  if (sends_to_failure >= 0 && sends_to_failure-- == 0) return MPI_ERR_OTHER;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  counting::count();
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Testsome(int count, MPI_Request requests[], int* done, int which[], MPI_Status statuses[]) {
  ++calls.looks;
  note_thread();
  return PMPI_Testsome(count, requests, done, which, statuses);
}
int MPI_Improbe(int from, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  ++calls.looks;
  note_thread();
  return PMPI_Improbe(from, tag, comm, flag, message, status);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  note_thread();
  ++in_split;
  if (stops_in_split) raise(SIGSTOP);
  const int code = PMPI_Comm_split(comm, color, key, made);
  --in_split;
  return code;
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* made, MPI_Request* request) {
  note_thread();
  ++duplicates;
  if (stops_in_split) raise(SIGSTOP);
  return PMPI_Comm_idup(comm, made, request);
}
int MPI_Imrecv(void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  counting::count();
  return PMPI_Imrecv(data, count, type, message, request);
}
int MPI_Cancel(MPI_Request* request) {
  counting::count();
  return PMPI_Cancel(request);
}
int MPI_Abort(MPI_Comm comm, int code) {
  if (abort_is_told) {
    std::printf("MPI_Abort() was called\n");
    std::fflush(stdout);
    sleep(1);  // before the launcher ends all, it has passed that on
  }
  return PMPI_Abort(comm, code);
}
int MPI_Finalized(int* flag) {  // any thread may, at any level
  ++calls.all;
  return PMPI_Finalized(flag);
}
int MPI_Type_contiguous(int count, MPI_Datatype type, MPI_Datatype* made) {
  counting::count();
  return PMPI_Type_contiguous(count, type, made);
}
int MPI_Type_create_hvector(int count, int length, MPI_Aint stride, MPI_Datatype type, MPI_Datatype* made) {
  counting::count();
  ++calls.types;
  return PMPI_Type_create_hvector(count, length, stride, type, made);
}
}
