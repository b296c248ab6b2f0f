// Ranks as threads of one process. A peer's memory is read where it lies: one copy a byte, nothing staged.
#pragma once

#include "comm/transport.hpp"
#include "transport/threads/group.hpp"

namespace tessera {

class ThreadsTransport : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<Group> group, int rank);

  int rank() const override { return board_.rank(); }
  int size() const override { return board_.size(); }
  Handle handle_of(const Tensor& tensor) override { return {{reinterpret_cast<uint64_t>(tensor.data()), 0}}; }
  void exchange(std::span<const std::byte> mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                Deadline deadline) override;
  void run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) override;
  std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) override;
  std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site) override;
  void leave(const std::string& farewell) noexcept override;
  Verdict abort(const Verdict& verdict) noexcept override;
  bool aborted() const override { return board_.aborted(); }
  uint64_t call_of(int peer) const override { return board_.call_of(peer); }
  bool has_come(int peer) const override { return board_.has_come(peer); }
  bool has_left(int peer) const override { return board_.has_left(peer); }
  std::string farewell(int peer) const override { return board_.farewell(peer); }
  std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members) override;
  std::vector<int> survivors(Deadline deadline) override;

 private:
  void wait_for(int peer, Deadline deadline);
  void copy_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers);
  void probe(Moment moment);

  std::shared_ptr<Group> group_;
  Board board_;
  int64_t call_ = 0;
  std::vector<ConstView> terms_;
};

}  // namespace tessera
