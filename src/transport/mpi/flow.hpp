// One rank's part of a move, as messages: cut into pieces, of which a few are on their way at a time. It is worked out once,
// and may be run again with other tensors of the same strides.
#pragma once

#include <optional>
#include <vector>

#include "tensor/copy.hpp"
#include "transport/chunks.hpp"
#include "transport/mpi/world.hpp"

namespace tessera::mpi {

class Flow {
 public:
  // The move outlives it. `eager_bytes`: see find_eager_bytes().
  Flow(World& world, CommHandle comm, int rank, const Move& move, std::span<const Tensor> mine,
       const PeerTensors& peers, int64_t eager_bytes);
  Flow(const Flow&) = delete;

  // Sends and asks for the first pieces. What is given here stays until end().
  void start(std::span<const Tensor> mine, const PeerTensors& peers);
  // Ends what is pending, or hands it to the world.
  void end();
  // Does all that needs nobody.
  void do_local();
  // Takes what has come and sends on. True: all is done.
  bool progress();
  // Of all that comes, by peer: fn(peer, bytes).
  template <class Fn>
  void count_received(Fn&& fn) const {
    for (const Queue& queue : receives_) {
      for (const Lane& lane : queue.lanes) fn(queue.peer, lane.bytes);
    }
  }
  // How many pieces have come or gone.
  int64_t taken() const { return taken_; }
  // Somebody for whom this rank waits.
  int waits_for() const;

 private:
  using Buffer = std::shared_ptr<std::byte>;
  // A box that goes to a peer or comes from one, piece by piece.
  struct Lane {
    int peer = 0;
    int tensor = 0;  // by which, and by its box there, both ends have them in one order
    Box box;
    size_t receive = 0;  // of the move; of a send none
    size_t term = 0;
    Chunks pieces;
    int64_t bytes = 0;
    int64_t flat_at = kNotFlat;  // where it lies on this rank, in bytes from the tensor's first element
    // How it is put in place there, and where: of one piece that comes into memory of our own.
    std::optional<std::pair<int64_t, PreparedCopy>> placing = std::nullopt;
    // What is a little longer than MPI takes at once is one piece, and goes in several messages.
    int64_t parts = 1, part_bytes = bytes;
    int64_t next = 0;         // message
    int64_t left = 1;         // parts that have not come
    Buffer buffer = nullptr;  // of them, where they do not come from one piece of memory, or to one
    int64_t messages() const { return parts > 1 ? parts : pieces.count(); }
    int64_t piece() const { return parts > 1 ? 0 : next; }  // the next one
    // Where a part begins, and its bytes; of what is not cut, all.
    std::pair<int64_t, int64_t> part(int64_t number) const {
      if (parts == 1) return {0, bytes};
      return {number * part_bytes, std::min(part_bytes, bytes - number * part_bytes)};
    }
  };
  // What is not one piece of memory, or goes in several messages.
  static constexpr int64_t kNotFlat = INT64_MIN;
  struct Queue {  // of one peer, in one direction
    int peer = 0;
    std::vector<Lane> lanes;
    size_t at = 0;
    int pending = 0;
    int staged = 0;  // of these, what is put in place when it has come
  };
  // What combines the terms of one piece.
  struct Unit {
    size_t receive = 0;
    int64_t piece = 0;
    size_t remote = 0;  // terms of other ranks
    size_t missing = 0;
    std::vector<Buffer> terms;  // those that came, by number
  };
  // A copy within this rank, of one piece of memory to another.
  struct Local {
    size_t from, to;  // tensors
    int64_t from_at, to_at;
    PreparedCopy copy;
  };
  struct Pending {
    bool is_send = false;
    bool goes_on = false;  // what another message has begun
    size_t queue = 0;
    size_t lane = 0;
    int64_t message = 0;  // of the lane
    size_t unit = 0;
    Buffer buffer;  // of what does not lie in one piece
  };
  static bool is_staged(const Pending& pending) {
    return !pending.is_send && !pending.goes_on && pending.unit == SIZE_MAX && pending.buffer != nullptr;
  }

  bool travels(int rank, int tensor) const;
  std::vector<Queue> by_peer(std::vector<Lane> lanes) const;
  std::vector<Lane> list_sends() const;
  std::vector<Lane> list_receives() const;
  void list_units();
  void find_flat();
  void cut_into_parts(int64_t eager_bytes);
  std::optional<Local> local_of(const Receive& receive) const;
  bool owes(const Queue& queue, const Unit& unit) const;
  bool post(size_t queue, bool is_send);
  // The next piece of a lane.
  RequestHandle post_send(Lane& lane, Pending& pending);
  RequestHandle post_receive(Lane& lane, Pending& pending);
  void post_all(bool is_send);
  void take(Pending& pending, int64_t bytes);
  bool is_over() const;
  void combine(Unit& unit);
  ConstView own_or_inlined(const Term& term) const;
  View target_of(const Receive& receive) const;

  World& world_;
  CommHandle comm_;
  int rank_;
  const Move& move_;
  std::span<const Tensor> mine_;
  const PeerTensors* peers_;
  const int64_t total_bytes_;
  std::vector<Queue> sends_, receives_;
  std::vector<Unit> units_;
  std::vector<size_t> first_unit_;  // by receive
  std::vector<Local> locals_;
  std::vector<size_t> others_;  // receives that are none of these, or need other ranks
  int64_t taken_ = 0;
  size_t units_done_ = 0;  // all before are
  std::vector<RequestHandle> requests_;
  std::vector<Pending> pending_;
  std::vector<std::pair<size_t, bool>> touched_;  // whose next pieces may go now
  World::Over over_;
};

}  // namespace tessera::mpi
