#include <tessera/collective.hpp>

#include "comm/board.hpp"
#include "comm/comm_state.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

using detail::CommState;

constexpr std::string_view kSendsFirst =
    "A send waits until its message is received. Where ranks send to each other, let one of each two receive first, or "
    "start the send (start_send(), isend()) and wait for it after the recv.\n";

// A posted send or receive, seen as a Work's task.
class PairTask : public detail::Task {
 public:
  // `with`: the peer and the tag, in words.
  PairTask(std::shared_ptr<CommState> comm, std::unique_ptr<Ticket> ticket, OpCode op, const std::string& with,
           const Site& site)
      : comm_(std::move(comm)),
        ticket_(std::move(ticket)),
        sends_(op == OpCode::send),
        what_(fmt::format("{} {} at {}", name(op), with, site_text(site))),
        recorded_(comm_->begin_message(op, with, site)) {}
  // In a forked child the message is the parent's still, which alone may withdraw it.
  ~PairTask() override {
    if (!comm_->in_forked_child()) return;
    static_cast<void>(ticket_.release());
    new std::shared_ptr<CommState>(std::move(comm_));
  }

  bool done() override { return over_ || ticket_->done(); }

  void wait() override {
    if (!over_) finish();
    seen_ = true;
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  void drop() noexcept override {
    if (comm_->in_forked_child()) return;
    if (!over_) finish();
    if (error_ != nullptr && !seen_) comm_->defer(error_);
  }

  Received received() const { return {ticket_->tensor(), ticket_->peer()}; }

 private:
  void finish() noexcept {
    try {
      try {
        comm_->check_not_forked();
        const Deadline deadline = comm_->deadline();
        while (!ticket_->await(std::min(deadline, coarse_now() + kHookInterval)) && Clock::now() < deadline)
          heed_hook();
        ticket_->wait(deadline);
        count();
      } catch (const PeerTrouble& trouble) {
        comm_->fail_pair(trouble, what_, sends_ ? kSendsFirst : std::string_view());
      }
    } catch (...) {
      error_ = std::current_exception();
      note_error();
    }
    over_ = true;
  }

  void heed_hook() {
    try {
      call_wait_hook();
    } catch (...) {
      std::string why;
      detail::kind_of(std::current_exception(), why);
      give_up(why.c_str());
      throw;
    }
  }

  // The communicator ends for all ranks, and no peer begins anything with the tensor any more. MPI may still be at it where a
  // message was under way: it cannot be called back.
  void give_up(const char* why) {
    comm_->abort(
        fmt::format("{} on communicator \"{}\": rank {} failed: {}", what_, comm_->name(), comm_->rank(), why));
    try {
      ticket_->wait(Clock::now());
    } catch (const PeerTrouble&) {
    } catch (const Error&) {}
  }

  void note_error() {
    std::string text;
    detail::kind_of(error_, text);
    std::lock_guard lock(comm_->guard());
    comm_->recorder.end_message(recorded_, 0, text.c_str());
  }

  void count() {
    std::lock_guard lock(comm_->guard());
    Stats& s = comm_->stats;
    ++s.calls;
    const int64_t bytes = ticket_->tensor().bytes();
    comm_->recorder.end_message(recorded_, sends_ ? 0 : bytes, nullptr);
    if (sends_) {
      s.bytes_sent += bytes;
    } else {
      ++s.messages;
      ++s.copies;
      s.bytes_received += bytes;
      s.bytes_copied += bytes;
    }
  }

  std::shared_ptr<CommState> comm_;
  std::unique_ptr<Ticket> ticket_;
  const bool sends_;
  const std::string what_;
  const int64_t recorded_;
  bool over_ = false;
  bool seen_ = false;
  std::exception_ptr error_;
};

void check_peer(const CommState& comm, int peer, const char* field, bool any) {
  if ((peer >= 0 && peer < comm.size()) || (any && peer == kAnySource)) return;
  throw ShapeError(fmt::format("{} is {}, none of the ranks 0 to {} of communicator \"{}\"", field, peer,
                               comm.size() - 1, comm.name()));
}

std::shared_ptr<PairTask> post_send(Comm& comm, const Tensor& x, int to, int64_t tag, const Site& site) {
  CommState& state = comm.state();
  state.check_open();
  check_peer(state, to, "to", false);
  if (!x.defined()) throw ShapeError("send: x is undefined");
  return std::make_shared<PairTask>(state.shared_from_this(), state.transport().post_send(x, to, tag, site_text(site)),
                                    OpCode::send, fmt::format("to rank {} (tag {})", to, tag), site);
}

std::shared_ptr<PairTask> post_recv(Comm& comm, int from, int64_t tag, const Tensor& out, const Site& site,
                                    bool started) {
  CommState& state = comm.state();
  state.check_open();
  check_peer(state, from, "from", true);
  if (out.read_only()) throw ShapeError("recv: out is a view of constant memory: it cannot be written to");
  if (may_overlap_itself(out)) throw ShapeError("recv: out has several elements in one place: it cannot be written to");
  const std::string source = from == kAnySource ? "any rank" : fmt::format("rank {}", from);
  return std::make_shared<PairTask>(state.shared_from_this(),
                                    state.transport().post_receive(out, from, tag, site_text(site), started),
                                    OpCode::recv, fmt::format("from {} (tag {})", source, tag), site);
}

}  // namespace

void send(Comm& comm, const Tensor& x, int to, int64_t tag, const Site& site) {
  post_send(comm, x, to, tag, site)->wait();
}

Received recv(Comm& comm, int from, int64_t tag, const Tensor& out, const Site& site) {
  const auto task = post_recv(comm, from, tag, out, site, false);
  task->wait();
  return task->received();
}

Work start_send(Comm& comm, const Tensor& x, int to, int64_t tag, const Site& site) {
  return Work(post_send(comm, x, to, tag, site));
}

WorkOf<Received> start_recv(Comm& comm, int from, int64_t tag, const Tensor& out, const Site& site) {
  const auto task = post_recv(comm, from, tag, out, site, true);
  return {task, [task] { return task->received(); }};
}

}  // namespace tessera
