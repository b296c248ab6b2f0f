#include "transport/board_transport.hpp"

namespace tessera {
namespace {

// While it lives, the owners of the memory that is read wait for it, whatever happens.
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

}  // namespace

void BoardTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                              Deadline deadline) {
  call_ = static_cast<int64_t>(call / 256);
  look_in(Moment::before_announce);
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

void BoardTransport::wait_for(int peer, Deadline deadline) {
  switch (board_.wait_for(peer, deadline)) {
    case Waited::reached: break;
    case Waited::closed: throw PeerTrouble{PeerTrouble::closed, peer};
    case Waited::timed_out: throw PeerTrouble{PeerTrouble::timed_out, peer};
  }
}

void BoardTransport::run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) {
  // What a peer's earlier round wrote is there when it has made as many steps
  // as this rank.
  for (const Term& term : move.terms) {
    if (term.rank != rank()) wait_for(term.rank, deadline);
  }
  look_in(Moment::before_copy);
  {
    const Claim claim(board_);
    if (!claim.held()) throw PeerTrouble{PeerTrouble::closed, rank()};
    look_in(Moment::during_copy);
    receive_all(move, mine, peers, deadline);
  }
  look_in(Moment::after_copy);
  // An owner that gave up waited for the claim, so the copy is whole; but the
  // call has failed.
  if (board_.aborted()) throw PeerTrouble{PeerTrouble::closed, rank()};
  board_.step();
  for (const Send& send : move.sends) wait_for(send.rank, deadline);
  look_in(Moment::before_leave);
}

}  // namespace tessera
