// The seam: all that tessera asks of a way to move data. Everything else stands
// above it and is written once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tessera/comm.hpp>
#include <tessera/reduction.hpp>
#include <tessera/tensor.hpp>

#include "comm/futex.hpp"
#include "comm/network.hpp"
#include "comm/saying.hpp"
#include "tensor/view.hpp"

namespace tessera {

// Where a tensor's first element lies, in words only its own transport reads
// (threads: the address).
struct Handle {
  uint64_t words[2] = {0, 0};
};

// A tensor as its owner announced it.
struct Announced {
  DType dtype = DType::f32;
  Dims shape;
  Dims strides;
  Handle where;
  // Of a tensor that travelled within the record itself: its elements, row-major, in its owner's record.
  const std::byte* inlined = nullptr;
  ConstView inlined_view() const { return {inlined, dtype, shape, row_major(shape)}; }
};

// What peers do with a tensor that a rank announces.
enum class Use {
  copied,  // they copy long stretches of it
  picked,  // they pick rows out of it, or add it to others: they read it bit by bit
  written,  // the call writes to it, and then they read what it wrote; other tensors stay as they are until the call ends
};

// Every rank's tensors as announced, by rank and number; null where a rank has
// none.
using PeerTensors = std::vector<std::vector<const Announced*>>;

// A move, as one rank sees it. Boxes are in the coordinates of the tensor they
// lie in; tensors are numbered in the order in which the call announced them
// (the same on every rank).
struct Term {
  int rank = 0;
  int tensor = 0;
  Box box;
};
struct Receive {  // tensor.box = its terms combined; one term alone is copied,
                  // or scaled by a premul_sum
  int tensor = 0;
  Box box;
  size_t first_term = 0;
  size_t terms = 1;
  Reduction reduction;
  Dims axes = {};          // where the terms lie row-major over several axes of a mesh: their sizes
  bool read_next = false;  // by others, in the next round of the call
  bool is_copy() const { return terms == 1 && reduction.op != ReduceOp::premul_sum; }
};
struct Send {  // the mirror image of a term of `rank`
  int rank = 0;
  int tensor = 0;
  Box box;
};
// What a transport has worked out of a move, for the next time that it runs. No part of what the move is: a copy has none.
struct Prepared {
  Prepared() = default;
  Prepared(const Prepared&) {}
  Prepared(Prepared&&) noexcept {}
  Prepared& operator=(const Prepared& other) {
    if (this != &other) what.reset();
    return *this;
  }
  std::shared_ptr<void> what;
};
struct Move {
  std::vector<Receive> receives;
  std::vector<Term> terms;
  std::vector<Send> sends;
  // Ranks that want one box of one rank may want it for different sums: so it cannot be shared out among them. Alike on all
  // ranks.
  bool for_one_sum_each = false;
  // Several ranks may want the same of one: where they share a host, they tell each other what they want. Alike on all ranks.
  bool shares_wishes = true;
  // No other round of the call sends any of the tensors that this one sends. This rank's own matter.
  bool sends_alone = false;
  mutable Prepared prepared;
  // What this rank writes in it, of its tensors `mine`.
  int64_t received_bytes(std::span<const Tensor> mine) const;
};

// What is known beforehand of an all_gather that the caller vouches for.
struct TrustedRows {
  size_t dim = 0;
  Sizes sizes, places = {};  // of each rank, in rows
  int64_t row_bytes = 0;
  bool out_in_order = false;  // the ranks' rows lie behind one another in it
  // The transport's own:
  std::vector<int32_t> counts = {};  // of each rank, and then its places; in units
  int64_t unit_bytes = 1;
  int64_t bytes_between_hosts = 0, bytes_within_host = 0;  // that come to this rank
  bool heeds_deadline = false;
};

// Thrown through the seam when a peer does not come; the communicator makes the
// error of it that all ranks see.
struct PeerTrouble {
  enum Kind { timed_out, closed } kind;
  int rank;
};

// Why a communicator is dead. `kind` is an ErrorKind (see agreement.hpp).
struct Verdict {
  uint32_t kind = 0;
  std::string text;
};

// A send or a receive that was posted.
class Ticket {
 public:
  virtual ~Ticket() = default;
  virtual bool done() = 0;
  // Waits until done(); false at the deadline, and then it goes on.
  virtual bool await(Deadline deadline) = 0;
  // The same, and it is over then, in whichever way. Throws PeerTrouble, MismatchError.
  virtual void wait(Deadline deadline) = 0;
  virtual Tensor tensor() const = 0;  // what was received, or sent
  virtual int peer() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // What carries the elements, in words.
  virtual std::string describe() const = 0;

  // What the ranks of the next exchange are told of a tensor.
  virtual Handle handle_of(const Tensor& tensor, Use use) = 0;
  // Whether that may be another for each tensor. False: it is always the same.
  virtual bool tells_places() const { return true; }

  // How many bytes of such tensors travel best within the record. `alike`: to be the same on all ranks, wherever their
  // tensors lie.
  virtual size_t inline_bytes(const Tensor& tensor, bool alike) const = 0;
  // The same of those of which every peer reads a box.
  virtual size_t inline_boxes_bytes(const Tensor& tensor) const { return inline_bytes(tensor, false); }
  // Of elements: so few make what is said no dearer.
  virtual size_t riding_bytes() const { return SIZE_MAX; }
  // So many of one rank still travel best within its record where all others' do: then nothing else has to be sent. 0: no
  // more than else. SIZE_MAX: as many as else.
  virtual size_t alone_bytes() const { return 0; }

  // New memory, of the kind that peers read best.
  virtual Tensor allocate(DType dtype, const Dims& shape) { return Tensor::empty(dtype, shape); }

  // Gives `mine` to all ranks and gets theirs; records[r] stays valid until the next exchange, though a peer that is
  // damaged may write over it. `call` tells others where this rank is. Throws PeerTrouble.
  virtual void exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                        Deadline deadline) = 0;

  // Whether what `peer` says comes from another host, and to this very rank of its own.
  virtual bool hears_from_afar(int /*peer*/) const { return false; }

  // Whether it takes a Saying with a payload of its own, of that many bytes in all.
  virtual bool takes_payload(size_t /*bytes*/) const { return false; }

  // Whether an exchange that repeats an earlier one is agreed on by vote: where all ranks say the same version, and no
  // elements, the records of others may come back empty.
  virtual bool votes() const { return false; }

  // Runs this rank's part of a move that all ranks agreed on. `mine` are this
  // rank's tensors, `peers` those of all ranks by number. Returns when the data
  // is here and nobody reads this rank's memory any more. Throws PeerTrouble.
  virtual void run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) = 0;

  // Whether an all_gather of so many rows, whose sizes and all else the caller vouches for, has a shorter way than to agree
  // and to move; and that way.
  virtual bool gathers_trusted(int64_t /*rows*/, int64_t /*row_bytes*/) const { return false; }
  // Works out what it needs for that: once, for any number of calls.
  virtual void prepare_trusted(TrustedRows&) const {}
  // x_in_order: it lies in one piece, and shares no memory with the result. Throws PeerTrouble.
  virtual void gather_trusted(const Tensor& /*x*/, bool /*x_in_order*/, const Tensor& /*out*/, const TrustedRows&,
                              uint64_t /*call*/, Deadline) {}

  // Whether only one thread may call: then what is asynchronous goes on in that thread's later calls.
  virtual bool has_one_thread() const { return false; }
  virtual void check_thread() const {}  // throws Error on another one

  // What lies between the ranks where each reader of a tensor costs its owner the time to send it; null: readers pull.
  virtual const Network* network() const { return nullptr; }

  // Lets a test look in, where one watches; also at a move that the transport does not run: of what travelled within the
  // records.
  void look_in(Moment moment) {
    if (watched_) look(moment);
  }
  bool watched() const { return watched_; }

  // `tag` and `from` (-1: any) as in send() and recv(). The tickets keep the tensors. A receive that is `started` goes on
  // while this rank does something else.
  virtual std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) = 0;
  virtual std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                               bool started) = 0;

  // This rank will take no further part.
  virtual void leave(const std::string& farewell) noexcept = 0;
  // Ends the communicator on every rank; returns the verdict that came first,
  // when no peer can touch this rank's memory.
  virtual Verdict abort(const Verdict& verdict) noexcept = 0;
  virtual bool aborted() const = 0;

  // For messages: what a peer was last in, whether it has come as far as this
  // rank, and whether (and how) it left.
  virtual uint64_t call_of(int peer) const = 0;
  // Whether that is always up to date; else it is what was heard last.
  virtual bool sees_all() const { return true; }
  // This rank is in a message, after that call. Not every transport can tell others.
  virtual void note_message(uint64_t) {}
  virtual bool has_come(int peer) const = 0;
  virtual bool has_left(int peer) const = 0;
  virtual std::string farewell(int peer) const = 0;

  // A communicator of `members` (ranks here, in their new order, this one among them); null for none. All ranks call it
  // together, with one id, each with the members of its own. Throws PeerTrouble.
  virtual std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members, Deadline deadline) = 0;
  // After an abort: a communicator of all that come here before the deadline; null on a rank that came too late.
  virtual std::unique_ptr<Transport> survivors(Deadline deadline) = 0;
  virtual bool has_survivors() const { return true; }  // false: the line above only throws

  // How bytes were moved since the start.
  struct Traffic {
    int64_t bytes_attached = 0;  // read out of another process's own memory
    int64_t bytes_staged = 0;    // copied into shared memory first, for others to read
    int64_t heap_misses = 0;     // allocations that the shared heap had no room for
    // Under MPI, which alone knows of hosts; what travelled within the records is counted by whoever reads them:
    int64_t bytes_between_hosts = 0;  // came to this rank from other hosts
    int64_t bytes_within_host = 0;    // read from other ranks of its host
  };
  virtual Traffic traffic() const { return {}; }

 protected:
  explicit Transport(bool watched) : watched_(watched) {}
  virtual void look(Moment moment) = 0;

 private:
  const bool watched_;
};

}  // namespace tessera
