// The table of functions. Handles are pointers: of communicators, of requests, of messages that were found.
#include <algorithm>
#include <cstring>

#include "transport/post/post.hpp"

namespace tessera::post {
namespace {

using mpi::CommHandle;
using mpi::Found;
using mpi::RequestHandle;

Communicator& comm_of(CommHandle handle) { return *reinterpret_cast<Communicator*>(handle); }
Request* request_of(RequestHandle handle) { return reinterpret_cast<Request*>(handle); }
template <class T>
uint64_t handle_of(T* object) {
  return reinterpret_cast<uint64_t>(object);
}

const char* library() { return "messages over an engine that carries them"; }

int always(int32_t* flag) {
  *flag = 1;
  return 0;
}
int never(int32_t* flag) {
  *flag = 0;
  return 0;
}

int thread_level(int32_t* level, int32_t* is_main) {
  *level = mpi::multiple;
  return always(is_main);
}

void error_text(int, char* text, int32_t capacity) {  // of kTooLong: there is no other
  std::strncpy(text, "a message is longer than its receive", static_cast<size_t>(capacity) - 1);
  text[capacity - 1] = 0;
}

int duplicate(CommHandle comm, CommHandle* made) {
  *made = handle_of(&comm_of(comm).post->duplicate(comm_of(comm)));
  return 0;
}

int split(CommHandle comm, const int32_t* members, int32_t count, int32_t, CommHandle* made) {
  *made = handle_of(comm_of(comm).post->split(comm_of(comm), {members, static_cast<size_t>(count)}));
  return 0;
}

int free_comm(CommHandle* comm) {
  comm_of(*comm).post->free(comm_of(*comm));
  *comm = 0;
  return 0;
}

int rank_and_size(CommHandle comm, int32_t* rank, int32_t* size) {
  *rank = comm_of(comm).rank;
  *size = static_cast<int32_t>(comm_of(comm).members.size());
  return 0;
}

int isend(const void* data, int64_t bytes, int32_t to, int32_t tag, CommHandle comm, RequestHandle* made) {
  *made = handle_of(comm_of(comm).post->send(comm_of(comm), data, bytes, to, tag));
  return 0;
}

int irecv(void* data, int64_t bytes, int32_t from, int32_t tag, CommHandle comm, RequestHandle* made) {
  *made = handle_of(comm_of(comm).post->receive(comm_of(comm), data, bytes, from, tag));
  return 0;
}

int test_some(int32_t count, RequestHandle* requests, int32_t* done, int32_t* which) {
  int code = 0;
  *done = 0;
  for (int32_t i = 0; i < count; ++i) {
    Request* const request = request_of(requests[i]);
    if (request == nullptr || !request->done) continue;
    code = std::max(code, request->code);
    delete request;
    requests[i] = 0;
    which[(*done)++] = i;
  }
  return code;
}

int cancel(RequestHandle request) {
  Request& given_up = *request_of(request);
  if (given_up.comm != nullptr) given_up.comm->post->cancel(given_up);
  return 0;
}

int find(int32_t source, int32_t tag, CommHandle comm, int32_t* flag, Found* found) {
  *flag = comm_of(comm).post->find(comm_of(comm), source, tag, *found) ? 1 : 0;
  return 0;
}

int irecv_found(void* data, int64_t bytes, Found* found, RequestHandle* made) {
  const std::unique_ptr<Arrived> message(reinterpret_cast<Arrived*>(found->message));
  auto request = std::make_unique<Request>();
  request->data = data;
  request->bytes = bytes;
  fill(*request, message->data.get(), message->bytes);
  *made = handle_of(request.release());
  return 0;
}

int next_lost(CommHandle comm, int32_t* rank) {
  *rank = comm_of(comm).post->next_lost(comm_of(comm));
  return 0;
}

void rest(CommHandle comm, uint64_t* seen) { comm_of(comm).post->rest(*seen); }

}  // namespace

// No world(), from_fortran(), init(), finalize() and barrier(): who makes a Post has its communicator, and nobody starts it.
const mpi::Api& api() {
  static const mpi::Api table = {.library = library,
                                 .is_initialized = always,
                                 .is_finalized = never,
                                 .thread_level = thread_level,
                                 .error_text = error_text,
                                 .duplicate = duplicate,
                                 .split = split,
                                 .split_waits = false,
                                 .free = free_comm,
                                 .rank_and_size = rank_and_size,
                                 .isend = isend,
                                 .irecv = irecv,
                                 .test_some = test_some,
                                 .cancel = cancel,
                                 .find = find,
                                 .irecv_found = irecv_found,
                                 .next_lost = next_lost,
                                 .rest = rest};
  return table;
}

}  // namespace tessera::post
