#include "transport/mpi/mpi.hpp"

#include <algorithm>
#include <exception>
#include <numeric>

#include <fmt/format.h>

#include <tessera/collective.hpp>

#include "tensor/copy.hpp"
#include "tensor/strided.hpp"
#include "transport/mpi/flow.hpp"
#include "transport/mpi/mail.hpp"
#include "transport/mpi/prices.hpp"

namespace tessera::mpi {
namespace {

// How long a rank that was told of an end still waits for what was said before it.
constexpr auto kGrace = std::chrono::milliseconds(100);

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<World> world, CommHandle comm, Probe probe)
    : Transport(probe != nullptr), world_(std::move(world)), comm_(comm), probe_(std::move(probe)) {
  world_->check(world_->api().rank_and_size(comm_, &rank_, &size_), "MPI_Comm_rank");
  peers_ = std::vector<Peer>(static_cast<size_t>(size_));
  circle_.resize(static_cast<size_t>(size_));
  std::iota(circle_.begin(), circle_.end(), 0);
  network_.hosts = around_.hosts = Hosts::apart(size_);
  mail_ = std::make_unique<Mail>(
      *world_, comm_, rank_, [this](int peer) { return has_gone(peer); },
      [this](int from, int64_t bytes) {
        if (around_.hosts.together(from, rank_)) count_received(0, bytes);
        else count_received(bytes, 0);
      });
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
  if (!abandoned_) world_->bury(comm_, std::move(left));
  world_->tidy();
}

// `grace`: until when it waits for one that has left, which may have said its part before.
void MpiTransport::look_around(Patience& patience, const std::function<int()>& missing, Deadline& grace,
                               Deadline deadline) {
  const auto now = Clock::now();
  patience.heed_hook(now);
  listen(missing());
  world_->help_all();
  const int peer = missing();
  const bool over = dead_ || (peer != rank_ && has_left(peer));
  if (over && grace == Deadline::max()) grace = now + kGrace;
  if (over && now >= grace) throw PeerTrouble{PeerTrouble::closed, peer};
  if (now >= deadline) throw PeerTrouble{PeerTrouble::timed_out, peer};
}

// Nothing tells whose part has come: one that left may have given its own before.
void MpiTransport::await_all(const std::function<bool()>& done, Deadline deadline) {
  for (Peer& peer : peers_) peer.note_came(false);
  with_roll_call([&] {
    await(
        done, [&] { return rank_; }, deadline);
  });
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
  auto& prepared = plan.prepared.what;
  if (prepared == nullptr)
    prepared = std::make_shared<Flow>(*world_, comm_, rank_, plan, mine, peers, around_.eager_bytes);
  Flow& flow = *static_cast<Flow*>(prepared.get());
  const struct Ending {
    Flow& flow;
    ~Ending() { flow.end(); }
  } ending{flow};
  flow.start(mine, peers);
  meanwhile();
  flow.do_local();
  int64_t taken = 0;
  Deadline grace = Deadline::max();
  for (Patience patience(*world_, comm_); !flow.progress(); patience.pause()) {
    if (!patience.should_look_around()) continue;
    const int peer = flow.waits_for();
    listen(peer);
    world_->help_all();
    const auto now = Clock::now();
    patience.heed_hook(now);
    // What a rank sent before it left is on its way: only when nothing comes any more is it lost.
    if (!has_left(peer) || flow.taken() != taken) grace = now + kGrace;
    taken = flow.taken();
    if (dead_) throw PeerTrouble{PeerTrouble::closed, rank_};
    if (now >= grace) throw PeerTrouble{PeerTrouble::closed, peer};
    if (now >= deadline) throw ask_around(peer);
  }
  int64_t between = 0, within = 0;
  flow.count_received(
      [&](int from, int64_t bytes) { (around_.hosts.together(from, rank_) ? within : between) += bytes; });
  count_received(between, within);
}

void MpiTransport::count_received(int64_t between, int64_t within) {
  if (between != 0) bytes_between_.fetch_add(between, std::memory_order_relaxed);
  if (within != 0) bytes_within_.fetch_add(within, std::memory_order_relaxed);
}

// In bytes where they can be counted so; else the unit is a row, as 2^31 of them are more than any memory.
void MpiTransport::prepare_trusted(TrustedRows& rows) const {
  const auto own = static_cast<size_t>(rank_);
  const int64_t all = rows.places.back() + rows.sizes.back();
  const bool in_bytes = rows.row_bytes == 0 || all <= INT32_MAX / rows.row_bytes;
  rows.unit_bytes = in_bytes ? 1 : rows.row_bytes;
  for (const Sizes* list : {&rows.sizes, &rows.places}) {
    for (const int64_t count : *list) {
      rows.counts.push_back(static_cast<int32_t>(count * rows.row_bytes / rows.unit_bytes));
    }
  }
  int64_t within = 0;
  for (const int r : around_.hosts.ranks_on(around_.hosts.host_of(rank_))) within += rows.sizes[static_cast<size_t>(r)];
  rows.bytes_between_hosts = (all - within) * rows.row_bytes;
  rows.bytes_within_host = (within - rows.sizes[own]) * rows.row_bytes;
  rows.heeds_deadline = around_.polls && world_->api().start_all_gather_v != nullptr;
}

// Slower than the blocking one, but others of this thread go on meanwhile, and it ends at the deadline.
void MpiTransport::gather_polled(const Tensor& x, const Tensor& out, const TrustedRows& rows, Deadline deadline) {
  const auto counts = std::make_shared<const std::vector<int32_t>>(rows.counts);
  RequestHandle request = 0;
  world_->check(world_->api().start_all_gather_v(x.data(), out.data(), counts->data(), counts->data() + size_,
                                                 rows.unit_bytes, rank_, comm_, &request),
                "MPI_Iallgatherv");
  World::Over over;
  const auto done = [&] {
    world_->check(world_->test_some({&request, 1}, over), "MPI_Iallgatherv");
    return request == 0;
  };
  // MPI cannot take it back, whoever ends it: the caller may interrupt it, too.
  const auto keep = [&] {
    if (request != 0) world_->keep(request, std::tuple(counts, x, out));
    return request != 0;
  };
  try {
    await_all(done, deadline);
  } catch (const PeerTrouble&) {
    if (keep()) throw;  // else it is over: what others have told of an end is of a later call
  } catch (...) {
    keep();
    throw;
  }
}

// One call of MPI's.
void MpiTransport::gather_rows(const Tensor& x, const Tensor& out, const TrustedRows& rows, Deadline deadline) {
  if (rows.heeds_deadline) return gather_polled(x, out, rows, deadline);
  const int32_t* const counts = rows.counts.data();
  world_->check(world_->api().all_gather_v(x.data(), out.data(), counts, counts + size_, rows.unit_bytes, rank_, comm_),
                "MPI_Allgatherv");
}

// What does not lie in one piece goes through memory of our own.
void MpiTransport::gather_pieces(const Tensor& x, bool x_in_order, const Tensor& out, const TrustedRows& rows,
                                 Deadline deadline) {
  const Tensor arrived = rows.out_in_order ? out : Tensor::empty(out.dtype(), {out.elements()});
  gather_rows(x_in_order ? x : x.clone(), arrived, rows, deadline);
  for (size_t r = 0; !rows.out_in_order && r < rows.sizes.size(); ++r) {
    Box box = Box::whole(out.shape());
    box.offset[rows.dim] = rows.places[r];
    box.extent[rows.dim] = rows.sizes[r];
    const std::byte* from = arrived.data() + rows.places[r] * rows.row_bytes;
    copy_box(view_of(out).box(box), {from, out.dtype(), box.extent, row_major(box.extent)}, out.bytes());
  }
}

void MpiTransport::gather_trusted(const Tensor& x, bool x_in_order, const Tensor& out, const TrustedRows& rows,
                                  uint64_t call, Deadline deadline) {
  peers_[static_cast<size_t>(rank_)].note_call(call);
  if (x_in_order && rows.out_in_order) gather_rows(x, out, rows, deadline);
  else gather_pieces(x, x_in_order, out, rows, deadline);
}

std::string MpiTransport::describe() const {
  std::string text = fmt::format("{}: {} rank{} on {} host{}", world_->api().library(), size_, size_ == 1 ? "" : "s",
                                 around_.hosts.count(), around_.hosts.count() == 1 ? "" : "s");
  if (size_ > 1 && around_.hosts.count() > 1) {
    text += "; between hosts " + mpi::describe(around_.prices);
    if (around_.eager_bytes > 0) text += fmt::format(", {} bytes are taken at once", around_.eager_bytes);
  }
  if (!around_.trouble.empty())
    text += fmt::format("; within a host by messages too, as memory cannot be shared ({})", around_.trouble);
  return text;
}

void MpiTransport::listen(int awaited) noexcept {
  if (!world_->may_call()) return;
  std::lock_guard lock(guard_);
  for (Control control; next_control(*world_, comm_, control);) {
    Peer& from = peers_[static_cast<size_t>(control.from)];
    if (control.text.starts_with("l")) {
      from.farewell = control.text.substr(1);
      from.left = true;
    } else if (control.text.starts_with("h") || control.text.starts_with("i")) {
      hear(control, awaited);
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

CommHandle MpiTransport::duplicate(Deadline deadline) {
  Duplication duplication(*world_, comm_);
  try {
    await_all([&] { return duplication.is_over(); }, deadline);
  } catch (...) {
    abandoned_ = true;  // MPI may still be at it
    throw;
  }
  return duplication.made();
}

// MPI has no form of it that does not wait. So another thread does, where that may, and is left behind at the deadline.
CommHandle MpiTransport::split(std::span<const int> members, Deadline deadline) {
  struct Splitting {
    std::shared_ptr<World> world;
    std::vector<int> members;
    int32_t place = 0;
    CommHandle made = 0;
    int code = 0;
    std::exception_ptr error;
    std::atomic<bool> over{false};
  };
  const auto splitting = std::make_shared<Splitting>();
  splitting->world = world_;
  splitting->members.assign(members.begin(), members.end());
  splitting->place = static_cast<int32_t>(std::find(members.begin(), members.end(), rank_) - members.begin());
  const auto call = [splitting, comm = comm_] {
    Splitting& s = *splitting;
    try {
      s.code = s.world->api().split(comm, s.members.data(), static_cast<int32_t>(s.members.size()), s.place, &s.made);
    } catch (...) {
      s.error = std::current_exception();
    }
    s.over = true;
  };
  if (world_->has_one_thread() || !world_->api().split_waits) {
    call();
  } else {
    std::thread waiting(call);
    try {
      await_all([&] { return splitting->over.load(); }, deadline);
    } catch (...) {
      waiting.detach();
      abandoned_ = true;                   // nor may the communicator be freed
      new std::shared_ptr<World>(world_);  // MPI cannot be finalised while a thread is in it
      throw;
    }
    waiting.join();
  }
  if (splitting->error != nullptr) std::rethrow_exception(splitting->error);
  world_->check(splitting->code, "MPI_Comm_split");
  return splitting->made;
}

// Every rank has agreed to it just now.
std::unique_ptr<Transport> MpiTransport::subgroup(uint64_t call, std::span<const int> members, Deadline deadline) {
  world_->check_thread();
  // Whoever else is there has come to that call at least; of several ranks on a host only one has said so.
  Peer& own = peers_[static_cast<size_t>(rank_)];
  own.note_call(std::max<uint64_t>(own.call, call * 256 + static_cast<uint64_t>(OpCode::split_comm)));
  world_->tidy();
  // All of them, in their order: that is so for every rank or for none.
  bool whole = members.size() == peers_.size() && world_->api().start_duplicate != nullptr;
  for (size_t i = 0; whole && i < members.size(); ++i) whole = members[i] == static_cast<int>(i);
  const CommHandle made = whole ? duplicate(deadline) : split(members, deadline);
  if (members.empty()) return nullptr;
  auto group = std::make_unique<MpiTransport>(world_, made, probe_);
  Surroundings around = around_;
  around.hosts = around_.hosts.among(members);
  group->learn(std::move(around));
  return group;
}

std::unique_ptr<Transport> MpiTransport::survivors(Deadline) {
  throw Error(
      "shrink() does not work under MPI, nor between hosts: there is no communicator without the ranks that are lost. "
      "Start the program again");
}

}  // namespace tessera::mpi
