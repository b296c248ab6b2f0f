#include "transport/mpi/hosted.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "comm/fiber.hpp"
#include "comm/statement.hpp"
#include "transport/mpi/share.hpp"

namespace tessera::mpi {
namespace {

// With messages of MPI's pending, waiting for the host looks after them; without, it listens for an abort now and then.
constexpr auto kBusyNap = std::chrono::microseconds(100);
constexpr auto kIdleNap = std::chrono::milliseconds(20);

void append_words(std::vector<std::byte>& bytes, std::initializer_list<uint64_t> words) {
  const auto from = std::as_bytes(std::span(words.begin(), words.size()));
  bytes.insert(bytes.end(), from.begin(), from.end());
}

void append_whole(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
  bytes.resize((bytes.size() + 7) / 8 * 8);
}

// Takes what append_words() and append_whole() wrote.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t word() {
    uint64_t word = 0;
    std::memcpy(&word, take(sizeof(word)).data(), sizeof(word));
    return word;
  }
  std::span<const std::byte> whole(uint64_t size) {
    const auto taken = take(size);
    bytes_ = bytes_.subspan(std::min((8 - size % 8) % 8, bytes_.size()));
    return taken;
  }

 private:
  std::span<const std::byte> take(uint64_t size) {
    if (size > bytes_.size()) throw Error("what another host says makes no sense: it is damaged");
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::byte> bytes_;
};

template <class T>
std::unique_ptr<T> as(std::unique_ptr<Transport> transport) {
  return std::unique_ptr<T>(static_cast<T*>(transport.release()));
}

}  // namespace

HostedTransport::HostedTransport(std::shared_ptr<World> world, std::unique_ptr<MpiTransport> wide,
                                 std::unique_ptr<BoardTransport> host, std::unique_ptr<BoardTransport> relay,
                                 Hosts hosts)
    : Transport(wide->watched()),
      world_(std::move(world)),
      wide_(std::move(wide)),
      host_(std::move(host)),
      relay_(std::move(relay)),
      network_{std::move(hosts), wide_->network()->prices},
      hosts_(network_.hosts),
      host_number_(hosts_.host_of(wide_->rank())),
      calls_(static_cast<size_t>(hosts_.ranks())) {
  wide_->set_circle(hosts_.first_ranks());
  for (BoardTransport* board : {host_.get(), relay_.get()}) {
    board->set_idle([this] { return idle(); });
  }
}

template <class Fn>
auto HostedTransport::on_host(Fn&& fn) const {
  try {
    return fn();
  } catch (const PeerTrouble& trouble) {
    throw PeerTrouble{trouble.kind, hosts_.ranks_on(host_number_)[static_cast<size_t>(trouble.rank)]};
  }
}

template <class Fn>
void HostedTransport::with_roll_call(Fn&& fn) {
  try {
    on_host(fn);
  } catch (const PeerTrouble& trouble) {
    if (trouble.kind != PeerTrouble::timed_out) throw;
    throw wide_->ask_around(trouble.rank);
  }
}

// For whom of its host this rank waits, if for any.
int HostedTransport::awaited_here() const {
  for (const BoardTransport* board : {host_.get(), relay_.get()}) {
    for (int place = 0; place < board->size(); ++place) {
      if (!board->has_come(place)) return hosts_.ranks_on(host_number_)[static_cast<size_t>(place)];
    }
  }
  return -1;
}

// An error of a message is its own waiter's, who will find it again. A call that goes on with its thread, and so has paused,
// sleeps nowhere; but it hears of other hosts here like any other.
std::chrono::nanoseconds HostedTransport::idle() noexcept {
  const bool paused = let_others_go_on();
  const std::chrono::nanoseconds idle = paused ? std::chrono::nanoseconds() : kIdleNap;
  if (!world_->may_call()) return idle;
  try {
    wide_->listen(awaited_here());
    if (wide_->aborted() && !host_->aborted()) abort({});
    const bool busy = world_->help_all() || FiberQueue::any_here();
    return busy && !paused ? std::chrono::nanoseconds(kBusyNap) : idle;
  } catch (...) {
    return idle;
  }
}

void HostedTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                               Deadline deadline) {
  call_ = call;
  look_in(Moment::before_announce);
  if (is_alone()) return host_->exchange(mine, call, records, deadline);
  world_->check_thread();
  wide_->begin(call);
  with_roll_call([&] { host_->exchange(mine, call, here_, deadline); });
  others_.clear();
  if (leads()) ask_other_hosts(call, deadline);
  with_roll_call([&] { relay_->exchange(Saying(others_), call, relayed_, deadline); });
  // It must outlive what the relay says later.
  if (!leads()) others_.assign(relayed_[0].begin(), relayed_[0].end());
  records.assign(static_cast<size_t>(size()), {});
  Unpacker all(others_);
  for (int h = 0; h < hosts_.count(); ++h) {
    if (h != host_number_) unpack(h, all.whole(all.word()), records);
  }
  for (size_t i = 0; i < here_.size(); ++i) {
    records[static_cast<size_t>(hosts_.ranks_on(host_number_)[i])] = here_[i];
  }
}

// What all ranks of this host said. A host repeats a call where all its ranks do.
Saying HostedTransport::bundled() {
  bundle_.clear();
  uint64_t version = version_of(here_[0]);
  for (size_t i = 0; i < here_.size(); ++i) {
    append_words(bundle_, {host_->call_of(static_cast<int>(i)), here_[i].size()});
    append_whole(bundle_, here_[i]);
    if (version_of(here_[i]) != version || changed_part(here_[i]).payload_bytes > 0) version = 0;
  }
  Saying saying(bundle_, bundle_.size(), version);
  saying.elements = version == 0;
  return saying;
}

// In one piece, and what the other hosts say comes back; nothing where all have voted.
void HostedTransport::ask_other_hosts(uint64_t call, Deadline deadline) {
  wide_->exchange(bundled(), call, bundles_, deadline);
  for (int h = 0; h < hosts_.count(); ++h) {
    if (h == host_number_) continue;
    const auto bundle = bundles_[static_cast<size_t>(hosts_.first_of(h))];
    append_words(others_, {bundle.size()});
    append_whole(others_, bundle);
  }
}

void HostedTransport::unpack(int host, std::span<const std::byte> bundle,
                             std::vector<std::span<const std::byte>>& records) {
  Unpacker ranks(bundle);
  for (const int r : hosts_.ranks_on(host)) {
    calls_[static_cast<size_t>(r)] = bundle.empty() ? call_ : ranks.word();
    if (bundle.empty()) continue;
    records[static_cast<size_t>(r)] = ranks.whole(ranks.word());
  }
}

void HostedTransport::run(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline deadline) {
  look_in(Moment::before_copy);
  look_in(Moment::during_copy);
  if (is_alone()) {
    host_->run(move, mine, peers, deadline);
    bytes_within_ += bytes_from_others(move, mine, rank());
  } else {
    world_->check_thread();
    if (move.shares_wishes) run_shared(move, mine, peers, deadline);
    else run_apart(move, mine, peers, deadline);
  }
  look_in(Moment::after_copy);
  look_in(Moment::before_leave);
}

void HostedTransport::run_shared(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                                 Deadline deadline) {
  Sharing sharing(hosts_, rank(), move, mine, peers);
  with_roll_call([&] {
    const auto wishes = sharing.wishes([&](const Tensor& tensor) { return relay_->handle_of(tensor, Use::written); });
    relay_->exchange(Saying(std::as_bytes(wishes)), call_, relayed_, deadline);
  });
  sharing.hear(relayed_);
  move_across(sharing, peers, deadline);
}

// Each for itself: so what was worked out the first time holds for the next.
void HostedTransport::run_apart(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                                Deadline deadline) {
  auto& prepared = move.prepared.what;
  if (prepared == nullptr) prepared = std::make_shared<Sharing>(hosts_, rank(), move, mine, peers);
  else static_cast<Sharing*>(prepared.get())->hold(mine);
  Sharing& sharing = *static_cast<Sharing*>(prepared.get());
  const struct Ending {
    Sharing& sharing;
    ~Ending() { sharing.let_go(); }
  } ending{sharing};
  move_across(sharing, peers, deadline);
}

// What came is read by others of this host in a later round, if at all: so there is a step behind it.
void HostedTransport::move_across(const Sharing& sharing, const PeerTensors& peers, Deadline deadline) {
  const auto near = [&] {
    with_roll_call([&] { host_->run(sharing.near(), sharing.tensors(), sharing.near_peers(), deadline); });
  };
  wide_->move(sharing.across(), sharing.tensors(), peers, deadline, near);
  with_roll_call([&] { host_->run({}, {}, {}, deadline); });
  bytes_within_ += sharing.bytes_within();
  if (!sharing.relays()) return;
  with_roll_call([&] {
    relay_->run({}, sharing.tensors(), sharing.relay_peers(), deadline);  // a step: this rank's parts are there
    relay_->run(sharing.relay(), sharing.tensors(), sharing.relay_peers(), deadline);
  });
}

// Between hosts and within one alike, as a receive may not know where its message comes from.
std::unique_ptr<Ticket> HostedTransport::post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) {
  return is_alone() ? host_->post_send(tensor, to, tag, site) : wide_->post_send(tensor, to, tag, site);
}

std::unique_ptr<Ticket> HostedTransport::post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                                      bool started) {
  return is_alone() ? host_->post_receive(out, from, tag, site, started)
                    : wide_->post_receive(out, from, tag, site, started);
}

void HostedTransport::leave(const std::string& farewell) noexcept {
  wide_->leave(farewell);
  host_->leave(farewell);
  relay_->leave(farewell);
}

// Of one host all hear it there, whichever thread this is. What was heard there first is what other hosts are told, too.
Verdict HostedTransport::abort(const Verdict& verdict) noexcept {
  Verdict first = host_->aborted() ? host_->abort(verdict) : verdict;
  if (is_alone()) world_->give_up();
  else first = wide_->abort(first);
  first = host_->abort(first);
  relay_->abort(first);
  return first;
}

bool HostedTransport::aborted() const { return host_->aborted() || relay_->aborted() || wide_->aborted(); }

uint64_t HostedTransport::call_of(int peer) const {
  if (is_here(peer)) return host_->call_of(hosts_.place_of(peer));
  return std::max(calls_[static_cast<size_t>(peer)].load(), wide_->call_of(peer));
}

// Of other hosts only the rank that asks them knows.
bool HostedTransport::has_come(int peer) const {
  if (is_here(peer)) return host_->has_come(hosts_.place_of(peer));
  return !leads() || wide_->has_answered(peer) || wide_->has_said(hosts_.first_of(hosts_.host_of(peer)));
}

bool HostedTransport::has_left(int peer) const {
  return is_here(peer) ? host_->has_left(hosts_.place_of(peer)) : wide_->has_left(peer);
}

std::string HostedTransport::farewell(int peer) const {
  return is_here(peer) ? host_->farewell(hosts_.place_of(peer)) : wide_->farewell(peer);
}

// Of one host any thread may call all but this, which is a call of MPI's: where one rank must not, none does.
void HostedTransport::check_threads(Deadline deadline) {
  const std::byte may_call{world_->may_call()};
  with_roll_call([&] { relay_->exchange(Saying({&may_call, 1}), call_, relayed_, deadline); });
  for (size_t i = 0; i < relayed_.size(); ++i) {
    if (relayed_[i].size() == 1 && relayed_[i][0] == std::byte{1}) continue;
    throw Error(fmt::format(
        "rank {} splits the communicator on another thread than the one that initialised MPI, and MPI is for that "
        "thread only: call it there, or use MPI_THREAD_MULTIPLE. No rank has split it",
        hosts_.ranks_on(host_number_)[i]));
  }
}

// What one host has no memory for fails on all.
void HostedTransport::check_no_trouble(const std::string& mine, Deadline deadline) {
  const auto text_of = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const auto tell_host = [&](const std::string& text) {
    with_roll_call([&] { relay_->exchange(Saying(std::as_bytes(std::span(text))), call_, relayed_, deadline); });
  };
  tell_host(mine);
  std::string first;
  for (size_t i = 0; i < relayed_.size() && first.empty(); ++i) {
    if (relayed_[i].empty()) continue;
    first = fmt::format("on the host of rank {}, which counts from 0: {}. No rank has split it",
                        hosts_.ranks_on(host_number_)[i], text_of(relayed_[i]));
  }
  if (!is_alone() && leads()) {
    const std::string here = first;
    wide_->exchange(Saying(std::as_bytes(std::span(here))), call_, bundles_, deadline);
    first.clear();
    for (int h = 0; h < hosts_.count() && first.empty(); ++h) {
      first = text_of(bundles_[static_cast<size_t>(hosts_.first_of(h))]);
    }
  }
  tell_host(first);
  if (!relayed_[0].empty()) throw Error(text_of(relayed_[0]));
}

std::unique_ptr<Transport> HostedTransport::subgroup(uint64_t id, std::span<const int> members, Deadline deadline) {
  std::vector<int> here;
  for (const int member : members) {
    if (is_here(member)) here.push_back(hosts_.place_of(member));
  }
  check_threads(deadline);
  auto wide = wide_->subgroup(id, members, deadline);
  std::string trouble;
  // Both are asked whatever the first says, as the peers ask both too.
  const auto part_of = [&](BoardTransport& board) -> std::unique_ptr<Transport> {
    try {
      return on_host([&] { return board.subgroup(id, here, deadline); });
    } catch (const std::exception& error) {
      if (trouble != error.what()) trouble += (trouble.empty() ? "" : "; ") + std::string(error.what());
      return nullptr;
    }
  };
  auto host = part_of(*host_);
  auto relay = part_of(*relay_);
  check_no_trouble(trouble, deadline);
  if (members.empty()) return nullptr;
  return std::make_unique<HostedTransport>(world_, as<MpiTransport>(std::move(wide)),
                                           as<BoardTransport>(std::move(host)), as<BoardTransport>(std::move(relay)),
                                           hosts_.among(members));
}

Transport::Traffic HostedTransport::traffic() const {
  Traffic all = host_->traffic();
  const Traffic relayed = relay_->traffic();
  all.bytes_attached += relayed.bytes_attached;
  all.bytes_staged += relayed.bytes_staged;
  all.heap_misses += relayed.heap_misses;
  const Traffic wide = wide_->traffic();
  all.bytes_between_hosts = wide.bytes_between_hosts;
  all.bytes_within_host = wide.bytes_within_host + bytes_within_;
  return all;
}

}  // namespace tessera::mpi
