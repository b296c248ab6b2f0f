#include "transport/mpi/mpi.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include <tessera/collective.hpp>

#include "tensor/copy.hpp"
#include "tensor/strided.hpp"
#include "transport/mpi/flow.hpp"
#include "transport/mpi/mail.hpp"

namespace tessera::mpi {
namespace {

constexpr size_t kFirstBytes = 4096;  // of a record, with its head: few are longer
constexpr uint64_t kMostRecordBytes = uint64_t{1} << 30;

// How long a rank that was told of an end still waits for what was said before it.
constexpr auto kGrace = std::chrono::milliseconds(100);
// How long one who has waited in vain hears who else has.
constexpr auto kRollTime = std::chrono::milliseconds(200);

// Below, telling everybody everything takes no longer than a vote: as many messages at once against as many rounds.
constexpr size_t kFewestVoters = 32;

size_t voters_from_environment() {
  const char* text = std::getenv("TESSERA_VOTE_FROM");
  if (text == nullptr) return kFewestVoters;
  size_t count = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, count).ptr != end || count < 2) {
    throw Error(fmt::format("TESSERA_VOTE_FROM is \"{:.40}\", not a number of ranks from 2 on", text));
  }
  return count;
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<World> world, CommHandle comm, Probe probe)
    : Transport(probe != nullptr),
      world_(std::move(world)),
      comm_(comm),
      probe_(std::move(probe)),
      voters_(voters_from_environment()) {
  world_->check(world_->api().rank_and_size(comm_, &rank_, &size_), "MPI_Comm_rank");
  peers_ = std::vector<Peer>(static_cast<size_t>(size_));
  circle_.resize(static_cast<size_t>(size_));
  std::iota(circle_.begin(), circle_.end(), 0);
  mail_ = std::make_unique<Mail>(*world_, comm_, rank_, [this](int peer) { return has_gone(peer); });
}

// Whether a message to or from it makes no sense any more.
bool MpiTransport::has_gone(int peer) const {
  if (dead_) return true;
  if (peer != tessera::kAnySource) return has_left(peer);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && !has_left(r)) return false;
  }
  return size_ > 1;
}

MpiTransport::~MpiTransport() {
  leave("its Comm was destroyed");
  mail_.reset();
  std::vector<bool> left;
  for (int r = 0; r < size_; ++r) left.push_back(r == rank_ || has_left(r));
  world_->bury(comm_, std::move(left));
  world_->tidy();
}

size_t MpiTransport::own_place() const {
  return static_cast<size_t>(std::find(circle_.begin(), circle_.end(), rank_) - circle_.begin());
}

// Records go from everyone to everyone: so each rank knows who has come.
class MpiTransport::Records {
 public:
  explicit Records(MpiTransport& transport) : t_(transport), api_(t_.world_->api()) {}
  ~Records() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == 0) continue;
      // A buffer that MPI may still write to is the world's now, and a new one the next time's.
      const int peer = peers_[i];
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
    int32_t done = 0;
    which_.resize(requests_.size());
    t_.world_->check(api_.test_some(static_cast<int32_t>(requests_.size()), requests_.data(), &done, which_.data()),
                     "MPI_Testsome");
    for (int32_t i = 0; i < done; ++i) arrive(static_cast<size_t>(which_[static_cast<size_t>(i)]));
    over_ += done;
    return over_ == static_cast<int64_t>(requests_.size());
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
    peers_.push_back(peer);
    is_rest_.push_back(is_rest);
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

  void arrive(size_t i) {
    if (peers_[i] < 0) return;
    Peer& from = t_.peers_[static_cast<size_t>(peers_[i])];
    Head head;
    std::memcpy(&head, from.first.data(), sizeof(head));
    if (head.bytes > kMostRecordBytes) throw Error(fmt::format("rank {}'s record is damaged", peers_[i]));
    if (!is_rest_[i]) from.call = head.call;
    const size_t all = sizeof(head) + head.bytes;
    if (is_rest_[i] || all <= kFirstBytes) {
      from.came = true;
      return;
    }
    from.rest.resize(head.bytes);
    std::memcpy(from.rest.data(), from.first.data() + sizeof(head), kFirstBytes - sizeof(head));
    receive(peers_[i], kRest, from.rest.data() + (kFirstBytes - sizeof(head)), all - kFirstBytes);
  }

  MpiTransport& t_;
  const Api& api_;
  std::vector<RequestHandle> requests_;
  std::vector<int> peers_;  // from whom; -1: a send
  std::vector<bool> is_rest_;
  std::vector<int32_t> which_;
  int64_t over_ = 0;
  std::shared_ptr<std::vector<std::byte>> kept_;
};

// Two words to one rank, and two from another.
class MpiTransport::Ballot {
 public:
  Ballot(MpiTransport& transport, int to, int from, uint64_t least, uint64_t most)
      : world_(*transport.world_), words_(std::make_shared<std::array<uint64_t, 4>>()) {
    *words_ = {least, most, 0, 0};
    constexpr int64_t kBytes = 2 * sizeof(uint64_t);
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
    int32_t done = 0, which[2] = {};
    world_.check(world_.api().test_some(2, requests_, &done, which), "MPI_Testsome");
    return requests_[0] == 0 && requests_[1] == 0;
  }
  uint64_t least() const { return std::min((*words_)[0], (*words_)[2]); }
  uint64_t most() const { return std::max((*words_)[1], (*words_)[3]); }

 private:
  World& world_;
  std::shared_ptr<std::array<uint64_t, 4>> words_;
  RequestHandle requests_[2] = {0, 0};
};

bool MpiTransport::vote(uint64_t mine, Deadline deadline) {
  const size_t count = circle_.size(), me = own_place();
  uint64_t least = mine, most = mine;
  for (size_t step = 1; step < count; step *= 2) {
    const int from = circle_[(me + count - step) % count];
    Ballot ballot(*this, circle_[(me + step) % count], from, least, most);
    try {
      await([&] { return ballot.progress(); }, [&] { return from; }, deadline);
    } catch (const PeerTrouble& trouble) {
      if (trouble.kind != PeerTrouble::timed_out) throw;
      call_the_roll();
      const auto missing = std::find_if(circle_.begin(), circle_.end(), [&](int r) { return !has_come(r); });
      throw PeerTrouble{PeerTrouble::timed_out, missing == circle_.end() ? from : *missing};
    }
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

// Waits until done(), and else throws: missing() is whom it waits for.
template <class Done, class Missing>
void MpiTransport::await(Done&& done, Missing&& missing, Deadline deadline) {
  Deadline grace = Deadline::max();
  for (Patience patience(*world_, comm_); !done(); patience.pause()) {
    if (!patience.should_look_around()) continue;
    const auto now = Clock::now();
    patience.heed_hook(now);
    listen();
    world_->help_all();
    // A rank that left may have said its part before.
    const int peer = missing();
    const bool over = dead_ || (peer != rank_ && has_left(peer));
    if (over && grace == Deadline::max()) grace = now + kGrace;
    if (over && now >= grace) throw PeerTrouble{PeerTrouble::closed, peer};
    if (now >= deadline) throw PeerTrouble{PeerTrouble::timed_out, peer};
  }
  if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
}

void MpiTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                            Deadline deadline) {
  world_->check_thread();
  peers_[static_cast<size_t>(rank_)].call = call;
  // What others said before they gave this call up is there: without this it would succeed here and fail there.
  listen();
  if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
  look_in(Moment::before_announce);
  if (mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
  const Head head{call, mine.bytes.size()};
  said_.resize(sizeof(head) + mine.bytes.size());
  std::memcpy(said_.data(), &head, sizeof(head));
  if (!mine.bytes.empty()) std::memcpy(said_.data() + sizeof(head), mine.bytes.data(), mine.bytes.size());
  for (const int r : circle_) peers_[static_cast<size_t>(r)].came = false;
  records.assign(static_cast<size_t>(size_), {});
  if (votes() && vote(mine.elements ? 0 : mine.version, deadline)) {
    for (const int r : circle_) {
      peers_[static_cast<size_t>(r)].came = true;
      peers_[static_cast<size_t>(r)].call = call;
    }
    records[static_cast<size_t>(rank_)] = std::span<const std::byte>(said_).subspan(sizeof(head));
    return;
  }
  Records exchange(*this);
  if (circle_.size() > 1) exchange.post();
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

void MpiTransport::run(const Move& plan, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) {
  look_in(Moment::before_copy);
  look_in(Moment::during_copy);
  move(plan, mine, peers, deadline, [] {});
  look_in(Moment::after_copy);
  look_in(Moment::before_leave);
}

void MpiTransport::move(const Move& plan, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline,
                        const std::function<void()>& meanwhile) {
  world_->check_thread();
  Flow flow(*world_, comm_, rank_, plan, mine, peers);
  flow.start();
  meanwhile();
  flow.do_local();
  int64_t taken = 0;
  Deadline grace = Deadline::max();
  for (Patience patience(*world_, comm_); !flow.progress(); patience.pause()) {
    if (!patience.should_look_around()) continue;
    listen();
    world_->help_all();
    const auto now = Clock::now();
    patience.heed_hook(now);
    const int peer = flow.waits_for();
    // What a rank sent before it left is on its way: only when nothing comes any more is it lost.
    if (!has_left(peer) || flow.taken() != taken) grace = now + kGrace;
    taken = flow.taken();
    if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
    if (now >= grace) throw PeerTrouble{PeerTrouble::closed, peer};
    if (now >= deadline) throw PeerTrouble{PeerTrouble::timed_out, peer};
  }
  bytes_between_ += flow.bytes_received();
}

// One call of MPI's. What does not lie in one piece goes through memory of our own.
void MpiTransport::gather_trusted(const Tensor& x, const Tensor& out, size_t dim, const Sizes& sizes) {
  world_->check_thread();
  const bool in_order = out.is_contiguous() && volume(Dims(std::span(out.shape().data(), dim))) == 1;
  const Tensor mine = x.is_contiguous() && !may_overlap(x, out) ? x : x.clone();
  const Tensor arrived = in_order ? out : Tensor::empty(out.dtype(), {out.elements()});
  Sizes places;
  for (int64_t at = 0; const int64_t size : sizes) {
    places.push_back(at);
    at += size;
  }
  const int64_t row = out.shape()[dim] == 0 ? 0 : out.elements() / out.shape()[dim];
  world_->check(world_->api().all_gather_v(mine.data(), arrived.data(), sizes.data(), places.data(),
                                           row * size_bytes(out.dtype()), rank_, size_, comm_),
                "MPI_Allgatherv");
  bytes_between_ += out.bytes() - x.bytes();
  for (size_t r = 0; !in_order && r < sizes.size(); ++r) {
    Box box = Box::whole(out.shape());
    box.offset[dim] = places[r];
    box.extent[dim] = sizes[r];
    const std::byte* from = arrived.data() + places[r] * row * size_bytes(out.dtype());
    copy_box(view_of(out).box(box), {from, out.dtype(), box.extent, row_major(box.extent)}, out.bytes());
  }
}

void MpiTransport::listen() noexcept {
  std::lock_guard lock(guard_);
  for (Control control; next_control(*world_, comm_, control);) {
    Peer& from = peers_[static_cast<size_t>(control.from)];
    if (control.text.starts_with("l")) {
      from.farewell = control.text.substr(1);
      from.left = true;
    } else if (control.text.starts_with("h")) {
      from.call = std::strtoull(control.text.c_str() + 1, nullptr, 10);
      if (from.call >= call_of(rank_)) from.came = true;
    } else if (control.text.starts_with("a") && control.text.size() > 1 && !dead_) {
      verdict_ = {static_cast<uint32_t>(static_cast<unsigned char>(control.text[1])), control.text.substr(2)};
      dead_ = true;
      world_->give_up();
    }
  }
  for (int peer = next_lost(*world_, comm_); peer >= 0; peer = next_lost(*world_, comm_)) {
    Peer& lost = peers_[static_cast<size_t>(peer)];
    if (!lost.left) lost.farewell = "its process is gone, or out of reach";
    lost.left = true;
  }
}

void MpiTransport::tell(const std::string& text) noexcept {
  for (int i = 1; i < size_; ++i) {
    world_->send_text(comm_, (rank_ + i) % size_, kControl, text.substr(0, kMostControlBytes));
  }
}

std::unique_ptr<Ticket> MpiTransport::post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) {
  world_->check_thread();
  return std::make_unique<MailTicket>(*mail_, mail_->send(tensor, to, tag, site), [this] { listen(); });
}

std::unique_ptr<Ticket> MpiTransport::post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                                   bool) {
  world_->check_thread();
  return std::make_unique<MailTicket>(*mail_, mail_->receive(out, from, tag, site), [this] { listen(); });
}

void MpiTransport::leave(const std::string& farewell) noexcept {
  if (!std::exchange(gone_, true)) tell("l" + farewell);
}

Verdict MpiTransport::abort(const Verdict& verdict) noexcept {
  listen();
  {
    std::lock_guard lock(guard_);
    if (!dead_) {
      verdict_ = verdict;
      dead_ = true;
      world_->give_up();
      tell(std::string("a") + static_cast<char>(verdict.kind) + verdict.text);
    }
  }
  world_->tidy();
  std::lock_guard lock(guard_);
  return verdict_;
}

// Every rank has agreed to it just now.
std::unique_ptr<Transport> MpiTransport::subgroup(uint64_t, std::span<const int> members, Deadline) {
  world_->check_thread();
  world_->tidy();
  const bool in_one = !members.empty();
  const auto me = std::find(members.begin(), members.end(), rank_) - members.begin();
  CommHandle made = 0;
  world_->check(world_->api().split(comm_, in_one ? members[0] : -1, static_cast<int32_t>(me), &made),
                "MPI_Comm_split");
  return in_one ? std::make_unique<MpiTransport>(world_, made, probe_) : nullptr;
}

std::unique_ptr<Transport> MpiTransport::survivors(Deadline) {
  throw Error(
      "shrink() does not work between hosts: there is no communicator without the ranks that are lost. Start again");
}

}  // namespace tessera::mpi
