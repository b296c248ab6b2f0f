#include "comm/comm_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <tuple>

namespace tessera::detail {
namespace {

int current_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)registered;
  return fork_generation.load(std::memory_order_relaxed);
}

// A call on the worker.
class QueuedTask : public Task {
 public:
  // `by_itself`: a worker runs it; else it goes on while its thread asks for it.
  QueuedTask(std::weak_ptr<CommState> comm, bool by_itself) : by_itself_(by_itself), comm_(std::move(comm)) {}

  void finish(std::exception_ptr error) {
    std::lock_guard lock(guard_);
    error_ = std::move(error);
    done_ = true;
    changed_.notify_all();
  }
  bool done() override {
    if (forked()) return true;
    if (!by_itself_ && !is_done()) go_on();
    return is_done();
  }
  void wait() override {
    if (forked())
      throw Error(
          "a Work was started before a fork and cannot be waited for "
          "in the child");
    while (!by_itself_ && !is_done()) {
      if (!go_on()) throw Error("the communicator ended on another thread before this call was over");
    }
    std::unique_lock lock(guard_);
    wait_for_worker(lock);
    seen_ = true;
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  void drop() noexcept override {
    if (forked()) return;
    const auto comm = comm_.lock();
    if (!by_itself_ && (comm == nullptr || !comm->may_go_on())) return;  // its own thread will, or nobody
    while (!by_itself_ && !is_done()) go_on();
    std::unique_lock lock(guard_);
    wait_for_worker(lock);
    // Taken away here: the error is its caller's, and the worker must not be
    // the last to have it.
    const std::exception_ptr error = std::exchange(error_, nullptr);
    if (error != nullptr && !seen_ && comm != nullptr) comm->defer(error);
  }

 private:
  // The worker lives in the parent, and may have held the lock.
  bool forked() const { return fork_generation.load(std::memory_order_relaxed) != born_in_; }

  // What goes on only on this thread, on other communicators, goes on meanwhile.
  void wait_for_worker(std::unique_lock<std::mutex>& lock) {
    const auto is_over = [&] { return done_; };
    while (FiberQueue::any_here() && !changed_.wait_for(lock, std::chrono::microseconds(100), is_over)) {
      lock.unlock();
      FiberQueue::progress_all();
      lock.lock();
    }
    changed_.wait(lock, is_over);
  }

  bool is_done() const {
    std::lock_guard lock(guard_);
    return done_;
  }
  // False: nobody can, as the communicator is gone.
  bool go_on() {
    const auto comm = comm_.lock();
    if (comm == nullptr) return is_done();
    comm->go_on();
    std::this_thread::yield();
    return true;
  }

  const int born_in_ = current_generation();
  const bool by_itself_;
  mutable std::mutex guard_;
  std::condition_variable changed_;
  bool done_ = false;
  bool seen_ = false;
  std::exception_ptr error_;
  std::weak_ptr<CommState> comm_;
};

template <class E>
bool is_a(const std::exception& e) {
  return dynamic_cast<const E*>(&e) != nullptr;
}

}  // namespace

ErrorKind kind_of(const std::exception_ptr& error, std::string& text) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    text = e.what();
    if (is_a<MismatchError>(e)) return ErrorKind::mismatch;
    if (is_a<ShapeError>(e)) return ErrorKind::shape;
    if (is_a<DTypeError>(e)) return ErrorKind::dtype;
    if (is_a<ArgumentError>(e)) return ErrorKind::argument;
    if (is_a<ArgumentTypeError>(e)) return ErrorKind::argument_type;
    if (is_a<PeerLostError>(e)) return ErrorKind::peer_lost;
    if (is_a<TimeoutError>(e)) return ErrorKind::timed_out;
    if (is_a<AbortedError>(e)) return ErrorKind::aborted;
  } catch (...) {
    text = "an exception that is no std::exception";
  }
  return ErrorKind::other;
}

CommState::CommState(std::unique_ptr<Transport> transport, std::string name, std::chrono::nanoseconds timeout)
    : transport_(std::move(transport)),
      name_(std::move(name)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      born_in_(current_generation()),
      timeout_(timeout.count()),
      agreements_(std::make_unique<Agreements>(size_)) {}

// What goes on only on another thread is under way for good: whatever it receives into must stay.
CommState::~CommState() {
  if (!fibers_.empty() && !fibers_.is_own_thread()) fibers_.give_up();
  close("its Comm was destroyed");
  if (!fibers_.empty())
    new std::tuple(std::move(transport_), std::move(workspace), std::move(trusted), std::move(agreements_));
}

void CommState::close(const std::string& farewell) noexcept {
  if (closed_.exchange(true)) return;
  if (in_forked_child()) {
    // The worker lives in the parent: nothing here to join, and the slot is the
    // parent's.
    if (worker_.joinable()) worker_.detach();
    return;
  }
  {
    std::lock_guard lock(queue_guard_);
    closing_ = true;
  }
  queue_changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  while (!fibers_.empty() && fibers_.is_own_thread()) go_on();
  transport_->leave(farewell);
}

void CommState::set_timeout(std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0) throw ArgumentError(fmt::format("a timeout of {} ns is not positive", timeout.count()));
  timeout_.store(timeout.count());
}

Deadline CommState::deadline() const {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);  // keeps the sum within the clock's range
  constexpr std::chrono::milliseconds kBehind(10);                             // how far the coarse clock may be
  return coarse_now() + kBehind + std::min(timeout(), kLongest);
}

std::shared_ptr<Task> CommState::submit(std::function<void()> fn) {
  const bool by_itself = !transport_->has_one_thread();
  auto task = std::make_shared<QueuedTask>(weak_from_this(), by_itself);
  auto whole = [this, task, fn = std::move(fn)]() mutable {
    std::exception_ptr error;
    try {
      fn();
    } catch (...) {
      error = std::current_exception();
    }
    fn = nullptr;  // the task may outlive its tensors' owner
    pending_.fetch_sub(1);
    task->finish(std::move(error));
  };
  pending_.fetch_add(1);
  if (!by_itself) {
    fibers_.push(std::move(whole));
    return task;
  }
  std::lock_guard lock(queue_guard_);
  if (!worker_.joinable()) worker_ = std::thread([this] { work_off(); });
  queue_.emplace_back(std::move(whole));
  queue_changed_.notify_all();
  return task;
}

void CommState::work_off() {
  while (true) {
    std::function<void()> next;
    {
      std::unique_lock lock(queue_guard_);
      queue_changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    next();
  }
}

void CommState::check_not_forked() const {
  if (!in_forked_child()) return;
  throw Error(
      fmt::format("communicator \"{}\" was made before a fork and "
                  "cannot be used in the child",
                  name_));
}

void CommState::throw_closed() const {
  throw Error(fmt::format("communicator \"{}\" has ended with its run()", name_));
}

std::string CommState::remedy() const {
  if (!remedy_.empty()) return remedy_;
  return transport_->has_survivors() ? "shrink() makes a new one of the ranks that are left"
                                     : "To go on, save what there is and start the program again";
}

void CommState::throw_unusable() {
  check_not_forked();
  take_deferred();  // the verdict tells it
  const Verdict verdict = transport_->abort({});
  // The first that this rank hears of a lost peer: as the others heard it.
  if (!told_.exchange(true) && verdict.kind == static_cast<uint32_t>(ErrorKind::peer_lost)) {
    throw_error(ErrorKind::peer_lost, verdict.text);
  }
  throw AbortedError(
      fmt::format("communicator \"{}\" is dead; {}. It died of this:\n{}", name_, remedy(), verdict.text));
}

const RawRecords& CommState::exchange(const Saying& mine, int64_t call, OpCode op, Deadline deadline) {
  try {
    transport_->exchange(mine, static_cast<uint64_t>(call) * 256 + static_cast<uint64_t>(op), said_, deadline);
  } catch (const PeerTrouble& trouble) {
    fail(trouble, call);
  }
  return said_;
}

Saying CommState::saying(std::span<int64_t> words, const Place& place) {
  const auto bytes = std::as_bytes(words);
  const Agreement& before = agreement_at(place);
  if (!transport_->votes() || !before.settled) return Saying(bytes);
  const ChangedPart changed = changed_part(bytes);
  if (!std::ranges::equal(bytes.subspan(changed.end), before.said[static_cast<size_t>(rank_)])) return Saying(bytes);
  words[1] = before.number;
  Saying repetition(bytes, changed.end, static_cast<uint64_t>(before.number));
  repetition.elements = changed.payload_bytes > 0;
  return repetition;
}

Agreement& CommState::agree(int64_t call, const Place& place) {
  copies_.resize(said_.size());
  for (size_t r = 0; r < said_.size(); ++r) {
    copies_[r].assign(said_[r].begin(), said_[r].end());
    said_[r] = copies_[r];
  }
  Agreement& agreement = agreement_at(place);
  const bool voted = !all_said();
  agreement.repeated = voted || (agreement.settled && note_said(agreement));
  if (!voted) agreement.number = call;
  if (agreement.repeated) {
    decode_changes(agreement);
    return agreement;
  }
  agreement.settled = false;
  agreement.said.resize(said_.size());
  agreement.records.resize(said_.size());
  note_said(agreement);
  for (size_t r = 0; r < said_.size(); ++r) decode(said_[r], agreement.records[r]);
  check_sense(agreement.records);
  check_agreement(call_name(call), agreement.records);
  return agreement;
}

void CommState::decode_changes(Agreement& agreement) const {
  for (size_t r = 0; r < said_.size(); ++r) {
    if (!said_[r].empty()) tessera::decode_changes(said_[r], agreement.records[r]);
  }
}

// Whether every rank said the same as before; what differs is noted.
bool CommState::note_said(Agreement& agreement) const {
  bool same = true;
  for (size_t r = 0; r < said_.size(); ++r) {
    const auto now = said_[r].subspan(changed_part(said_[r]).end);
    auto& before = agreement.said[r];
    if (now.size() == before.size() && std::memcmp(now.data(), before.data(), now.size()) == 0) continue;
    before.assign(now.begin(), now.end());
    same = false;
  }
  return same;
}

void CommState::attach_deferred(Record& mine) {
  const std::exception_ptr error = take_deferred();
  if (error == nullptr) return;
  mine.problem = kind_of(error, mine.problem_text);
  mine.problem_text = "a call whose Work was dropped had failed: " + mine.problem_text;
}

std::exception_ptr CommState::take_deferred() {
  if (!has_deferred_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(guard_);
  has_deferred_.store(false);
  return std::exchange(deferred_, nullptr);
}

void CommState::defer(std::exception_ptr error) {
  std::lock_guard lock(guard_);
  if (deferred_ == nullptr) deferred_ = std::move(error);
  has_deferred_.store(true, std::memory_order_release);
}

std::string CommState::where_ranks_are(int64_t call) const {
  std::string text;
  for (int r = 0; r < size_; ++r) {
    const uint64_t last = transport_->call_of(r);
    const auto op = static_cast<OpCode>(last % 256);
    if (transport_->has_left(r)) {
      text += fmt::format("  rank {}: left: {}\n", r, transport_->farewell(r));
    } else if (static_cast<int64_t>(last / 256) >= call && op != OpCode::send && op != OpCode::recv) {
      text += fmt::format("  rank {}: in call #{}, {}\n", r, last / 256, tessera::name(op));
    } else if (r == rank_ && call > 0 && op != OpCode::send && op != OpCode::recv) {
      text += fmt::format("  rank {}: in call #{}\n", r, call);
    } else if (last / 256 == 0 && op != OpCode::send && op != OpCode::recv) {
      text += fmt::format("  rank {}: {}\n", r,
                          transport_->sees_all() ? "has made no collective call yet" : "was not heard of yet");
    } else if (op == OpCode::send || op == OpCode::recv) {
      const std::string after = last / 256 == 0 ? "" : fmt::format(", after call #{}", last / 256);
      text += fmt::format("  rank {}: last seen in {}{}\n", r, tessera::name(op), after);
    } else {
      text += fmt::format("  rank {}: last seen in call #{}, {}\n", r, last / 256, tessera::name(op));
    }
  }
  return text;
}

void CommState::fail(const PeerTrouble& trouble, int64_t call) {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    const bool gone = trouble.kind == PeerTrouble::closed ? transport_->has_left(r) && !transport_->has_come(r)
                                                          : r == trouble.rank || !transport_->has_come(r);
    if (gone && r != rank_) missing.push_back(r);
  }
  if (missing.empty()) missing.push_back(trouble.rank);
  die(trouble.kind, to_string(call_name(call)), call, missing);
}

void CommState::fail_pair(const PeerTrouble& trouble, const std::string& what, std::string_view hint) {
  std::vector<int> missing{trouble.rank};
  if (trouble.rank < 0) {  // any source: nobody came
    missing.clear();
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) missing.push_back(r);
    }
  }
  die(trouble.kind, fmt::format("{} on communicator \"{}\" ({} ranks)", what, name_, size_), calls_ + 1, missing,
      trouble.kind == PeerTrouble::timed_out ? hint : "");
}

int64_t CommState::begin_message(OpCode op, const std::string& with, const Site& site) {
  transport_->note_message(static_cast<uint64_t>(last_call()) * 256 + static_cast<uint64_t>(op));
  std::lock_guard lock(guard_);
  return recorder.begin_message(op, with, site);
}

void CommState::die(PeerTrouble::Kind kind, const std::string& what, int64_t call, const std::vector<int>& missing,
                    std::string_view hint) {
  const std::string who = fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", rank_list(missing));
  const bool late = kind == PeerTrouble::timed_out;
  const bool arrived = std::all_of(missing.begin(), missing.end(),
                                   [&](int r) { return static_cast<int64_t>(transport_->call_of(r) / 256) >= call; });
  const std::string happened =
      late ? fmt::format("{} did not {} within {:.3g} s", who, arrived ? "finish its part" : "come",
                         std::chrono::duration<double>(timeout()).count())
           : fmt::format("{} left while others were waiting", who);
  std::string history;
  {
    std::lock_guard lock(guard_);
    history = recorder.summary();
  }
  const std::string text = fmt::format("{}: {}\n{}Last calls of rank {}: {}\n{}The communicator is dead. {}{}.", what,
                                       happened, where_ranks_are(call), rank_, history.empty() ? "none" : history, hint,
                                       remedy(), late && remedy_.empty() ? "; set_timeout() waits longer" : "");
  const Verdict verdict =
      transport_->abort({static_cast<uint32_t>(late ? ErrorKind::timed_out : ErrorKind::peer_lost), text});
  told_ = true;
  throw_error(static_cast<ErrorKind>(verdict.kind), verdict.text);
}

void CommState::abort(const std::string& reason) {
  transport_->abort({static_cast<uint32_t>(ErrorKind::aborted), reason});
}

}  // namespace tessera::detail
