// What tessera asks of an MPI, as a table of functions without any type of its own. A small library for each MPI fills it
// (shim.cpp) and is loaded when it is needed: so one build of tessera works with every MPI, and none is needed to build it.
// Where there is no MPI, transport/post fills it over another engine.
#pragma once

#include <cstdint>

namespace tessera::mpi {

inline constexpr int32_t kApiVersion = 10;
inline constexpr const char* kApiSymbol = "tessera_mpi_api";
inline constexpr int kAnySource = -1;

// MPI's own handles: a pointer or a number, whichever the library has.
using CommHandle = uint64_t;
using RequestHandle = uint64_t;

enum ThreadLevel : int32_t { single, funneled, serialized, multiple };

// A message that was found and is nobody else's any more.
struct Found {
  uint64_t message = 0;
  int32_t source = 0;
  int32_t tag = 0;
  int64_t bytes = 0;
};

// All return 0, or an error code of MPI's that error_text() explains. Counts are bytes, below 2^31.
struct Api {
  int32_t version = kApiVersion;
  const char* (*library)() = nullptr;  // its name and version, a line
  int (*is_initialized)(int32_t* flag) = nullptr;
  int (*is_finalized)(int32_t* flag) = nullptr;
  int (*init)(int32_t* thread_level) = nullptr;                            // asks for the highest
  int (*thread_level)(int32_t* thread_level, int32_t* is_main) = nullptr;  // of an MPI that others have initialised
  int (*finalize)() = nullptr;
  void (*error_text)(int code, char* text, int32_t capacity) = nullptr;

  CommHandle (*world)() = nullptr;
  CommHandle (*from_fortran)(int32_t handle) = nullptr;
  // Errors on the new communicator come back as codes.
  int (*duplicate)(CommHandle comm, CommHandle* made) = nullptr;
  // All ranks of comm call it together. members: those of the part that this rank is in, in their new order, and its own
  // place among them; none: *made is 0.
  int (*split)(CommHandle comm, const int32_t* members, int32_t count, int32_t place, CommHandle* made) = nullptr;
  bool split_waits = true;  // for the other ranks
  int (*free)(CommHandle* comm) = nullptr;
  int (*barrier)(CommHandle comm) = nullptr;
  int (*rank_and_size)(CommHandle comm, int32_t* rank, int32_t* size) = nullptr;

  // Blocks; null: there is none. Counts and places by rank, in units of so many bytes, of which there are fewer than 2^31.
  int (*all_gather_v)(const void* data, void* out, const int32_t* counts, const int32_t* places, int64_t unit_bytes,
                      int32_t rank, CommHandle comm) = nullptr;

  int (*isend)(const void* data, int64_t bytes, int32_t to, int32_t tag, CommHandle comm,
               RequestHandle* made) = nullptr;
  int (*irecv)(void* data, int64_t bytes, int32_t from, int32_t tag, CommHandle comm, RequestHandle* made) = nullptr;
  // So many bytes of elements travel with what is said sooner than in a message of their own: measured.
  int64_t most_inlined_bytes = 8192;
  // So many travel with it for nothing, where others have a message of their own anyway.
  int64_t most_riding_bytes = 8192;
  // Of `count` requests (0: none) those that are over: *done of them, their numbers in `which`; their handles become 0.
  int (*test_some)(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which) = nullptr;
  // Asks to give up a receive: the request is over soon, if no message was on its way to it.
  int (*cancel)(RequestHandle request) = nullptr;
  // Looks for a message without waiting; tag < 0: any.
  int (*find)(int32_t source, int32_t tag, CommHandle comm, int32_t* flag, Found* found) = nullptr;
  int (*irecv_found)(void* data, int64_t bytes, Found* found, RequestHandle* made) = nullptr;

  // What follows may be null: not offered.
  // As test_some; bytes[i] came with request number which[i], if it is a receive.
  int (*test_some_sized)(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which,
                         int64_t* bytes) = nullptr;
  // Begins to duplicate; `place` (8 bytes) is MPI's until the request is over, and then end_duplicate() has what was made.
  int (*start_duplicate)(CommHandle comm, void* place, RequestHandle* request) = nullptr;
  int (*end_duplicate)(const void* place, CommHandle* made) = nullptr;
  // As all_gather_v, without waiting: counts and places are MPI's until the request is over.
  int (*start_all_gather_v)(const void* data, void* out, const int32_t* counts, const int32_t* places,
                            int64_t unit_bytes, int32_t rank, CommHandle comm, RequestHandle* request) = nullptr;
  // Rows that do not lie behind one another, as a type of MPI's, and from how many bytes a row on that is faster than to
  // pack them: measured (bench/players/datatypes.cpp).
  int (*isend_rows)(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes, int32_t to, int32_t tag,
                    CommHandle comm, RequestHandle* made) = nullptr;
  int64_t fewest_row_bytes = 0;
  // Ends all ranks of the job.
  int (*abort)(int exit_code) = nullptr;
  // A rank that is lost and was not told of before; -1: none. Null: the launcher ends the job then.
  int (*next_lost)(CommHandle comm, int32_t* rank) = nullptr;
  // Returns when something has come or gone since the last time with this `seen` (0: at once), or after a moment. Null: only
  // asking shows it.
  void (*rest)(CommHandle comm, uint64_t* seen) = nullptr;
};

}  // namespace tessera::mpi
