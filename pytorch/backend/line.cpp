#include "line.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <tessera/comm.hpp>
#include <tessera/error.hpp>

#include "convert.hpp"

namespace tessera::backend {
namespace {

constexpr std::chrono::microseconds kSoon{200};  // for one who starts a call and does little before he waits for it
constexpr std::chrono::milliseconds kNap{1};
constexpr int kNaps = 50;  // without a call, before a worker sleeps until it is woken

}  // namespace

Line::~Line() {
  {
    std::lock_guard lock(guard_);
    closing_ = true;
  }
  came_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Line::start(c10::intrusive_ptr<Call> call) {
  call->set_started();
  std::lock_guard lock(guard_);
  waiting_.push_back(std::move(call));
  ++started_;
  have_worker();
  if (napping_ == 0) came_.notify_one();
}

void Line::have_worker() {
  if (kept_ == workers_.size()) workers_.emplace_back([this] { work_off(); });
}

void Line::run(const c10::intrusive_ptr<Call>& call) {
  std::unique_lock lock(guard_);
  waiting_.push_back(call);
  try {
    see_through(lock, *call);
  } catch (...) {
    // Its caller has gone, and what it works on may have too.
    if (!lock.owns_lock()) lock.lock();
    ++watching_;
    if (std::erase(waiting_, call) == 0) went_.wait(lock, [&] { return call->done(); });
    --watching_;
    throw;
  }
}

void Line::help(const Call& call) {
  std::unique_lock lock(guard_);
  if (const auto age = call.age()) waited_for_soon_ = *age < kSoon;
  see_through(lock, call);
}

void Line::see_through(std::unique_lock<std::mutex>& lock, const Call& call) {
  while (!call.done()) {
    if (!busy_ && !waiting_.empty()) run_next(lock);
    else watch(lock);
  }
}

bool Line::await(const Call& call, std::chrono::steady_clock::time_point end) {
  std::unique_lock lock(guard_);
  while (!call.done() && std::chrono::steady_clock::now() < end) watch(lock, end);
  return call.done();
}

void Line::drain() {
  std::unique_lock lock(guard_);
  while (busy_ || !waiting_.empty()) {
    if (!busy_) run_next(lock);
    else watch(lock);
  }
}

// Until a call is over, or the hook wants to be called.
void Line::watch(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point end) {
  ++watching_;
  const auto woken = went_.wait_until(lock, std::min(end, std::chrono::steady_clock::now() + kHookInterval));
  --watching_;
  if (woken == std::cv_status::no_timeout) return;
  lock.unlock();
  heed_hook();
  lock.lock();
}

void Line::heed_hook() const {
  try {
    call_wait_hook();
  } catch (...) {
    abort_();
    throw;
  }
}

void Line::work_off() {
  std::unique_lock lock(guard_);
  while (true) {
    came_.wait(lock, [&] { return closing_ || (!busy_ && !waiting_.empty()); });
    if (closing_ && waiting_.empty()) return;
    if (waited_for_soon_) nap(lock);
    if (busy_ || waiting_.empty()) continue;
    waited_for_soon_ = false;
    run_next(lock, true);
  }
}

// Returns when a call was left alone, or nothing has come for a while.
void Line::nap(std::unique_lock<std::mutex>& lock) {
  ++napping_;
  for (int quiet = 0; waited_for_soon_ && !closing_ && quiet < kNaps; ++quiet) {
    const uint64_t before = started_;
    came_.wait_for(lock, kNap);
    if (started_ != before) quiet = 0;
    if (!busy_ && !waiting_.empty() && waiting_.front()->age() >= kSoon) break;
  }
  --napping_;
}

void Line::run_next(std::unique_lock<std::mutex>& lock, bool by_worker) {
  const auto call = std::move(waiting_.front());
  waiting_.pop_front();
  busy_ = true;
  lock.unlock();
  call->run();
  lock.lock();
  busy_ = false;
  if (watching_ > 0) went_.notify_all();
  if (!waiting_.empty()) came_.notify_one();
  if (!call->take_telling()) return;
  if (by_worker) ++kept_;
  if (!waiting_.empty()) have_worker();
  lock.unlock();
  call->tell();
  lock.lock();
  if (by_worker) --kept_;
}

Call::Call(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs, std::function<void()> body,
           std::weak_ptr<Line> line)
    : Work(rank, type, title), outputs_(std::move(outputs)), body_(std::move(body)), line_(std::move(line)) {}

bool Call::wait(std::chrono::milliseconds timeout) {
  try {
    const auto line = line_.lock();
    if (line != nullptr && timeout == kNoTimeout) line->help(*this);
    if (line != nullptr && timeout != kNoTimeout && !line->await(*this, std::chrono::steady_clock::now() + timeout)) {
      throw TimeoutError(fmt::format("the call is not done after {} ms", timeout.count()));
    }
    return Work::wait(timeout);
  } catch (...) {
    rethrow_to_python();
  }
}

bool Call::done() const {
  std::lock_guard lock(mutex_);
  return completed_;
}

std::optional<std::chrono::nanoseconds> Call::age() const {
  if (!started_) return std::nullopt;
  return std::chrono::steady_clock::now() - *started_;
}

void Call::run() {
  std::exception_ptr error;
  try {
    body_();
  } catch (...) {
    error = std::current_exception();
  }
  body_ = nullptr;  // and with it the tensors that it kept
  finish(error);
}

bool Call::take_telling() {
  std::lock_guard lock(mutex_);
  return future_ && !std::exchange(settled_, true);
}

c10::intrusive_ptr<c10::ivalue::Future> Call::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  future_ = new_future();
  if (!completed_) return future_;
  settled_ = true;
  lock.unlock();
  settle(*future_, outputs_, exception_);
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> new_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

void settle(c10::ivalue::Future& future, const std::vector<at::Tensor>& outputs, const std::exception_ptr& error) {
  if (error) future.setError(error);
  else future.markCompleted(c10::IValue(outputs));
}

}  // namespace tessera::backend
