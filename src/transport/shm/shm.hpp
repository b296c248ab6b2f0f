// Ranks as processes of one host. A peer's memory is read where it lies: in the shared heap in place, elsewhere through
// the kernel; where neither can be, through a mirror in the shared heap.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "transport/board_transport.hpp"
#include "transport/shm/mail.hpp"
#include "transport/shm/mirror.hpp"
#include "transport/shm/source.hpp"
#include "transport/shm/world.hpp"

namespace tessera::shm {

// Ordinary memory up to here is copied into the shared heap as it is announced: one copy then, against a call into the
// kernel for each reader, and these get in each other's way. Measured where the two cross: 2 ranks between 16 and 64 KiB,
// 4 ranks at about 1 MiB (docs/processes.md has the figures).
inline int64_t eager_bytes(int ranks) {
  const int64_t readers = std::min(ranks - 1, 4);
  return std::min((int64_t{16} << 10) * readers * readers * readers, int64_t{512} << 10);
}

// Of memory outside the heap that peers pick rows out of, or add up: up to here what they read goes through shared memory.
// The kernel's copy comes in pieces and to a second buffer. Beyond, it would take too much of the heap.
inline constexpr int64_t kStagedBytes = int64_t{8} << 20;

class ShmTransport : public BoardTransport, private Mourner {
 public:
  // The communicator of all ranks.
  ShmTransport(std::shared_ptr<World> world, Probe probe);
  // Of `members` (world ranks); the board lies `board_at` bytes from the segment's beginning.
  ShmTransport(std::shared_ptr<World> world, std::vector<int> members, uint64_t board_at, Probe probe);
  ~ShmTransport() override;

  // Of other memory more than of the heap: it would have to be copied in any case, and then be waited for.
  size_t inline_bytes(const Tensor& tensor, bool alike) const override;
  Handle handle_of(const Tensor& tensor, Use use) override;
  Tensor allocate(DType dtype, const Dims& shape) override;
  void exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                Deadline deadline) override;
  std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) override;
  std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                       bool started) override;
  void leave(const std::string& farewell) noexcept override;
  Verdict abort(const Verdict& verdict) noexcept override;
  std::string farewell(int peer) const override;
  std::string describe() const override { return "processes of one host, through shared memory"; }
  std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members, Deadline deadline) override;
  std::unique_ptr<Transport> survivors(Deadline deadline) override;
  Traffic traffic() const override;

 private:
  void receive_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                   Deadline deadline) override;
  void on_death(int world_rank) override;
  void on_launcher_gone() override;

  int world_rank(int member) const { return members_[static_cast<size_t>(member)]; }
  bool all_can_attach() const;
  Handle mirrored(const Tensor& tensor, bool now, std::unique_ptr<Mirror>& mirror);
  Handle announce(const Tensor& tensor, Use use, std::unique_ptr<Mirror>& mirror);
  std::unique_ptr<Transport> born(std::vector<int> members, uint64_t board_at);
  uint64_t make_board(int size);
  void drop_board(uint64_t at);
  void ring_members() const;

  void list_fills(const Move& move, const PeerTensors& peers);
  bool fill_next();
  [[noreturn]] void lose(int peer) const;
  void await_filled(const Source& source, Deadline deadline);
  void read(const View& target, const Source& source, int64_t total_bytes, Deadline deadline);
  void reduce(const View& target, std::span<const Source> sources, const Receive& receive, int64_t total_bytes,
              Deadline deadline);

  const std::shared_ptr<World> world_;
  const std::vector<int> members_;  // world ranks
  const uint64_t board_at_;
  const bool attachable_;  // every member can read this rank's own memory
  Mapper mapper_;
  std::vector<std::unique_ptr<Mirror>> announcing_;  // made for the next exchange
  std::vector<std::unique_ptr<Mirror>> mirrors_;     // of the call that is going on
  std::vector<Mirror*> fills_;                       // those that peers wait for
  std::vector<Source> sources_;
  std::vector<std::byte> scratch_;
  std::vector<std::vector<std::byte>> term_scratch_;
  std::atomic<int64_t> bytes_attached_{0}, bytes_staged_{0}, heap_misses_{0};
  std::unique_ptr<Mail> mail_;
};

}  // namespace tessera::shm
