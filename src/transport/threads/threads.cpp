#include "transport/threads/threads.hpp"

#include <algorithm>

#include <tessera/collective.hpp>

#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

// While it lives, the owners of the memory that is read wait for it, whatever
// happens.
class Claim {
 public:
  explicit Claim(Board& board) : board_(board), held_(board.claim()) {}
  ~Claim() {
    if (held_) board_.drop_claim();
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  bool held() const { return held_; }

 private:
  Board& board_;
  bool held_;
};

class PostedTicket : public Ticket {
 public:
  PostedTicket(std::shared_ptr<Group> group, Posted posted)
      : group_(std::move(group)), target_(posted.peer), posted_(group_->post(std::move(posted))) {}

  bool done() override { return group_->is_done(posted_); }
  void wait(Deadline deadline) override {
    bool gone = false;
    if (!group_->wait(posted_, deadline, gone)) {
      throw PeerTrouble{gone ? PeerTrouble::closed : PeerTrouble::timed_out, target_};
    }
    if (posted_->state == Posted::failed) throw_error(posted_->kind, posted_->error);
  }
  Tensor tensor() const override { return posted_->tensor; }
  int peer() const override { return posted_->peer; }

 private:
  std::shared_ptr<Group> group_;
  int target_;
  std::shared_ptr<Posted> posted_;
};

}  // namespace

ThreadsTransport::ThreadsTransport(std::shared_ptr<Group> group, int rank)
    : group_(std::move(group)), board_(group_->board(rank)) {}

void ThreadsTransport::probe(Moment moment) {
  if (group_->probe()) group_->probe()(moment, board_.rank(), call_);
}

void ThreadsTransport::exchange(std::span<const std::byte> mine, uint64_t call,
                                std::vector<std::span<const std::byte>>& records, Deadline deadline) {
  call_ = static_cast<int64_t>(call / 256);
  probe(Moment::before_announce);
  int culprit = 0;
  switch (board_.announce(mine, call, records, deadline, culprit)) {
    case Waited::reached: break;
    case Waited::closed: throw PeerTrouble{PeerTrouble::closed, culprit};
    case Waited::timed_out: throw PeerTrouble{PeerTrouble::timed_out, culprit};
  }
  // A late rank finds everybody's record, though they have given up on it;
  // unless somebody went on, and failed later.
  if (board_.aborted() && !board_.is_behind()) throw PeerTrouble{PeerTrouble::closed, rank()};
}

void ThreadsTransport::wait_for(int peer, Deadline deadline) {
  switch (board_.wait_for(peer, deadline)) {
    case Waited::reached: break;
    case Waited::closed: throw PeerTrouble{PeerTrouble::closed, peer};
    case Waited::timed_out: throw PeerTrouble{PeerTrouble::timed_out, peer};
  }
}

void ThreadsTransport::run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                           Deadline deadline) {
  // What a peer's earlier round wrote is there when it has made as many steps
  // as this rank.
  for (const Term& term : move.terms) {
    if (term.rank != rank()) wait_for(term.rank, deadline);
  }
  probe(Moment::before_copy);
  {
    const Claim claim(board_);
    if (!claim.held()) throw PeerTrouble{PeerTrouble::closed, rank()};
    probe(Moment::during_copy);
    copy_all(move, mine, peers);
  }
  probe(Moment::after_copy);
  // An owner that gave up waited for the claim, so the copy is whole; but the
  // call has failed.
  if (board_.aborted()) throw PeerTrouble{PeerTrouble::closed, rank()};
  board_.step();
  for (const Send& send : move.sends) wait_for(send.rank, deadline);
  probe(Moment::before_leave);
}

void ThreadsTransport::copy_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers) {
  int64_t total_bytes = 0;
  for (const Receive& receive : move.receives) {
    total_bytes += receive.box.elements() * size_bytes(mine[static_cast<size_t>(receive.tensor)].dtype());
  }
  for (const Receive& receive : move.receives) {
    const View target = view_of(mine[static_cast<size_t>(receive.tensor)]).box(receive.box);
    terms_.clear();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      const Term& term = move.terms[t];
      const auto tensor = static_cast<size_t>(term.tensor);
      if (term.rank == rank()) {
        terms_.push_back(view_of(mine[tensor]).box(term.box));
      } else {
        const Announced& there = *peers[static_cast<size_t>(term.rank)][tensor];
        const auto* data = reinterpret_cast<const std::byte*>(there.where.words[0]);
        terms_.push_back(ConstView{data, there.dtype, there.shape, there.strides}.box(term.box));
      }
    }
    const bool plain = terms_.size() == 1 && receive.reduction.op != ReduceOp::premul_sum;
    if (plain) copy_box(target, terms_[0], total_bytes);
    else reduce_boxes(target, terms_, receive.reduction, total_bytes);
  }
}

std::unique_ptr<Ticket> ThreadsTransport::post_send(const Tensor& tensor, int to, int64_t tag,
                                                    const std::string& site) {
  return std::make_unique<PostedTicket>(
      group_, Posted{.is_send = true, .owner = rank(), .peer = to, .tag = tag, .tensor = tensor, .site = site});
}

std::unique_ptr<Ticket> ThreadsTransport::post_receive(const Tensor& out, int from, int64_t tag,
                                                       const std::string& site) {
  return std::make_unique<PostedTicket>(
      group_, Posted{.is_send = false, .owner = rank(), .peer = from, .tag = tag, .tensor = out, .site = site});
}

void ThreadsTransport::leave(const std::string& farewell) noexcept {
  board_.leave(farewell);
  group_->left(rank());
}

Verdict ThreadsTransport::abort(const Verdict& verdict) noexcept {
  board_.abort(verdict.kind, verdict.text);
  group_->aborted();
  Verdict first;
  board_.verdict(first.kind, first.text);
  return first;
}

std::unique_ptr<Transport> ThreadsTransport::subgroup(uint64_t id, std::span<const int> members) {
  const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
  auto group = group_->child(id, members, rank());
  return std::make_unique<ThreadsTransport>(std::move(group), static_cast<int>(me));
}

std::vector<int> ThreadsTransport::survivors(Deadline deadline) { return group_->join_survivors(rank(), deadline); }

}  // namespace tessera
