#include "message.hpp"

#include <thread>

#include "convert.hpp"

namespace tessera::backend {

bool Parcel::done() {
  std::unique_lock lock(guard_, std::try_to_lock);
  return lock.owns_lock() && has_come();
}

bool Parcel::is_waited_for() {
  const std::unique_lock lock(guard_, std::try_to_lock);
  return !lock.owns_lock();
}

void Parcel::wait() {
  std::lock_guard lock(guard_);
  if (!over_) {
    over_ = true;
    try {
      if (is_receive_) source_ = received_.get().source;
      else sent_.wait();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  if (error_) std::rethrow_exception(error_);
}

int Parcel::source() {
  std::lock_guard lock(guard_);
  return source_;
}

void Parcels::add(std::shared_ptr<Parcel> parcel) {
  std::list<std::shared_ptr<Parcel>> finished;
  std::lock_guard lock(guard_);
  for (auto one = open_.begin(); one != open_.end();) {
    const auto next = std::next(one);
    if ((*one)->done()) finished.splice(finished.end(), open_, one);
    one = next;
  }
  open_.push_back(std::move(parcel));
}

void Parcels::wait_for_all() noexcept {
  std::list<std::shared_ptr<Parcel>> open;
  {
    std::lock_guard lock(guard_);
    open.swap(open_);
  }
  for (const auto& parcel : open) {
    try {
      parcel->wait();
    } catch (const Error&) {
      // Whoever has the Work still gets it from there.
    }
  }
}

Message::Message(int rank, c10d::OpType type, std::shared_ptr<Parcel> parcel, std::weak_ptr<Line> line)
    : Work(rank, type), parcel_(std::move(parcel)), line_(std::move(line)) {}

bool Message::isSuccess() const {
  if (!parcel_->done()) return false;
  try {
    parcel_->wait();
  } catch (const Error&) {
    return false;
  }
  return true;
}

bool Message::wait(std::chrono::milliseconds timeout) {
  try {
    watch(timeout);
    parcel_->wait();
  } catch (...) {
    rethrow_to_python();
  }
  return true;
}

// While the time is limited, or another thread waits for it already, for a future.
void Message::watch(std::chrono::milliseconds timeout) const {
  constexpr std::chrono::microseconds kPause{50};
  constexpr int kPausesBetweenHooks = 2000;
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (int pauses = 1; timeout == kNoTimeout ? parcel_->is_waited_for() : !parcel_->done(); ++pauses) {
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() >= end) {
      throw TimeoutError(fmt::format("the message is not done after {} ms", timeout.count()));
    }
    std::this_thread::sleep_for(kPause);
    const auto line = pauses % kPausesBetweenHooks == 0 ? line_.lock() : nullptr;
    if (line != nullptr) line->heed_hook();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Message::getFuture() {
  std::lock_guard lock(mutex_);
  if (!waiting_) {
    const auto wait = [parcel = parcel_] {
      try {
        parcel->wait();
      } catch (...) {
        std::rethrow_exception(as_torch(std::current_exception()));
      }
    };
    waiting_ = c10::make_intrusive<Call>(rank_, opType_, nullptr, std::vector{parcel_->tensor()}, wait, line_);
    if (const auto line = line_.lock()) line->start(waiting_);
    else waiting_->run();
  }
  return waiting_->getFuture();
}

}  // namespace tessera::backend
