// A move between ranks that lie on hosts, as three: what ranks of one host read from each other; what comes from other
// hosts, where of a box that several ranks of a host want each takes a part; and those parts, read from each other.
//
// Both ends work it out by themselves. A sender knows which ranks of a host want a box of its own, and cuts it for them. A
// rank knows what the others of its host want since they tell (wishes). That fits, as ranks that want one box of one rank
// want it for the same sum.
#pragma once

#include <functional>
#include <vector>

#include "comm/transport.hpp"
#include "transport/mpi/hosts.hpp"

namespace tessera::mpi {

// Of what a rank receives in the move.
int64_t bytes_from_others(const Move& move, std::span<const Tensor> tensors, int self);

class Sharing {
 public:
  Sharing(const Hosts& hosts, int rank, const Move& move, std::span<const Tensor> mine, const PeerTensors& peers);

  // Where a move shares no wishes it may run again, with other tensors of the same kind: between its runs it holds none.
  void hold(std::span<const Tensor> mine);
  void let_go() { tensors_.clear(); }

  // What this rank wants from other hosts, and where it will lie.
  std::span<const int64_t> wishes(const std::function<Handle(const Tensor&)>& handle_of);
  // What all ranks of the host told, by place. Throws Error for what makes no sense.
  void hear(std::span<const std::span<const std::byte>> said);

  // This rank's tensors, and memory for what it needs on the way.
  std::span<const Tensor> tensors() const { return tensors_; }
  const Move& near() const { return near_; }      // ranks are places on the host
  const Move& across() const { return across_; }  // and here they are ranks
  const Move& relay() const { return relay_; }    // places again
  const PeerTensors& near_peers() const { return near_peers_; }
  const PeerTensors& relay_peers() const { return relay_peers_; }
  // Whether any rank of this host reads what came for another.
  bool relays() const { return relays_; }

  // That this rank reads from others of its host.
  int64_t bytes_within() const;

 private:
  struct Wish {
    std::vector<int64_t> key;  // what is wanted, the same for all who want the same
    int place = 0;             // who wants it
    int tensor = 0;            // and where it goes
    Box box;
  };
  bool travels(int rank, int tensor) const;
  bool is_near(int reader, int owner, int tensor) const;
  bool is_remote(const Receive& receive) const;
  std::vector<int64_t> key_of(const Receive& receive) const;
  void cut_sends();
  void take(const Receive& receive, const Box& part);
  Term fetched(const Term& term, const Receive& receive);
  void share(std::span<const Wish> group);
  std::vector<Wish> parse(int place, std::span<const std::byte> said);

  const Hosts& hosts_;
  const int rank_, host_;
  const Move& move_;
  const PeerTensors& peers_;
  std::vector<Tensor> tensors_;
  std::vector<std::pair<DType, Dims>> fetched_;  // of these, the last ones
  std::vector<int64_t> said_;
  std::vector<const Receive*> wanted_;  // of the move, in the order of this rank's wishes
  Move near_, across_, relay_;
  PeerTensors near_peers_, relay_peers_;
  std::vector<std::vector<Announced>> announced_;  // by place and number
  bool relays_ = false;
};

}  // namespace tessera::mpi
