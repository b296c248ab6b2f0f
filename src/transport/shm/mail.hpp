// Messages between two ranks. The sender puts an envelope into its outbox, the receiver finds it there and reads the
// tensor where it lies.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/board.hpp"
#include "comm/statement.hpp"
#include "transport/shm/source.hpp"

namespace tessera::shm {

// What a message is. Plain words, that are copied out of the sender's memory before they are looked at.
struct Letter {
  int32_t to = 0;        // a rank of the world
  uint64_t context = 0;  // which communicator
  int64_t tag = 0;
  uint64_t order = 0;  // of the sender's messages
  uint64_t dtype = 0;
  uint64_t ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};
  Handle where;
  char site[128] = {};
};

struct Envelope {
  enum State : uint32_t { empty, posted, taken, done, failed };
  std::atomic<uint32_t> state{empty};
  Letter letter;
  // By the receiver, where failed.
  uint32_t error_kind = 0;
  char error[768] = {};
};

// What a letter of rank `from` says of its tensor, checked: throws Error where it makes no sense.
Announced announced(const Letter& letter, int from);

// At the front of every rank's arena.
struct Outbox {
  static constexpr size_t kEnvelopes = 1024;
  std::atomic<uint32_t> used{0};  // none from here on was ever used
  Envelope envelopes[kEnvelopes];

  static constexpr size_t bytes() { return sizeof(Outbox); }
  static Outbox* in(const Segment& segment, int rank) { return reinterpret_cast<Outbox*>(segment.arena(rank).data()); }
};

// What a transport gives its mail.
struct Postal {
  std::shared_ptr<World> world;
  const Board& board;
  const std::vector<int>& members;  // world ranks
  uint64_t context;
  std::function<Handle(const Tensor&, std::unique_ptr<Mirror>&)> announce;
  std::function<Tensor(DType, const Dims&)> allocate;
  std::atomic<int64_t>& bytes_attached;
};

class Mail {
 public:
  explicit Mail(Postal postal);
  ~Mail();

  std::unique_ptr<Ticket> send(const Tensor& tensor, int to, int64_t tag, const std::string& site);
  std::unique_ptr<Ticket> receive(const Tensor& out, int from, int64_t tag, const std::string& site, bool started);

  // A receive that waits for its message, or has it.
  struct Pending {
    Tensor tensor;
    int from;  // kAnySource until it is known
    int64_t tag;
    std::string site;
    bool over = false;
    ErrorKind kind = ErrorKind::none;
    std::string error = {};
  };
  // Receives what has come, in the order in which receives were posted.
  void progress();
  bool is_over(const Pending& pending);
  // False at the deadline, and nothing has changed. One: a Pending or a Posted.
  template <class One>
  bool await(const One& one, Deadline deadline) {
    return postal_.world->await(deadline, [&] { return is_over(one); });
  }
  // False at the deadline, or where the peer left, or after an abort: it is withdrawn then.
  bool wait(const std::shared_ptr<Pending>& pending, Deadline deadline, bool& gone);

  struct Posted {
    Tensor tensor;
    int to;
    size_t index;  // of the envelope
    std::unique_ptr<Mirror> mirror;
  };
  bool is_over(const Posted& posted);
  // As above; throws what the receiver says.
  bool wait(const Posted& posted, Deadline deadline, bool& gone);
  void take_back(const Posted& posted) noexcept;

 private:
  Envelope& envelope(size_t index);
  Envelope* find(const Pending& pending, int& from);
  bool take(Pending& pending);
  bool settle(Pending& pending, const Letter& letter, int from);
  bool read(const View& target, const Source& source);
  bool peer_gone(int peer) const;
  void start_thread();

  Postal postal_;
  std::mutex guard_;
  std::list<std::shared_ptr<Pending>> pending_;
  std::vector<std::byte> scratch_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tessera::shm
