// How the ranks of an MPI tell each other what they say: each to all, in rounds, or by a vote.
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "transport/mpi/mpi.hpp"

namespace tessera::mpi {
namespace {

constexpr size_t kMostFirstBytes = size_t{1} << 20;  // of what is passed on in a round
constexpr uint64_t kMostRecordBytes = uint64_t{1} << 30;

// From so many on rounds take less time than a message to each: over TCP 37 us instead of 58 with 8 ranks, through shared
// memory 3.5 instead of 4.5.
constexpr size_t kFewestRelayed = 8;

constexpr int kLooksOfLate = 100;

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
      const size_t first = t_.first_bytes(t_.said_.size());
      send(peer, kRecord, t_.said_.data(), first);
      if (t_.said_.size() > first) send(peer, kRest, t_.said_.data() + first, t_.said_.size() - first);
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
      if (!t_.has_said(r)) return r;
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
    const size_t all = sizeof(head) + head.bytes, first = t_.first_bytes(all);
    check_length(peer, bytes, static_cast<int64_t>(is_rest ? all - first : first));
    if (!is_rest) from.note_call(head.call);
    if (is_rest || all == first) {
      from.note_came(true);
      return;
    }
    from.rest.resize(head.bytes);
    std::memcpy(from.rest.data(), from.first.data() + sizeof(head), first - sizeof(head));
    receive(peer, kRest, from.rest.data() + (first - sizeof(head)), all - first);
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
// it, in one message, and so gets as much again from twice as far. What comes is waited for in all rounds at once.
class MpiTransport::Relay {
 public:
  explicit Relay(MpiTransport& transport)
      : t_(transport),
        api_(t_.world_->api()),
        count_(t_.circle_.size()),
        me_(t_.own_place()),
        requests_(t_.posted_.requests),
        over_(t_.posted_.over) {
    for (size_t step = 1; step < count_; step *= 2) ++rounds_;
    if (t_.rounds_.size() < rounds_) t_.rounds_.resize(rounds_);
    requests_.assign(kSlots * rounds_, 0);
  }
  ~Relay() {
    for (size_t i = 0; i < rounds_; ++i) {
      RequestHandle* const slots = &requests_[kSlots * i];
      if (slots[0] == 0 && slots[1] == 0 && slots[2] == 0) continue;
      if (slots[0] != 0) api_.cancel(slots[0]);
      const auto memory = std::make_shared<Passed>(std::move(t_.rounds_[i]));
      for (size_t s = 0; s < kSlots; ++s) {
        if (slots[s] != 0) t_.world_->keep(slots[s], memory);
      }
      t_.rounds_[i] = {};
    }
  }
  Relay(const Relay&) = delete;

  void start() {
    t_.peers_[static_cast<size_t>(t_.rank_)].said = t_.said_;
    for (size_t i = 0; i < rounds_; ++i) {
      auto& [out, in, first_out, first_in] = t_.rounds_[i];
      if (in.size() < first_in) in.resize(first_in);
      receive(i, in.data(), first_in);
    }
    send();
  }

  // True: all have come, and all is sent.
  bool progress() {
    t_.world_->check(t_.world_->test_some(requests_, over_), "MPI_Testsome");
    for (size_t i = 0; i < over_.count; ++i) check_arrived(static_cast<size_t>(over_.which[i]), over_.bytes[i]);
    while (round_ < rounds_ && requests_[kSlots * round_] == 0) {
      if (!is_whole()) return false;
      take();
      ++round_;
      if (round_ < rounds_) send();
    }
    return round_ == rounds_ &&
           std::all_of(requests_.begin(), requests_.end(), [](RequestHandle request) { return request == 0; });
  }
  // For whom this rank waits.
  int source() const { return source_of(std::min(round_, rounds_ - 1)); }

 private:
  static constexpr size_t kSlots = 3;   // of a round: what comes, what goes, and its rest
  static constexpr size_t kAlign = 16;  // of each record, and of what says how long they are in all
  static size_t padded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  int source_of(size_t round) const { return t_.circle_[(me_ + (size_t{1} << round)) % count_]; }
  // So many of those behind this one have come before that round, itself among them; as many come in it.
  size_t known(size_t round) const { return std::min(size_t{1} << round, count_ - (size_t{1} << round)); }

  void receive(size_t round, std::byte* data, size_t bytes) {
    t_.world_->check(
        api_.irecv(data, static_cast<int64_t>(bytes), source_of(round), kRelayed, t_.comm_, &requests_[kSlots * round]),
        "MPI_Irecv");
  }

  void send() {
    auto& [out, in, first_out, first_in] = t_.rounds_[round_];
    out.assign(kAlign, std::byte{0});
    for (size_t i = 0; i < known(round_); ++i) {
      const auto record = t_.peers_[static_cast<size_t>(t_.circle_[(me_ + i) % count_])].said;
      out.insert(out.end(), record.begin(), record.end());
      out.resize(padded(out.size()));
    }
    if (out.size() > kMostRecordBytes) throw Error("what all ranks say is too long for one message");
    const uint64_t all = out.size();
    std::memcpy(out.data(), &all, sizeof(all));
    const int to = t_.circle_[(me_ + count_ - (size_t{1} << round_)) % count_];
    const auto post = [&](size_t slot, std::span<const std::byte> part) {
      t_.world_->check(api_.isend(part.data(), static_cast<int64_t>(part.size()), to, kRelayed, t_.comm_,
                                  &requests_[kSlots * round_ + slot]),
                       "MPI_Isend");
    };
    post(1, std::span(out).first(std::min(out.size(), first_out)));
    if (out.size() > first_out) post(2, std::span(out).subspan(first_out));
    first_out = first_of_next(out.size());
  }

  static size_t first_of_next(size_t bytes) { return std::clamp(bytes, kFirstBytes, kMostFirstBytes); }

  // Of what comes in a round, as it says itself.
  uint64_t length_of(size_t round) const {
    uint64_t all = 0;
    std::memcpy(&all, t_.rounds_[round].in.data(), sizeof(all));
    if (all < kAlign || all > kMostRecordBytes) {
      throw Error(fmt::format("rank {}'s record is damaged", source_of(round)));
    }
    return all;
  }

  void check_arrived(size_t request, int64_t bytes) const {
    if (request % kSlots != 0) return;
    const size_t round = request / kSlots;
    const uint64_t all = length_of(round);
    const size_t first = t_.rounds_[round].first_in;
    const uint64_t expected = round == rest_of_ ? all - first : std::min<uint64_t>(all, first);
    check_length(source_of(round), bytes, static_cast<int64_t>(expected));
  }

  // Whether all that comes in this round has; where it is long, asks for the rest.
  bool is_whole() {
    auto& [out, in, first_out, first_in] = t_.rounds_[round_];
    const uint64_t all = length_of(round_);
    if (all <= first_in || rest_of_ == round_) return true;
    rest_of_ = round_;
    if (in.size() < all) in.resize(all);
    receive(round_, in.data() + first_in, all - first_in);
    return false;
  }

  void take() {
    const uint64_t all = length_of(round_);
    t_.rounds_[round_].first_in = first_of_next(all);
    auto rest = std::span<const std::byte>(t_.rounds_[round_].in).first(all).subspan(kAlign);
    for (size_t i = 0; i < known(round_); ++i) {
      const int r = t_.circle_[(me_ + (size_t{1} << round_) + i) % count_];
      Head head;
      if (rest.size() >= sizeof(head)) std::memcpy(&head, rest.data(), sizeof(head));
      if (rest.size() < sizeof(head) || rest.size() - sizeof(head) < head.bytes) {
        throw Error(fmt::format("rank {}'s record is damaged", r));
      }
      Peer& from = t_.peers_[static_cast<size_t>(r)];
      from.said = rest.first(sizeof(head) + head.bytes);
      from.note_call(head.call);
      from.note_came(true);
      rest = rest.subspan(std::min(rest.size(), padded(from.said.size())));
    }
  }

  MpiTransport& t_;
  const Api& api_;
  const size_t count_, me_;
  size_t rounds_ = 0, round_ = 0;
  size_t rest_of_ = SIZE_MAX;  // the round whose rest was asked for
  std::vector<RequestHandle>& requests_;
  World::Over& over_;
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

// Two messages that MPI takes at once come sooner than one that it does not.
size_t MpiTransport::first_bytes(size_t all) const {
  const auto eager = static_cast<size_t>(around_.eager_bytes);
  return std::min(all > eager && all <= 2 * eager ? eager : all, kFirstBytes);
}

// What others said before they gave this call up is there: without this it would succeed here and fail there.
void MpiTransport::hear_end() {
  listen();
  if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
}

// One look takes in little of what has come, and who comes late may have missed much. How late is a matter of the kernel's
// ticks, which cost little to ask for. Before this rank says anything: nobody has ended a later call then.
void MpiTransport::hear_if_late() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const int64_t tick = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  if (std::exchange(last_tick_, tick) == tick) return;
  for (int i = 0; i < kLooksOfLate; ++i) hear_end();
}

void MpiTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                            Deadline deadline) {
  world_->check_thread();
  peers_[static_cast<size_t>(rank_)].note_call(call);
  look_in(Moment::before_announce);
  put_down(mine, call);
  for (const int r : circle_) peers_[static_cast<size_t>(r)].note_came(false);
  records.assign(static_cast<size_t>(size_), {});
  hear_if_late();
  if (votes()) {
    hear_end();
    if (mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
    if (!vote(mine.elements ? 0 : mine.version, deadline)) return relay(nullptr, records, deadline);
    for (const int r : circle_) {
      peers_[static_cast<size_t>(r)].note_came(true);
      peers_[static_cast<size_t>(r)].note_call(call);
    }
    records[static_cast<size_t>(rank_)] = std::span<const std::byte>(said_).subspan(sizeof(Head));
    return;
  }
  if (circle_.size() >= kFewestRelayed) return relay(mine.meanwhile, records, deadline);
  Records exchange(*this);
  if (circle_.size() > 1) exchange.post();
  hear_end();
  if (mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
  const auto wait = [&] {
    await([&] { return exchange.progress(); }, [&] { return exchange.first_missing(); }, deadline);
  };
  with_roll_call(wait, circle_.size() == peers_.size());
  for (const int r : circle_) {
    const Peer& peer = peers_[static_cast<size_t>(r)];
    std::span<const std::byte> bytes = r == rank_ ? std::span<const std::byte>(said_) : peer.first;
    Head of;
    std::memcpy(&of, bytes.data(), sizeof(of));
    const bool in_one = r == rank_ || sizeof(of) + of.bytes == first_bytes(sizeof(of) + of.bytes);
    records[static_cast<size_t>(r)] =
        in_one ? bytes.subspan(sizeof(of), of.bytes) : std::span<const std::byte>(peer.rest);
  }
}

void MpiTransport::relay(Meanwhile* meanwhile, std::vector<std::span<const std::byte>>& records, Deadline deadline) {
  for (const int r : circle_) peers_[static_cast<size_t>(r)].note_came(false);
  Relay relay(*this);
  relay.start();
  hear_end();
  if (meanwhile != nullptr) meanwhile->meanwhile();
  with_roll_call([&] { await([&] { return relay.progress(); }, [&] { return relay.source(); }, deadline); });
  for (const int r : circle_) {
    records[static_cast<size_t>(r)] = peers_[static_cast<size_t>(r)].said.subspan(sizeof(Head));
  }
}

}  // namespace tessera::mpi
