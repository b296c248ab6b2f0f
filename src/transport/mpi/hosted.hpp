// Ranks of an MPI of which some share a host. Those move data through shared memory; between hosts each byte goes once, and
// all ranks of a host take their share of it. What a rank says goes to its host first, and from there to the others.
#pragma once

#include "transport/board_transport.hpp"
#include "transport/mpi/hosts.hpp"
#include "transport/mpi/mpi.hpp"

namespace tessera::mpi {

class Sharing;

class HostedTransport : public Transport {
 public:
  // `host` and `relay`: two communicators of the ranks of this host, in their order.
  HostedTransport(std::shared_ptr<World> world, std::unique_ptr<MpiTransport> wide,
                  std::unique_ptr<BoardTransport> host, std::unique_ptr<BoardTransport> relay, Hosts hosts);

  int rank() const override { return wide_->rank(); }
  int size() const override { return wide_->size(); }
  Handle handle_of(const Tensor& tensor, Use use) override { return host_->handle_of(tensor, use); }
  Tensor allocate(DType dtype, const Dims& shape) override { return host_->allocate(dtype, shape); }
  // What is said comes to a host as often as it has ranks elsewhere, and a sum of more can be folded.
  size_t inline_bytes(const Tensor& tensor, bool alike) const override {
    return is_alone() ? host_->inline_bytes(tensor, alike) : few(wide_->inline_bytes(tensor, alike));
  }
  size_t inline_boxes_bytes(const Tensor& tensor) const override {
    return is_alone() ? host_->inline_boxes_bytes(tensor) : few(wide_->inline_boxes_bytes(tensor));
  }
  size_t riding_bytes() const override { return is_alone() ? host_->riding_bytes() : wide_->riding_bytes(); }
  size_t alone_bytes() const override { return is_alone() ? host_->alone_bytes() : 0; }
  bool hears_from_afar(int peer) const override { return leads() && !is_here(peer); }
  bool takes_payload(size_t bytes) const override { return is_alone() && host_->takes_payload(bytes); }
  void exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                Deadline deadline) override;
  void run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) override;
  bool gathers_trusted(int64_t rows, int64_t row_bytes) const override {
    return !is_alone() && wide_->gathers_trusted(rows, row_bytes);
  }
  void prepare_trusted(TrustedRows& rows) const override { wide_->prepare_trusted(rows); }
  void gather_trusted(const Tensor& x, bool x_in_order, const Tensor& out, const TrustedRows& rows, uint64_t call,
                      Deadline deadline) override {
    wide_->gather_trusted(x, x_in_order, out, rows, call, deadline);
  }
  std::string describe() const override { return wide_->describe() + "; within a host through shared memory"; }
  const Network* network() const override { return is_alone() ? nullptr : &network_; }
  bool votes() const override { return !is_alone() && wide_->votes(); }
  bool has_one_thread() const override { return !is_alone() && world_->has_one_thread(); }
  void check_thread() const override {
    if (!is_alone()) world_->check_thread();
  }
  std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) override;
  std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                       bool started) override;
  void leave(const std::string& farewell) noexcept override;
  Verdict abort(const Verdict& verdict) noexcept override;
  bool aborted() const override;
  bool sees_all() const override { return is_alone(); }
  uint64_t call_of(int peer) const override;
  void note_message(uint64_t call) override { host_->note_message(call); }
  bool has_come(int peer) const override;
  bool has_left(int peer) const override;
  std::string farewell(int peer) const override;
  std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members, Deadline deadline) override;
  std::unique_ptr<Transport> survivors(Deadline deadline) override { return wide_->survivors(deadline); }
  bool has_survivors() const override { return wide_->has_survivors(); }
  Traffic traffic() const override;

 private:
  void look(Moment moment) override { wide_->probe()(moment, rank(), static_cast<int64_t>(call_ / 256)); }
  bool is_alone() const { return hosts_.count() == 1; }
  bool is_here(int peer) const { return hosts_.host_of(peer) == host_number_; }
  bool leads() const { return hosts_.place_of(rank()) == 0; }
  size_t few(size_t bytes) const { return std::min(bytes, static_cast<size_t>(world_->api().most_inlined_bytes)); }
  // Runs fn, which throws PeerTrouble with a place on this host.
  template <class Fn>
  auto on_host(Fn&& fn) const;
  // The same, and asks around where that is a timeout: the one that it waits for may wait for another host, and of those it
  // knows nothing.
  template <class Fn>
  void with_roll_call(Fn&& fn);
  int awaited_here() const;
  std::chrono::nanoseconds idle() noexcept;
  void check_threads(Deadline deadline);
  void check_no_trouble(const std::string& mine, Deadline deadline);
  Saying bundled();
  void ask_other_hosts(uint64_t call, Deadline deadline);
  void unpack(int host, std::span<const std::byte> bundle, std::vector<std::span<const std::byte>>& records);
  void run_shared(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline);
  void run_apart(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline);
  void move_across(const Sharing& sharing, const PeerTensors& peers, Deadline deadline);

  const std::shared_ptr<World> world_;
  const std::unique_ptr<MpiTransport> wide_;
  const std::unique_ptr<BoardTransport> host_, relay_;
  const Network network_;
  const Hosts& hosts_;
  const int host_number_;
  uint64_t call_ = 0;  // that this rank is in
  std::vector<std::atomic<uint64_t>> calls_;
  std::vector<std::span<const std::byte>> here_, relayed_, bundles_;
  std::vector<std::byte> bundle_, others_;  // what this host says, and what the others said
  std::atomic<int64_t> bytes_within_{0};
};

// The communicator of all ranks of `comm`, which it takes over: a HostedTransport where any of them share a host and can
// share memory. Collective. Throws Error, PeerTrouble.
std::unique_ptr<Transport> join_hosts(std::shared_ptr<World> world, CommHandle comm, const Probe& probe,
                                      Deadline deadline);

}  // namespace tessera::mpi
