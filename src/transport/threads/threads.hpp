// Ranks as threads of one process. A peer's memory is read where it lies: one copy a byte, nothing staged.
#pragma once

#include "transport/board_transport.hpp"
#include "transport/threads/group.hpp"

namespace tessera {

class ThreadsTransport : public BoardTransport {
 public:
  ThreadsTransport(std::shared_ptr<Group> group, int rank);

  Handle handle_of(const Tensor& tensor, Use) override { return {{reinterpret_cast<uint64_t>(tensor.data()), 0}}; }
  std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) override;
  std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                       bool started) override;
  void leave(const std::string& farewell) noexcept override;
  Verdict abort(const Verdict& verdict) noexcept override;
  std::string describe() const override { return "threads of one process"; }
  std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members, Deadline deadline) override;
  std::unique_ptr<Transport> survivors(Deadline deadline) override;

 private:
  void receive_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                   Deadline deadline) override;

  std::shared_ptr<Group> group_;
  std::vector<ConstView> terms_;
};

// The communicator of a rank that is by itself.
Comm alone(const RunOptions& options);

}  // namespace tessera
