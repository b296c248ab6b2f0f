// How the ranks of an MPI tell each other what they say: each to all, in rounds, or by a vote.
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "transport/mpi/mpi.hpp"

namespace tessera::mpi {
namespace {

constexpr size_t kFirstBytes = 16384;  // of a record, with its head: few are longer
constexpr uint64_t kMostRecordBytes = uint64_t{1} << 30;

// How long one who has waited in vain hears who else has.
constexpr auto kRollTime = std::chrono::milliseconds(200);

}  // namespace

size_t MpiTransport::own_place() const {
  return static_cast<size_t>(std::find(circle_.begin(), circle_.end(), rank_) - circle_.begin());
}

// Records go from everyone to everyone: so each rank knows who has come.
class MpiTransport::Records {
 public:
  explicit Records(MpiTransport& transport)
      : t_(transport),
        api_(t_.world_->api()),
        requests_(t_.posted_.requests),
        whose_(t_.posted_.whose),
        over_(t_.posted_.over) {
    requests_.clear();
    whose_.clear();
  }
  ~Records() {
    if (ended_ == requests_.size()) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == 0) continue;
      // A buffer that MPI may still write to is the world's now, and a new one the next time's.
      const int peer = whose_[i].peer;
      if (peer >= 0) {
        api_.cancel(requests_[i]);
        Peer& from = t_.peers_[static_cast<size_t>(peer)];
        t_.world_->keep(requests_[i], std::pair(std::move(from.first), std::move(from.rest)));
      } else {
        kept_ = kept_ != nullptr ? kept_ : std::make_shared<std::vector<std::byte>>(std::move(t_.said_));
        t_.world_->keep(requests_[i], kept_);
      }
    }
  }
  Records(const Records&) = delete;

  void post() {
    const size_t count = t_.circle_.size();
    const size_t me = t_.own_place();
    for (size_t i = 1; i < count; ++i) {
      const int peer = t_.circle_[(me + count - i) % count];
      Peer& from = t_.peers_[static_cast<size_t>(peer)];
      from.first.resize(kFirstBytes);
      receive(peer, kRecord, from.first.data(), kFirstBytes);
    }
    for (size_t i = 1; i < count; ++i) {
      const int peer = t_.circle_[(me + i) % count];
      send(peer, kRecord, t_.said_.data(), std::min(t_.said_.size(), kFirstBytes));
      if (t_.said_.size() > kFirstBytes) {
        send(peer, kRest, t_.said_.data() + kFirstBytes, t_.said_.size() - kFirstBytes);
      }
    }
  }

  // True: all have come, and all is sent.
  bool progress() {
    if (requests_.empty()) return true;
    t_.world_->check(t_.world_->test_some(requests_, over_), "MPI_Testsome");
    ended_ += over_.count;
    for (size_t i = 0; i < over_.count; ++i) arrive(static_cast<size_t>(over_.which[i]), over_.bytes[i]);
    return ended_ == requests_.size();
  }

  int first_missing() const {
    for (const int r : t_.circle_) {
      if (!t_.has_come(r)) return r;
    }
    return t_.rank_;
  }

 private:
  void add(int peer, bool is_rest, RequestHandle request) {
    requests_.push_back(request);
    whose_.push_back({peer, is_rest});
  }
  void send(int to, int32_t tag, const std::byte* data, size_t bytes) {
    RequestHandle request = 0;
    t_.world_->check(api_.isend(data, static_cast<int64_t>(bytes), to, tag, t_.comm_, &request), "MPI_Isend");
    add(-1, false, request);
  }
  void receive(int from, int32_t tag, std::byte* data, size_t bytes) {
    RequestHandle request = 0;
    t_.world_->check(api_.irecv(data, static_cast<int64_t>(bytes), from, tag, t_.comm_, &request), "MPI_Irecv");
    add(from, tag == kRest, request);
  }

  void arrive(size_t i, int64_t bytes) {
    const auto [peer, is_rest] = whose_[i];
    if (peer < 0) return;
    Peer& from = t_.peers_[static_cast<size_t>(peer)];
    Head head;
    std::memcpy(&head, from.first.data(), sizeof(head));
    if (head.bytes > kMostRecordBytes) throw Error(fmt::format("rank {}'s record is damaged", peer));
    const size_t all = sizeof(head) + head.bytes;
    check_length(peer, bytes, static_cast<int64_t>(is_rest ? all - kFirstBytes : std::min(all, kFirstBytes)));
    if (!is_rest) from.note_call(head.call);
    if (is_rest || all <= kFirstBytes) {
      from.note_came(true);
      return;
    }
    from.rest.resize(head.bytes);
    std::memcpy(from.rest.data(), from.first.data() + sizeof(head), kFirstBytes - sizeof(head));
    receive(peer, kRest, from.rest.data() + (kFirstBytes - sizeof(head)), all - kFirstBytes);
  }

  MpiTransport& t_;
  const Api& api_;
  std::vector<RequestHandle>& requests_;
  std::vector<Posted::Whose>& whose_;
  World::Over& over_;
  size_t ended_ = 0;
  std::shared_ptr<std::vector<std::byte>> kept_;
};

// Where they are many, records go in as many rounds as the logarithm of their number: each passes on all that has come to
// it, in one message, and so gets as much again from twice as far.
class MpiTransport::Relay {
 public:
  explicit Relay(MpiTransport& transport) : t_(transport), count_(t_.circle_.size()), me_(t_.own_place()) { begin(); }
  ~Relay() {
    for (const RequestHandle request : requests_) {
      if (request != 0) t_.world_->keep(request, memory_);
    }
  }
  Relay(const Relay&) = delete;

  // True: all have come.
  bool progress() {
    if (step_ >= count_) return true;
    if (!found_) find();
    t_.world_->check(t_.world_->test_some(requests_, over_), "MPI_Testsome");
    if (!found_ || requests_[0] != 0 || requests_[1] != 0) return false;
    take();
    step_ *= 2;
    if (step_ < count_) begin();
    return step_ >= count_;
  }
  int source() const { return t_.circle_[(me_ + step_) % count_]; }

 private:
  struct Memory {
    std::vector<std::byte> out, in;
  };

  // So many of those behind this one have come, itself among them.
  size_t known() const { return std::min(step_, count_ - step_); }

  void begin() {
    memory_ = std::make_shared<Memory>();
    found_ = false;
    for (size_t i = 0; i < known(); ++i) {
      const int r = t_.circle_[(me_ + i) % count_];
      const auto& record = r == t_.rank_ ? t_.said_ : t_.peers_[static_cast<size_t>(r)].rest;
      memory_->out.insert(memory_->out.end(), record.begin(), record.end());
    }
    if (memory_->out.size() > kMostRecordBytes) throw Error("what all ranks say is too long for one message");
    const int to = t_.circle_[(me_ + count_ - step_) % count_];
    t_.world_->check(t_.world_->api().isend(memory_->out.data(), static_cast<int64_t>(memory_->out.size()), to,
                                            kRelayed, t_.comm_, &requests_[1]),
                     "MPI_Isend");
  }

  void find() {
    int32_t flag = 0;
    Found found;
    t_.world_->check(t_.world_->api().find(source(), kRelayed, t_.comm_, &flag, &found), "MPI_Improbe");
    if (flag == 0) return;
    found_ = true;
    memory_->in.resize(static_cast<size_t>(found.bytes));
    t_.world_->check(t_.world_->api().irecv_found(memory_->in.data(), found.bytes, &found, &requests_[0]),
                     "MPI_Imrecv");
  }

  void take() {
    std::span<const std::byte> rest(memory_->in);
    for (size_t i = 0; i < known(); ++i) {
      const int r = t_.circle_[(me_ + step_ + i) % count_];
      Head head;
      if (rest.size() >= sizeof(head)) std::memcpy(&head, rest.data(), sizeof(head));
      if (rest.size() < sizeof(head) || rest.size() - sizeof(head) < head.bytes) {
        throw Error(fmt::format("rank {}'s record is damaged", r));
      }
      Peer& from = t_.peers_[static_cast<size_t>(r)];
      const auto record = rest.first(sizeof(head) + head.bytes);
      from.rest.assign(record.begin(), record.end());
      from.note_call(head.call);
      from.note_came(true);
      rest = rest.subspan(record.size());
    }
  }

  MpiTransport& t_;
  const size_t count_, me_;
  size_t step_ = 1;
  bool found_ = false;
  std::shared_ptr<Memory> memory_;
  RequestHandle requests_[2] = {0, 0};  // what comes, and what goes
  World::Over over_;
};

// Two words to one rank, and two from another.
class MpiTransport::Ballot {
 public:
  Ballot(MpiTransport& transport, int to, int from, uint64_t least, uint64_t most)
      : world_(*transport.world_), from_(from), words_(std::make_shared<std::array<uint64_t, 4>>()) {
    *words_ = {least, most, 0, 0};
    world_.check(world_.api().irecv(words_->data() + 2, kBytes, from, kVote, transport.comm_, &requests_[0]),
                 "MPI_Irecv");
    world_.check(world_.api().isend(words_->data(), kBytes, to, kVote, transport.comm_, &requests_[1]), "MPI_Isend");
  }
  ~Ballot() {
    if (requests_[0] != 0) world_.api().cancel(requests_[0]);
    for (const RequestHandle request : requests_) {
      if (request != 0) world_.keep(request, words_);
    }
  }
  Ballot(const Ballot&) = delete;
  bool progress() {
    world_.check(world_.test_some(requests_, over_), "MPI_Testsome");
    for (size_t i = 0; i < over_.count; ++i) {
      if (over_.which[i] == 0) check_length(from_, over_.bytes[i], kBytes);
    }
    return requests_[0] == 0 && requests_[1] == 0;
  }
  uint64_t least() const { return std::min((*words_)[0], (*words_)[2]); }
  uint64_t most() const { return std::max((*words_)[1], (*words_)[3]); }

 private:
  static constexpr int64_t kBytes = 2 * sizeof(uint64_t);
  World& world_;
  const int from_;
  std::shared_ptr<std::array<uint64_t, 4>> words_;
  RequestHandle requests_[2] = {0, 0};
  World::Over over_;
};

bool MpiTransport::vote(uint64_t mine, Deadline deadline) {
  const size_t count = circle_.size(), me = own_place();
  uint64_t least = mine, most = mine;
  for (size_t step = 1; step < count; step *= 2) {
    const int from = circle_[(me + count - step) % count];
    Ballot ballot(*this, circle_[(me + step) % count], from, least, most);
    with_roll_call([&] { await([&] { return ballot.progress(); }, [&] { return from; }, deadline); });
    least = ballot.least();
    most = ballot.most();
  }
  return least == most && least != 0;
}

// Who waits in vain knows of one rank only that it has not come, and that one may wait for another. All who wait say so.
void MpiTransport::call_the_roll() {
  tell("h" + std::to_string(call_of(rank_)));
  const auto end = Clock::now() + kRollTime;
  for (Patience patience; Clock::now() < end; patience.pause()) listen();
}

// Runs fn, which throws PeerTrouble; of ranks that did not come in time, one that others miss as well.
template <class Fn>
void MpiTransport::with_roll_call(Fn&& fn) {
  try {
    fn();
  } catch (const PeerTrouble& trouble) {
    if (trouble.kind != PeerTrouble::timed_out) throw;
    call_the_roll();
    const auto missing = std::find_if(circle_.begin(), circle_.end(), [&](int r) { return !has_come(r); });
    throw PeerTrouble{PeerTrouble::timed_out, missing == circle_.end() ? trouble.rank : *missing};
  }
}

// As others get it.
void MpiTransport::put_down(const Saying& mine, uint64_t call) {
  const Head head{call, mine.bytes.size()};
  said_.resize(sizeof(head) + mine.bytes.size());
  std::byte* at = said_.data();
  const auto put = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(at, bytes.data(), bytes.size());
    at += bytes.size();
  };
  put(std::as_bytes(std::span(&head, 1)));
  if (mine.payload.empty()) return put(mine.bytes);
  put(mine.bytes.first(mine.payload_at));
  put(mine.payload);
  put(mine.bytes.subspan(mine.payload_at + mine.payload.size()));
}

void MpiTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                            Deadline deadline) {
  world_->check_thread();
  peers_[static_cast<size_t>(rank_)].note_call(call);
  // What others said before they gave this call up is there: without this it would succeed here and fail there.
  listen();
  if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
  look_in(Moment::before_announce);
  put_down(mine, call);
  for (const int r : circle_) peers_[static_cast<size_t>(r)].note_came(false);
  records.assign(static_cast<size_t>(size_), {});
  if (votes()) {
    if (mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
    if (!vote(mine.elements ? 0 : mine.version, deadline)) return relay(records, deadline);
    for (const int r : circle_) {
      peers_[static_cast<size_t>(r)].note_came(true);
      peers_[static_cast<size_t>(r)].note_call(call);
    }
    records[static_cast<size_t>(rank_)] = std::span<const std::byte>(said_).subspan(sizeof(Head));
    return;
  }
  Records exchange(*this);
  if (circle_.size() > 1) exchange.post();
  if (mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
  await([&] { return exchange.progress(); }, [&] { return exchange.first_missing(); }, deadline);
  for (const int r : circle_) {
    const Peer& peer = peers_[static_cast<size_t>(r)];
    std::span<const std::byte> bytes = r == rank_ ? std::span<const std::byte>(said_) : peer.first;
    Head of;
    std::memcpy(&of, bytes.data(), sizeof(of));
    const bool in_one = r == rank_ || sizeof(of) + of.bytes <= kFirstBytes;
    records[static_cast<size_t>(r)] =
        in_one ? bytes.subspan(sizeof(of), of.bytes) : std::span<const std::byte>(peer.rest);
  }
}

void MpiTransport::relay(std::vector<std::span<const std::byte>>& records, Deadline deadline) {
  for (const int r : circle_) peers_[static_cast<size_t>(r)].note_came(false);
  Relay relay(*this);
  with_roll_call([&] { await([&] { return relay.progress(); }, [&] { return relay.source(); }, deadline); });
  for (const int r : circle_) {
    const std::span<const std::byte> record = r == rank_ ? said_ : peers_[static_cast<size_t>(r)].rest;
    records[static_cast<size_t>(r)] = record.subspan(sizeof(Head));
  }
}

}  // namespace tessera::mpi
