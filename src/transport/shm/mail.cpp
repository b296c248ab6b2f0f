#include "transport/shm/mail.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <tessera/collective.hpp>

#include "comm/agreement.hpp"
#include "tensor/copy.hpp"
#include "tensor/strided.hpp"

namespace tessera::shm {
namespace {

constexpr Deadline kNoDeadline = Deadline::max();

// Which envelopes of this process's outbox are in use: several communicators share it.
struct Sending {
  std::mutex guard;
  std::vector<bool> used = std::vector<bool>(Outbox::kEnvelopes);
  uint64_t order = 0;
};
Sending& sending() {
  static auto* one = new Sending;
  return *one;
}

size_t take_index(Outbox& box, uint64_t& order) {
  Sending& s = sending();
  std::lock_guard lock(s.guard);
  const auto free = std::find(s.used.begin(), s.used.end(), false);
  if (free == s.used.end()) {
    throw Error(fmt::format("{} sends are waiting to be received: wait for some of them first", Outbox::kEnvelopes));
  }
  *free = true;
  order = ++s.order;
  const auto index = static_cast<size_t>(free - s.used.begin());
  if (box.used.load() <= index) box.used.store(static_cast<uint32_t>(index + 1));
  return index;
}

template <size_t n>
void put_text(char (&place)[n], std::string_view text) {
  const size_t length = std::min(text.size(), n - 1);
  std::memcpy(place, text.data(), length);
  place[length] = 0;
}
template <size_t n>
std::string text_in(const char (&place)[n]) {
  return std::string(place, strnlen(place, n));
}

class SendTicket : public Ticket {
 public:
  SendTicket(Mail& mail, Mail::Posted posted) : mail_(mail), posted_(std::move(posted)) {}
  ~SendTicket() override {
    if (!over_) mail_.take_back(posted_);
  }
  bool done() override { return over_ || mail_.is_over(posted_); }
  bool await(Deadline deadline) override { return over_ || mail_.await(posted_, deadline); }
  void wait(Deadline deadline) override {
    bool gone = false;
    over_ = true;
    if (!mail_.wait(posted_, deadline, gone)) {
      throw PeerTrouble{gone ? PeerTrouble::closed : PeerTrouble::timed_out, posted_.to};
    }
  }
  Tensor tensor() const override { return posted_.tensor; }
  int peer() const override { return posted_.to; }

 private:
  Mail& mail_;
  Mail::Posted posted_;
  bool over_ = false;
};

class ReceiveTicket : public Ticket {
 public:
  ReceiveTicket(Mail& mail, std::shared_ptr<Mail::Pending> pending)
      : mail_(mail), from_(pending->from), pending_(std::move(pending)) {}
  bool done() override { return mail_.is_over(*pending_); }
  bool await(Deadline deadline) override { return mail_.await(*pending_, deadline); }
  void wait(Deadline deadline) override {
    bool gone = false;
    if (!mail_.wait(pending_, deadline, gone)) {
      throw PeerTrouble{gone ? PeerTrouble::closed : PeerTrouble::timed_out, from_};
    }
    if (pending_->kind != ErrorKind::none) throw_error(pending_->kind, pending_->error);
  }
  Tensor tensor() const override { return pending_->tensor; }
  int peer() const override { return pending_->from; }

 private:
  Mail& mail_;
  int from_;
  std::shared_ptr<Mail::Pending> pending_;
};

}  // namespace

Announced announced(const Letter& letter, int from) {
  Announced tensor;
  bool sense = letter.dtype < static_cast<uint64_t>(kDTypeCount) && letter.ndim <= kMaxDims;
  if (sense) {
    tensor.dtype = static_cast<DType>(letter.dtype);
    tensor.shape = Dims::filled(letter.ndim, 0);
    tensor.strides = tensor.shape;
    for (size_t d = 0; d < letter.ndim; ++d) {
      tensor.shape[d] = letter.shape[d];
      tensor.strides[d] = letter.strides[d];
      sense = sense && letter.shape[d] >= 0;
    }
  }
  if (!sense) throw Error(fmt::format("rank {}'s message makes no sense: it is damaged", from));
  check_extent(tensor.dtype, tensor.shape, tensor.strides);
  tensor.where = letter.where;
  return tensor;
}

Mail::Mail(Postal postal) : postal_(std::move(postal)) {}

Mail::~Mail() {
  stopping_ = true;
  {
    std::lock_guard lock(guard_);
    changed_.notify_all();
  }
  postal_.world->segment().ring(postal_.world->rank());
  if (thread_.joinable()) thread_.join();
}

Envelope& Mail::envelope(size_t index) {
  return Outbox::in(postal_.world->segment(), postal_.world->rank())->envelopes[index];
}

std::unique_ptr<Ticket> Mail::send(const Tensor& tensor, int to, int64_t tag, const std::string& site) {
  World& world = *postal_.world;
  Posted posted{tensor, to, 0, nullptr};
  const Handle where = postal_.announce(tensor, posted.mirror);
  uint64_t order = 0;
  posted.index = take_index(*Outbox::in(world.segment(), world.rank()), order);
  Envelope& place = envelope(posted.index);
  Letter& letter = place.letter;
  letter.to = postal_.members[static_cast<size_t>(to)];
  letter.context = postal_.context;
  letter.tag = tag;
  letter.order = order;
  letter.dtype = static_cast<uint64_t>(tensor.dtype());
  letter.ndim = tensor.shape().size();
  std::copy(tensor.shape().begin(), tensor.shape().end(), letter.shape);
  std::copy(tensor.strides().begin(), tensor.strides().end(), letter.strides);
  letter.where = where;
  put_text(letter.site, site);
  place.state.store(Envelope::posted, std::memory_order_seq_cst);
  world.segment().ring(letter.to);
  return std::make_unique<SendTicket>(*this, std::move(posted));
}

bool Mail::peer_gone(int peer) const {
  if (postal_.board.aborted()) return true;
  if (peer != kAnySource) return postal_.board.has_left(peer);
  for (int r = 0; r < postal_.board.size(); ++r) {
    if (r != postal_.board.rank() && !postal_.board.has_left(r)) return false;
  }
  return postal_.board.size() > 1;
}

bool Mail::is_over(const Posted& posted) {
  progress();
  const uint32_t state = envelope(posted.index).state.load();
  return state >= Envelope::done || peer_gone(posted.to);
}

bool Mail::wait(const Posted& posted, Deadline deadline, bool& gone) {
  World& world = *postal_.world;
  Envelope& letter = envelope(posted.index);
  await(posted, deadline);
  gone = peer_gone(posted.to);
  uint32_t state = Envelope::posted;
  const bool withdrawn = letter.state.compare_exchange_strong(state, Envelope::empty);
  if (!withdrawn && state == Envelope::taken) {
    // Somebody copies: that is waited for, unless the one who does has died, or has stopped: then it throws away what it
    // reads late (see take()), and the envelope is its for good.
    const int receiver = postal_.members[static_cast<size_t>(posted.to)];
    const Deadline limit = std::max(deadline, Clock::now()) + std::chrono::seconds(1);
    if (!world.await(limit, [&] { return letter.state.load() >= Envelope::done || world.is_dead(receiver); }))
      return false;
    state = letter.state.load();
  }
  const auto kind = static_cast<ErrorKind>(letter.error_kind);
  const std::string error = state == Envelope::failed ? text_in(letter.error) : "";
  take_back(posted);
  if (state == Envelope::failed) throw_error(kind, error);
  return state == Envelope::done;
}

void Mail::take_back(const Posted& posted) noexcept {
  envelope(posted.index).state.store(Envelope::empty);
  Sending& s = sending();
  std::lock_guard lock(s.guard);
  s.used[posted.index] = false;
}

std::unique_ptr<Ticket> Mail::receive(const Tensor& out, int from, int64_t tag, const std::string& site, bool started) {
  auto pending = std::make_shared<Pending>(Pending{out, from, tag, site});
  {
    std::lock_guard lock(guard_);
    pending_.push_back(pending);
    changed_.notify_all();
  }
  progress();
  std::lock_guard lock(guard_);
  if (started && !pending->over && !thread_.joinable()) start_thread();
  return std::make_unique<ReceiveTicket>(*this, pending);
}

// So that a started receive goes on while its rank computes, or waits for something else.
void Mail::start_thread() {
  thread_ = std::thread([this] {
    while (!stopping_) {
      const auto idle = [&] {
        std::lock_guard lock(guard_);
        return pending_.empty();
      };
      postal_.world->await(kNoDeadline, [&] {
        progress();
        return stopping_ || idle();
      });
      std::unique_lock lock(guard_);
      changed_.wait(lock, [&] { return stopping_ || !pending_.empty(); });
    }
  });
}

bool Mail::is_over(const Pending& pending) {
  progress();
  std::lock_guard lock(guard_);
  return pending.over || peer_gone(pending.from);
}

bool Mail::wait(const std::shared_ptr<Pending>& pending, Deadline deadline, bool& gone) {
  await(*pending, deadline);
  std::lock_guard lock(guard_);
  pending_.remove(pending);
  gone = peer_gone(pending->from);
  return pending->over;
}

void Mail::progress() {
  std::lock_guard lock(guard_);
  if (postal_.board.aborted()) return;
  for (auto it = pending_.begin(); it != pending_.end();) {
    it = take(**it) ? pending_.erase(it) : std::next(it);
  }
}

Envelope* Mail::find(const Pending& pending, int& from) {
  const World& world = *postal_.world;
  Envelope* best = nullptr;
  const int ranks = static_cast<int>(postal_.members.size());
  for (int i = 0; i < ranks; ++i) {
    const int r = pending.from == kAnySource ? i : pending.from;
    Outbox* box = Outbox::in(world.segment(), postal_.members[static_cast<size_t>(r)]);
    const size_t used = std::min<size_t>(box->used.load(), Outbox::kEnvelopes);
    for (size_t e = 0; e < used; ++e) {
      Envelope& envelope = box->envelopes[e];
      const Letter& letter = envelope.letter;
      if (envelope.state.load() != Envelope::posted || letter.context != postal_.context || letter.to != world.rank() ||
          letter.tag != pending.tag || (best != nullptr && best->letter.order < letter.order)) {
        continue;
      }
      best = &envelope;
      from = r;
    }
    if (best != nullptr || pending.from != kAnySource) return best;
  }
  return best;
}

bool Mail::take(Pending& pending) {
  int from = 0;
  Envelope* envelope = find(pending, from);
  if (envelope == nullptr) return false;
  uint32_t state = Envelope::posted;
  if (!envelope->state.compare_exchange_strong(state, Envelope::taken)) return false;
  const int sender = postal_.members[static_cast<size_t>(from)];
  try {
    const Letter letter = envelope->letter;
    if (letter.to != postal_.world->rank() || letter.context != postal_.context || letter.tag != pending.tag) {
      // Withdrawn meanwhile, and used again for another.
      envelope->state.store(Envelope::posted);
      if (letter.to >= 0 && letter.to < postal_.world->ranks()) postal_.world->segment().ring(letter.to);
      return false;
    }
    if (!settle(pending, letter, from)) return false;
    if (postal_.board.aborted()) return false;  // its sender may have given up, and its memory with it
  } catch (const std::exception& e) {
    pending.kind = ErrorKind::other;
    pending.error = fmt::format("rank {} could not receive from rank {}: {}", postal_.board.rank(), from, e.what());
  }
  pending.over = true;
  if (pending.kind != ErrorKind::none) {
    envelope->error_kind = static_cast<uint32_t>(pending.kind);
    put_text(envelope->error, pending.error);
  }
  envelope->state.store(pending.kind == ErrorKind::none ? Envelope::done : Envelope::failed);
  postal_.world->segment().ring(sender);
  return true;
}

// False where the sender has died: nothing was received.
bool Mail::settle(Pending& pending, const Letter& letter, int from) {
  const Announced tensor = announced(letter, from);
  const int sender = postal_.members[static_cast<size_t>(from)];
  const Box whole = Box::whole(tensor.shape);
  if (from == postal_.board.rank() && pending.tensor.defined()) {
    const Tensor own =
        Tensor::view(reinterpret_cast<void*>(letter.where.words[0]), tensor.dtype, tensor.shape, tensor.strides);
    if (may_overlap(pending.tensor, own)) pending.kind = ErrorKind::mismatch;
  }
  pending.from = from;
  const Tensor& out = pending.tensor;
  if (out.defined() && (out.dtype() != tensor.dtype || out.shape() != tensor.shape)) pending.kind = ErrorKind::mismatch;
  if (pending.kind != ErrorKind::none) {
    pending.error = fmt::format(
        "a message of tag {} does not fit its receive\n  rank {}: sends {} {}   {}\n  rank {}: receives into {} {}   "
        "{}\n"
        "Give the same dtype and shape on both sides, and memory that does not overlap. Nothing was moved.",
        pending.tag, from, tensor.dtype, tensor.shape, text_in(letter.site), postal_.board.rank(), out.dtype(),
        out.shape(), pending.site);
    return true;
  }
  if (!out.defined()) pending.tensor = postal_.allocate(tensor.dtype, tensor.shape);
  if (volume(tensor.shape) == 0) return true;
  Source source = locate(postal_.world->segment().arena(sender), sender, tensor, whole);
  if (from == postal_.board.rank() && source.kind == Source::attached) source.kind = Source::direct;
  return read(view_of(pending.tensor), source);
}

bool Mail::read(const View& target, const Source& source) {
  if (source.kind == Source::attached) {
    postal_.bytes_attached += target.elements() * size_bytes(target.dtype);
    return read_attached(*postal_.world, target, source, scratch_);
  }
  copy_box(target, source.view);  // a mirror was filled before it was sent
  return true;
}

}  // namespace tessera::shm
