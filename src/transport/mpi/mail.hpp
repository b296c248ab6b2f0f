// Messages between two ranks of an MPI: the sender says what it has, the receiver answers, and then the elements go. All
// that is pending goes on while anything of this communicator is waited for.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/statement.hpp"
#include "transport/mpi/world.hpp"

namespace tessera::mpi {

// What the sender says; plain words.
struct Letter {
  int64_t tag = 0;
  uint64_t order = 0;  // of the sender's messages
  uint64_t dtype = 0, ndim = 0;
  int64_t shape[kMaxDims] = {};
  char site[128] = {};
};

struct Message {
  bool is_send = false;
  Tensor tensor;
  int peer = 0;  // kAnySource until it is known
  int64_t tag = 0;
  std::string site;
  uint64_t order = 0;
  enum State { waiting, moving, done, failed } state = waiting;
  ErrorKind kind = ErrorKind::none;
  std::string error = {};
  std::vector<std::byte> buffer = {};        // where the tensor does not lie in one piece
  std::vector<RequestHandle> requests = {};  // that are not over
  int64_t missing_bytes = 0;                 // of a receive
  Deadline lost_by = {};                     // where the peer has left
};

class Mail final : public Helper {
 public:
  // `has_left`: whether a peer takes no part any more (kAnySource: whether none does). `count`: is told from whom how many
  // bytes came.
  Mail(World& world, CommHandle comm, int rank, std::function<bool(int)> has_left,
       std::function<void(int, int64_t)> count);
  ~Mail();

  std::shared_ptr<Message> send(const Tensor& tensor, int to, int64_t tag, const std::string& site);
  std::shared_ptr<Message> receive(const Tensor& out, int from, int64_t tag, const std::string& site);
  // Whether it is over, or will never be; takes what has come first.
  bool is_over(const std::shared_ptr<Message>& message);
  // How it ended; where it waits still, nobody can take it any more.
  Message::State end(const std::shared_ptr<Message>& message);
  // Nobody waits for it any more.
  void forget(const std::shared_ptr<Message>& message);
  void progress() override;
  Patience patience() const { return Patience(world_, comm_); }
  bool is_pending() const override {
    std::lock_guard lock(guard_);
    return !messages_.empty();
  }

 private:
  struct Arrived {
    int from;
    Letter letter;
  };
  bool fetch(int32_t tag, Found& found, std::vector<std::byte>& bytes);
  void match();
  void begin(Message& message, const Arrived& arrived);
  void answer(const Arrived& arrived, ErrorKind kind, const std::string& text);
  void hear_answer(int from, const std::vector<std::byte>& bytes);
  void move_elements(Message& message);
  void finish(Message& message);

  World& world_;
  CommHandle comm_;
  int rank_;
  std::function<bool(int)> has_left_;
  std::function<void(int, int64_t)> count_;
  mutable std::mutex guard_;
  uint64_t orders_ = 0;
  Deadline settled_by_{};  // what was given up
  std::list<std::shared_ptr<Message>> messages_;
  std::list<Arrived> arrived_;
};

class MailTicket : public Ticket {
 public:
  // `look_around` hears who has left, and whether the communicator is dead.
  MailTicket(Mail& mail, std::shared_ptr<Message> message, std::function<void()> look_around)
      : mail_(mail), message_(std::move(message)), look_around_(std::move(look_around)), patience_(mail.patience()) {}
  ~MailTicket() override { mail_.forget(message_); }

  bool done() override {
    look_around_();
    return mail_.is_over(message_);
  }
  bool await(Deadline deadline) override;
  void wait(Deadline deadline) override;
  Tensor tensor() const override { return message_->tensor; }
  int peer() const override { return message_->peer; }

 private:
  Mail& mail_;
  std::shared_ptr<Message> message_;
  std::function<void()> look_around_;
  Patience patience_;  // one for all waits, as they are pieces of one
};

}  // namespace tessera::mpi
