// Ranks of an MPI: what moves goes as messages.
#pragma once

#include <atomic>
#include <mutex>

#include "comm/network.hpp"
#include "comm/transport.hpp"
#include "transport/board_transport.hpp"
#include "transport/mpi/world.hpp"

namespace tessera::mpi {

class Mail;

// What a transport is told of where its ranks are.
struct Surroundings {
  Hosts hosts;  // by which bytes are counted
  Prices prices;
  // From so many ranks on they vote. Below, telling everybody everything takes no longer: as many messages at once against as
  // many rounds.
  size_t voters = 32;
  int64_t eager_bytes = 0;  // how much MPI takes at once: see find_eager_bytes()
  bool polls = false;       // trusted gathers are polled, as on ranks of which only one thread may call MPI
  std::string trouble;      // why ranks of one host send each other messages instead of sharing memory
};

class MpiTransport : public Transport {
 public:
  // Takes over `comm`, which is nobody else's.
  MpiTransport(std::shared_ptr<World> world, CommHandle comm, Probe probe);
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Handle handle_of(const Tensor&, Use) override { return {}; }
  bool tells_places() const override { return false; }
  // What is said goes to every rank anyway, and so saves a round; in rounds of a vote it goes through many. A network that
  // takes much at once has long rounds.
  size_t inline_bytes(const Tensor&, bool) const override {
    if (votes()) return 2048;
    return around_.eager_bytes > kLongInlined ? kLongInlined : static_cast<size_t>(world_->api().most_inlined_bytes);
  }
  size_t riding_bytes() const override { return static_cast<size_t>(world_->api().most_riding_bytes); }
  // Between two ranks of one machine, where a round is short, 12 KiB took 5.0 us with what is said and 4.4 by themselves;
  // on four over TCP 63 and 98.
  size_t alone_bytes() const override { return votes() ? 0 : circle_.size() == 2 ? 8192 : kLongInlined; }
  void exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                Deadline deadline) override;
  bool hears_from_afar(int peer) const override { return !around_.hosts.together(peer, rank_); }
  bool takes_payload(size_t) const override { return true; }
  void run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) override;
  // The same, but for the moments; `meanwhile` is called once the first messages are on their way.
  void move(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline,
            const std::function<void()>& meanwhile);
  // From now on exchanges are among these ranks only; the records of others are empty.
  void set_circle(std::vector<int> ranks) {
    circle_ = std::move(ranks);
    rounds_.clear();  // they are with others now
  }
  // Hears what others tell beside the calls. `awaited`: for whom this rank waits, for those who ask; -1: for nobody.
  void listen(int awaited = -1) noexcept;
  // This rank is in that call from now on, though it may not speak for its host; nobody else has said anything in it yet.
  void begin(uint64_t call) {
    peers_[static_cast<size_t>(rank_)].note_call(call);
    for (const int r : circle_) peers_[static_cast<size_t>(r)].note_came(false);
  }
  // Who is to blame where this rank has waited for `suspect` in vain (itself: for all, it does not know for whom).
  PeerTrouble ask_around(int suspect);
  // Whether its part of this exchange has come.
  bool has_said(int peer) const { return peer == rank_ || peers_[static_cast<size_t>(peer)].came; }
  // Whether it has told one who asked that it is in this rank's call, whichever operation it takes it for, or beyond.
  // Or that it waits for yet another rank, wherever it is.
  bool has_answered(int peer) const {
    const Peer& other = peers_[static_cast<size_t>(peer)];
    return peer == rank_ || other.answered > call_of(rank_) / 256 || (other.awaits >= 0 && other.awaits != peer);
  }
  bool gathers_trusted(int64_t rows, int64_t row_bytes) const override {
    return world_->api().all_gather_v != nullptr && rows <= INT32_MAX && row_bytes <= INT32_MAX;
  }
  void prepare_trusted(TrustedRows& rows) const override;
  void gather_trusted(const Tensor& x, bool x_in_order, const Tensor& out, const TrustedRows& rows, uint64_t call,
                      Deadline deadline) override;
  const Network* network() const override { return &network_; }
  // Alike on all ranks. A subgroup has what is said here, too.
  void learn(Surroundings around) {
    around_ = std::move(around);
    network_.prices = around_.prices;
  }
  std::string describe() const override;
  const Probe& probe() const { return probe_; }
  bool votes() const override { return circle_.size() >= around_.voters; }
  bool has_one_thread() const override { return world_->has_one_thread(); }
  void check_thread() const override { world_->check_thread(); }
  std::unique_ptr<Ticket> post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) override;
  std::unique_ptr<Ticket> post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                       bool started) override;
  void leave(const std::string& farewell) noexcept override;
  Verdict abort(const Verdict& verdict) noexcept override;
  bool aborted() const override { return dead_.load(); }
  bool sees_all() const override { return false; }
  void note_message(uint64_t call) override { peers_[static_cast<size_t>(rank_)].note_call(call); }
  uint64_t call_of(int peer) const override { return peers_[static_cast<size_t>(peer)].call; }
  bool has_come(int peer) const override { return has_said(peer) || has_answered(peer); }
  bool has_left(int peer) const override { return peers_[static_cast<size_t>(peer)].left; }
  std::string farewell(int peer) const override {
    std::lock_guard lock(guard_);
    return peers_[static_cast<size_t>(peer)].farewell;
  }
  std::unique_ptr<Transport> subgroup(uint64_t id, std::span<const int> members, Deadline deadline) override;
  std::unique_ptr<Transport> survivors(Deadline deadline) override;
  bool has_survivors() const override { return false; }
  Traffic traffic() const override {
    return {.bytes_between_hosts = bytes_between_, .bytes_within_host = bytes_within_};
  }

 private:
  static constexpr int64_t kLongInlined = 15360;  // with what is said of it, one message
  void look(Moment moment) override { probe_(moment, rank_, static_cast<int64_t>(call_of(rank_) / 256)); }
  // A message that is waited for beside the worker's call asks for what is atomic here.
  struct Peer {
    std::atomic<uint64_t> call{0};
    std::atomic<bool> came{false};  // to this exchange
    std::atomic<bool> left{false};
    // What it has said to one who waits in vain: the number of the call that it was in, and 1; and for whom it waited.
    std::atomic<uint64_t> answered{0};
    std::atomic<int> awaits{-1};
    std::string farewell;
    std::vector<std::byte> first, rest;  // of its record
    std::span<const std::byte> said;     // the same, where it came in rounds
    // Nothing else follows from these.
    void note_call(uint64_t number) { call.store(number, std::memory_order_relaxed); }
    void note_came(bool has) { came.store(has, std::memory_order_relaxed); }
  };
  struct Head {
    uint64_t call = 0, bytes = 0;
  };
  static constexpr size_t kFirstBytes = 16384;  // of a record, with its head: few are longer
  class Records;                                // an exchange under way
  class Relay;                                  // the same in rounds
  class Ballot;                                 // a round of a vote

  void tell(const std::string& text) noexcept;
  void hear_end();
  void hear_if_late();
  void put_down(const Saying& mine, uint64_t call);
  // Of a record of so many bytes, with its head: those of its first message.
  size_t first_bytes(size_t all) const;
  size_t own_place() const;
  // Whether all of the circle say `mine`, and it is not 0. In as many rounds as the logarithm of their number.
  bool vote(uint64_t mine, Deadline deadline);
  // Says this rank's record to all of the circle in rounds, and hears theirs.
  void relay(Meanwhile* meanwhile, std::vector<std::span<const std::byte>>& records, Deadline deadline);
  void hear(const Control& control, int awaited);
  std::string hello(char kind, int awaited) const;
  // Runs fn, which throws PeerTrouble, and asks around where that is a timeout. `each_for_itself`: who alone has said nothing
  // has not come.
  void with_roll_call(const std::function<void()>& fn, bool each_for_itself = false);
  // Waits until done(), and else throws: missing() is whom it waits for.
  template <class Done, class Missing>
  void await(Done&& done, Missing&& missing, Deadline deadline) {
    Deadline grace = Deadline::max();
    for (Patience patience(*world_, comm_); !done(); patience.pause()) {
      if (patience.should_look_around()) look_around(patience, missing, grace, deadline);
    }
    if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
  }
  void look_around(Patience& patience, const std::function<int()>& missing, Deadline& grace, Deadline deadline);
  // The same for a call of MPI's that all ranks make.
  void await_all(const std::function<bool()>& done, Deadline deadline);
  CommHandle duplicate(Deadline deadline);
  CommHandle split(std::span<const int> members, Deadline deadline);
  bool has_gone(int peer) const;
  void count_received(int64_t between, int64_t within);
  void gather_rows(const Tensor& x, const Tensor& out, const TrustedRows& rows, Deadline deadline);
  void gather_pieces(const Tensor& x, bool x_in_order, const Tensor& out, const TrustedRows& rows, Deadline deadline);
  void gather_polled(const Tensor& x, const Tensor& out, const TrustedRows& rows, Deadline deadline);

  std::shared_ptr<World> world_;
  CommHandle comm_;
  bool abandoned_ = false;  // a call on it has no end
  int rank_ = 0, size_ = 0;
  Probe probe_;
  std::vector<Peer> peers_;
  std::vector<int> circle_;
  Network network_;  // to which every rank is a host
  Surroundings around_;
  std::atomic<int64_t> bytes_between_{0}, bytes_within_{0};
  int64_t last_tick_ = 0;        // of the kernel's clock, when this rank last came to an exchange
  std::vector<std::byte> said_;  // of this rank
  struct Posted {                // of an exchange; kept for its capacity
    struct Whose {
      int peer = -1;  // from whom; -1: a send
      bool is_rest = false;
    };
    std::vector<RequestHandle> requests;
    std::vector<Whose> whose;
    World::Over over;
  } posted_;
  struct Passed {  // in a round; kept for its capacity
    std::vector<std::byte> out, in;
    // How much of the next goes in its first message: both ends know how long the last one was.
    size_t first_out = kFirstBytes, first_in = kFirstBytes;
  };
  std::vector<Passed> rounds_;
  std::atomic<bool> dead_{false};
  Verdict verdict_;
  bool gone_ = false;
  mutable std::mutex guard_;  // of what others tell
  std::unique_ptr<Mail> mail_;
};

}  // namespace tessera::mpi
