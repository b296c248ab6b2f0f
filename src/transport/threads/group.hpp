// What ranks that are threads of one process share: a board, mailboxes, and the groups made out of this one.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <tessera/comm.hpp>

#include "comm/board.hpp"
#include "comm/statement.hpp"
#include "comm/transport.hpp"
#include "transport/board_transport.hpp"

namespace tessera {

// A send or a receive that is posted. Guarded by the group's mailbox mutex, but for the copy itself, which whoever came
// second makes between `copying` and `done`.
struct Posted {
  enum State { waiting, copying, done, failed } state = waiting;
  bool is_send = false;
  int owner = 0;  // the rank that posted it
  int peer = 0;   // the other one; kAnySource for a receive from anybody
  int64_t tag = 0;
  Tensor tensor = {};  // a receive's may be undefined: then it is allocated when the message is known
  std::string site = {};
  ErrorKind kind = ErrorKind::mismatch;  // where failed
  std::string error = {};
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(int size, Probe probe);

  int size() const { return size_; }
  Board board(int rank) { return Board(memory_.get(), rank, size_); }
  const Probe& probe() const { return probe_; }

  // The group of `members` with that id, for `rank`, one of them: the first to ask makes it. A member that leaves here
  // before it has asked has left there too.
  std::shared_ptr<Group> child(uint64_t id, std::span<const int> members, int rank);

  // Point to point.
  std::shared_ptr<Posted> post(Posted posted);
  // False at the deadline, or where the peer left, or after an abort, with the posting withdrawn; then `gone` says whether
  // the peer (or everybody) left.
  bool wait(const std::shared_ptr<Posted>& posted, Deadline deadline, bool& gone);
  // False at the deadline, with nothing withdrawn.
  bool await(const std::shared_ptr<Posted>& posted, Deadline deadline);
  bool is_done(const std::shared_ptr<Posted>& posted);
  void left(int rank);
  void aborted();

 private:
  bool fits(const Posted& send, const Posted& receive) const;
  void transfer(Posted& send, Posted& receive, std::unique_lock<std::mutex>& lock);
  bool peer_gone(const Posted& posted) const;
  bool is_over(const Posted& posted) const;

  const int size_;
  const Probe probe_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;

  struct Child {
    std::shared_ptr<Group> group;
    std::vector<int> members;
    std::vector<int> missing;  // those of them that have not asked
  };
  static void leave_unborn(Child& child, int rank);

  std::mutex children_guard_;
  std::map<std::pair<uint64_t, int>, Child> children_;  // that miss members; by id and first member

  std::mutex mail_guard_;
  std::condition_variable mail_changed_;
  std::list<std::shared_ptr<Posted>> mail_;  // what has not met its counterpart, oldest first
  std::vector<bool> left_;
  bool aborted_ = false;
};

}  // namespace tessera
