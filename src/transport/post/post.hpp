// Messages with tags between the ranks of communicators, over a Carrier: what tessera asks of an MPI (transport/mpi/api.hpp),
// where there is none.
//
// A message is a head of fixed form, with its bytes in it where they are few; else they follow on a channel of their own. A
// rank always takes what comes, by threads for each peer, and puts it where a receive waits for it, or aside. So what is
// sent is soon over, whatever the receiver does, and a receive that nothing has come for can be given up at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <tessera/carrier.hpp>

#include "transport/mpi/api.hpp"

namespace tessera::post {

// The functions; each handle that they take knows its Post.
const mpi::Api& api();

class Line;
class Post;
struct Communicator;

enum Code : int { kTooLong = 1 };

// Ranks are numbered as in the Post throughout, but where they come from a caller or go to one.
struct Request {
  void* data = nullptr;
  int64_t bytes = 0;
  Communicator* comm = nullptr;  // of a receive
  int32_t from = 0, tag = 0;
  bool filling = false;   // its message is coming in
  bool given_up = false;  // by cancel()
  int code = 0;
  std::atomic<bool> done{false};
};

// It is over then.
void fill(Request& request, const void* data, int64_t bytes);

// A message that no receive waited for.
struct Arrived {
  int32_t from = 0, tag = 0;
  std::unique_ptr<std::byte[]> data;
  int64_t bytes = 0;
  bool whole = false;
  Request* taker = nullptr;  // who takes it when it is whole
};

struct Communicator {
  Post* post = nullptr;
  uint64_t id = 0;
  int32_t rank = 0;
  std::vector<int> members;  // none yet: a message has come to it before this rank has made it
  uint64_t children = 0;
  std::list<Request*> posted;
  std::list<Arrived> arrived;
  std::vector<bool> told_lost;

  int place_of(int member) const;
};

struct Head {
  uint64_t comm = 0;
  int64_t bytes = 0;
  int64_t tag = 0;
};

class Post {
 public:
  // Throws what the carrier does.
  Post(std::shared_ptr<Carrier> carrier, int rank, int size);
  // Waits until what was sent has gone, for a second at most, and stops.
  ~Post();
  Post(const Post&) = delete;

  Communicator& all() { return *all_; }

  // As the functions of the same names in mpi::Api, or nearly.
  Request* send(Communicator& comm, const void* data, int64_t bytes, int to, int32_t tag);
  Request* receive(Communicator& comm, void* data, int64_t bytes, int from, int32_t tag);
  void cancel(Request& receive);
  bool find(Communicator& comm, int from, int32_t tag, mpi::Found& found);
  Communicator& duplicate(Communicator& comm);
  Communicator* split(Communicator& comm, std::span<const int32_t> places);
  void free(Communicator& comm);
  // Until something has come or gone since `seen`, or a moment has passed.
  void rest(uint64_t& seen);
  // A member of which nobody was told yet that it is lost; -1: none.
  int next_lost(Communicator& comm);

 private:
  friend class Line;
  // Where the bytes of a message go that has begun to come.
  struct Target {
    Communicator* comm = nullptr;
    Request* request = nullptr;  // none: it is put aside
    std::list<Arrived>::iterator aside = {};
    std::unique_ptr<std::byte[]> waste = {};  // of a message that is too long for its receive
    void* data() const {
      if (waste != nullptr) return waste.get();
      return request != nullptr ? request->data : aside->data.get();
    }
  };
  Communicator& known(uint64_t id);
  Communicator& make(Communicator& parent, uint64_t kind, std::vector<int> members);
  Target begin(int from, const Head& head);
  void end(Target& target, bool well);
  void deliver(int from, const Head& head, const void* data);
  void finish(Request& send);
  void wake();
  void wake_all();  // guard_ is held

  const std::shared_ptr<Carrier> carrier_;
  const int rank_;
  std::mutex guard_;
  std::condition_variable changed_;
  uint64_t changes_ = 1;
  int resting_ = 0;
  std::map<uint64_t, std::unique_ptr<Communicator>> comms_;
  Communicator* all_ = nullptr;
  std::vector<std::unique_ptr<Line>> lines_;  // by peer; to itself none
};

}  // namespace tessera::post
