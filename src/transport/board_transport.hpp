// What the transports have in common whose ranks see each other's memory, be they threads or processes: a call announces
// on the board, claims, copies, and waits for those that read from it.
#pragma once

#include <algorithm>
#include <functional>

#include <tessera/comm.hpp>

#include "comm/board.hpp"
#include "comm/transport.hpp"

namespace tessera {

using Probe = std::function<void(Moment moment, int rank, int64_t call)>;

class BoardTransport : public Transport {
 public:
  int rank() const override { return board_.rank(); }
  int size() const override { return board_.size(); }
  // Measured, on inputs that were written just before: up to here a copy costs less than a second wait, in the shared heap
  // too. Sums need one limit on all ranks, and read all of it on each.
  size_t inline_bytes(const Tensor&, bool alike) const override {
    return alike ? kInlineBytes / static_cast<size_t>(std::max(1, size() / 4)) : kInlineBytes;
  }
  size_t inline_boxes_bytes(const Tensor&) const override { return kInlineBoxesBytes; }
  size_t riding_bytes() const override { return kRidingBytes; }
  size_t alone_bytes() const override { return SIZE_MAX; }
  void exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                Deadline deadline) override;
  bool takes_payload(size_t bytes) const override { return bytes <= kRecordBytes; }
  void run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) override;
  bool aborted() const override { return board_.aborted(); }
  uint64_t call_of(int peer) const override { return board_.call_of(peer); }
  void note_message(uint64_t call) override { board_.note_message(call); }
  bool has_come(int peer) const override { return board_.has_come(peer); }
  bool has_left(int peer) const override { return board_.has_left(peer); }
  std::string farewell(int peer) const override { return board_.farewell(peer); }
  void set_idle(std::function<std::chrono::nanoseconds()> idle) { board_.set_idle(std::move(idle)); }

 protected:
  BoardTransport(Board board, Probe probe)
      : Transport(probe != nullptr), board_(std::move(board)), probe_(std::move(probe)) {}
  void look(Moment moment) override { probe_(moment, board_.rank(), call_); }

  // Receives all that the move has for this rank; peers' memory is claimed meanwhile. Throws PeerTrouble.
  virtual void receive_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                           Deadline deadline) = 0;

  Board& board() { return board_; }
  const Board& board() const { return board_; }
  const Probe& probe() const { return probe_; }

 private:
  void wait_for(int peer, Deadline deadline);

  Board board_;
  Probe probe_;
  int64_t call_ = 0;
};

}  // namespace tessera
