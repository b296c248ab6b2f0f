// Between tessera and one MPI: built once with each MPI's compiler, and the only source that includes its header.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "api.hpp"

namespace {

using namespace tessera::mpi;

// A handle of MPI's is a pointer or an int; either fits into a word.
template <class Handle>
uint64_t to_word(Handle handle) {
  static_assert(sizeof(Handle) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &handle, sizeof(handle));
  return word;
}
template <class Handle>
Handle from_word(uint64_t word) {
  Handle handle;
  std::memcpy(&handle, &word, sizeof(handle));
  return handle;
}
MPI_Comm comm_of(CommHandle comm) { return from_word<MPI_Comm>(comm); }
int count_of(int64_t bytes) { return static_cast<int>(bytes); }
// What is of so few requests, or ranks, lies on the stack: whoever waits asks very often.
constexpr int32_t kFew = 32;
int source_of(int32_t source) { return source < 0 ? MPI_ANY_SOURCE : source; }
int tag_of(int32_t tag) { return tag < 0 ? MPI_ANY_TAG : tag; }

ThreadLevel level_of(int level) {
  return level >= MPI_THREAD_MULTIPLE     ? multiple
         : level >= MPI_THREAD_SERIALIZED ? serialized
         : level >= MPI_THREAD_FUNNELED   ? funneled
                                          : single;
}

const char* library() {
  static const std::string text = [] {
    char whole[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    MPI_Get_library_version(whole, &length);
    std::string first(whole, std::strcspn(whole, "\n,"));
    std::replace(first.begin(), first.end(), '\t', ' ');
    return first;
  }();
  return text.c_str();
}

int is_initialized(int32_t* flag) { return MPI_Initialized(flag); }

// Every call asks whether MPI is over, and MPI_Finalized() takes a lock or two. So MPI tells: it lets go of what is attached
// to MPI_COMM_SELF before all else that its end does.
std::atomic<bool> is_watched{false}, is_over{false};

int note_end(MPI_Comm, int, void*, void*) {
  is_over.store(true, std::memory_order_relaxed);
  return MPI_SUCCESS;
}

int watch_end() {
  if (is_watched) return MPI_SUCCESS;
  int key = MPI_KEYVAL_INVALID;
  int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, note_end, &key, nullptr);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  if (code != MPI_SUCCESS) return code;
  is_watched = true;
  return MPI_Comm_free_keyval(&key);  // it goes with what is attached
}

int is_finalized(int32_t* flag) {
  // In what the program has attached to MPI_COMM_SELF, and is let go of after ours, MPI still works.
  const bool goes_on = is_watched.load(std::memory_order_relaxed) && !is_over.load(std::memory_order_relaxed);
  if (!goes_on) return MPI_Finalized(flag);
  *flag = 0;
  return MPI_SUCCESS;
}

int init(int32_t* thread_level) {
  int provided = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  *thread_level = level_of(provided);
  if (code != MPI_SUCCESS) return code;
  // What is wrong with one of several requests is told to these, and not to the communicator that it is of.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return watch_end();
}

int thread_level(int32_t* thread_level, int32_t* is_main) {
  int provided = 0;
  int code = MPI_Query_thread(&provided);
  *thread_level = level_of(provided);
  if (code == MPI_SUCCESS) code = MPI_Is_thread_main(is_main);
  return code == MPI_SUCCESS ? watch_end() : code;
}

void error_text(int code, char* text, int32_t capacity) {
  char whole[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::strncpy(text, whole, static_cast<size_t>(capacity) - 1);
  text[capacity - 1] = 0;
}

CommHandle world() { return to_word(MPI_COMM_WORLD); }
CommHandle from_fortran(int32_t handle) { return to_word(MPI_Comm_f2c(static_cast<MPI_Fint>(handle))); }

int hand_out(int code, MPI_Comm comm, CommHandle* made) {
  *made = 0;
  if (code != MPI_SUCCESS || comm == MPI_COMM_NULL) return code;
  *made = to_word(comm);
  return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

int duplicate(CommHandle comm, CommHandle* made) {
  MPI_Comm result = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(comm_of(comm), &result);
  return hand_out(code, result, made);
}

int start_duplicate(CommHandle comm, void* place, RequestHandle* request) {
  static_assert(sizeof(MPI_Comm) <= 8);
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = MPI_Comm_idup(comm_of(comm), static_cast<MPI_Comm*>(place), &handle);
  *request = to_word(handle);
  return code;
}

int end_duplicate(const void* place, CommHandle* made) {
  return hand_out(MPI_SUCCESS, *static_cast<const MPI_Comm*>(place), made);
}

int split(CommHandle comm, const int32_t* members, int32_t count, int32_t place, CommHandle* made) {
  MPI_Comm result = MPI_COMM_NULL;
  const int code = MPI_Comm_split(comm_of(comm), count == 0 ? MPI_UNDEFINED : members[0], place, &result);
  return hand_out(code, result, made);
}

int free_comm(CommHandle* comm) {
  MPI_Comm handle = comm_of(*comm);
  *comm = 0;
  return MPI_Comm_free(&handle);
}

int barrier(CommHandle comm) { return MPI_Barrier(comm_of(comm)); }

int abort_all(int exit_code) { return MPI_Abort(MPI_COMM_WORLD, exit_code); }

int rank_and_size(CommHandle comm, int32_t* rank, int32_t* size) {
  const int code = MPI_Comm_rank(comm_of(comm), rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(comm_of(comm), size);
}

// Units of many bytes are a type of their own. call(type) gathers.
template <class Call>
int with_type(int64_t unit_bytes, Call&& call) {
  if (unit_bytes == 1) return call(MPI_BYTE);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int code = MPI_Type_contiguous(static_cast<int>(unit_bytes), MPI_BYTE, &type);
  if (code == MPI_SUCCESS) code = MPI_Type_commit(&type);
  if (code == MPI_SUCCESS) code = call(type);
  if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
  return code;
}

int all_gather_v(const void* data, void* out, const int32_t* counts, const int32_t* places, int64_t unit_bytes,
                 int32_t rank, CommHandle comm) {
  return with_type(unit_bytes, [&](MPI_Datatype type) {
    return MPI_Allgatherv(data, counts[rank], type, out, counts, places, type, comm_of(comm));
  });
}

int start_all_gather_v(const void* data, void* out, const int32_t* counts, const int32_t* places, int64_t unit_bytes,
                       int32_t rank, CommHandle comm, RequestHandle* request) {
  MPI_Request handle = MPI_REQUEST_NULL;
  const int code = with_type(unit_bytes, [&](MPI_Datatype type) {
    return MPI_Iallgatherv(data, counts[rank], type, out, counts, places, type, comm_of(comm), &handle);
  });
  *request = to_word(handle);
  return code;
}

int isend(const void* data, int64_t bytes, int32_t to, int32_t tag, CommHandle comm, RequestHandle* made) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, count_of(bytes), MPI_BYTE, to, tag, comm_of(comm), &request);
  *made = to_word(request);
  return code;
}

int irecv(void* data, int64_t bytes, int32_t from, int32_t tag, CommHandle comm, RequestHandle* made) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, count_of(bytes), MPI_BYTE, source_of(from), tag_of(tag), comm_of(comm), &request);
  *made = to_word(request);
  return code;
}

// Measured, over TCP: Open MPI's types are as fast as packing, or faster, from here on. MPICH's take 1.2 to 1.9 times as long.
#ifdef OPEN_MPI
constexpr bool kTypesAreFast = true;
constexpr int64_t kMostInlinedBytes = 6144;  // 8 KiB take 4.7 us in a message of their own, 5.2 with what is said
// Through shared memory it sends 4 KiB at once, of which a record takes a part.
constexpr int64_t kMostRidingBytes = 3072;
// MPI_Testsome() looks whether anything is over, and only then goes on with it: what it has ended is seen the next time.
constexpr bool kLooksFirst = true;
#else
constexpr bool kTypesAreFast = false;
constexpr int64_t kMostInlinedBytes = 6144;  // MPICH sends 8 KiB at once, of which the rest of a record takes a part
constexpr int64_t kMostRidingBytes = kMostInlinedBytes;
constexpr bool kLooksFirst = false;
#endif
constexpr int64_t kFewestRowBytes = 64;

// The type may go as soon as the message is on its way.
int isend_rows(const void* data, int64_t rows, int64_t row_bytes, int64_t stride_bytes, int32_t to, int32_t tag,
               CommHandle comm, RequestHandle* made) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int code = MPI_Type_create_hvector(count_of(rows), count_of(row_bytes), static_cast<MPI_Aint>(stride_bytes), MPI_BYTE,
                                     &type);
  if (code == MPI_SUCCESS) code = MPI_Type_commit(&type);
  if (code == MPI_SUCCESS) code = MPI_Isend(data, 1, type, to, tag, comm_of(comm), &request);
  if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
  *made = to_word(request);
  return code;
}

[[gnu::always_inline]] inline int test_with(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which,
                                            int64_t* bytes, MPI_Request* list, MPI_Status* statuses) {
  for (int32_t i = 0; i < count; ++i) {
    list[i] = requests[i] == 0 ? MPI_REQUEST_NULL : from_word<MPI_Request>(requests[i]);
  }
  *done = 0;
  int code = MPI_Testsome(count, list, done, which, statuses);
  if (kLooksFirst && *done == 0 && code == MPI_SUCCESS) code = MPI_Testsome(count, list, done, which, statuses);
  if (*done == MPI_UNDEFINED) *done = 0;
  if (code == MPI_ERR_IN_STATUS) {
    for (int32_t i = 0; i < *done; ++i) {
      if (statuses[i].MPI_ERROR != MPI_SUCCESS) code = statuses[i].MPI_ERROR;
    }
  }
  for (int32_t i = 0; i < *done; ++i) {
    requests[which[i]] = 0;
    if (bytes == nullptr) continue;
    int count_bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &count_bytes);
    bytes[i] = count_bytes;
  }
  return code;
}

int test_some_sized(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which, int64_t* bytes) {
  if (count <= kFew) {
    MPI_Request list[kFew];
    MPI_Status statuses[kFew];
    return test_with(count, requests, done, which, bytes, list, statuses);
  }
  std::vector<MPI_Request> list(static_cast<size_t>(count));
  std::vector<MPI_Status> statuses(static_cast<size_t>(count));
  return test_with(count, requests, done, which, bytes, list.data(), statuses.data());
}

int test_some(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which) {
  return test_some_sized(count, requests, done, which, nullptr);
}

int cancel(RequestHandle request) {
  MPI_Request handle = from_word<MPI_Request>(request);
  return MPI_Cancel(&handle);
}

int find(int32_t source, int32_t tag, CommHandle comm, int32_t* flag, Found* found) {
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int code = MPI_Improbe(source_of(source), tag_of(tag), comm_of(comm), flag, &message, &status);
  if (code != MPI_SUCCESS || *flag == 0) return code;
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  *found = {to_word(message), status.MPI_SOURCE, status.MPI_TAG, bytes};
  return MPI_SUCCESS;
}

int irecv_found(void* data, int64_t bytes, Found* found, RequestHandle* made) {
  MPI_Message message = from_word<MPI_Message>(found->message);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Imrecv(data, count_of(bytes), MPI_BYTE, &message, &request);
  *made = to_word(request);
  return code;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tessera::mpi::Api* tessera_mpi_api() {
  static const Api api = {.library = library,
                          .is_initialized = is_initialized,
                          .is_finalized = is_finalized,
                          .init = init,
                          .thread_level = thread_level,
                          .finalize = MPI_Finalize,
                          .error_text = error_text,
                          .world = world,
                          .from_fortran = from_fortran,
                          .duplicate = duplicate,
                          .split = split,
                          .free = free_comm,
                          .barrier = barrier,
                          .rank_and_size = rank_and_size,
                          .all_gather_v = all_gather_v,
                          .isend = isend,
                          .irecv = irecv,
                          .most_inlined_bytes = kMostInlinedBytes,
                          .most_riding_bytes = kMostRidingBytes,
                          .test_some = test_some,
                          .cancel = cancel,
                          .find = find,
                          .irecv_found = irecv_found,
                          .test_some_sized = test_some_sized,
                          .start_duplicate = start_duplicate,
                          .end_duplicate = end_duplicate,
                          .start_all_gather_v = start_all_gather_v,
                          .isend_rows = kTypesAreFast ? isend_rows : nullptr,
                          .fewest_row_bytes = kFewestRowBytes,
                          .abort = abort_all};
  return &api;
}
