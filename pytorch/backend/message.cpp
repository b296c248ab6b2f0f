#include "message.hpp"

#include <thread>

#include "convert.hpp"

namespace tessera::backend {

bool Parcel::done() {
  std::unique_lock lock(guard_, std::try_to_lock);
  return lock.owns_lock() && has_come();
}

void Parcel::wait(const std::function<void()>& heed) {
  std::unique_lock lock(guard_, std::defer_lock);
  while (!lock.try_lock_for(kHookInterval)) heed();
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

void Parcels::wait_for_all(const Line& line) noexcept {
  const auto heed = [&] {
    try {
      line.heed_hook();
    } catch (const Error&) {
      // Whoever waits for the parcel is told.
    }
  };
  std::list<std::shared_ptr<Parcel>> open;
  {
    std::lock_guard lock(guard_);
    open.swap(open_);
  }
  for (const auto& parcel : open) {
    try {
      parcel->wait(heed);
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
    if (timeout != kNoTimeout) watch(timeout);
    parcel_->wait([this] { heed_hook(); });
  } catch (...) {
    rethrow_to_python();
  }
  return true;
}

void Message::watch(std::chrono::milliseconds timeout) const {
  constexpr std::chrono::microseconds kPause{50};
  constexpr int kPausesBetweenHooks = kHookInterval / kPause;
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (int pauses = 1; !parcel_->done(); ++pauses) {
    if (std::chrono::steady_clock::now() >= end) {
      throw TimeoutError(fmt::format("the message is not done after {} ms", timeout.count()));
    }
    std::this_thread::sleep_for(kPause);
    if (pauses % kPausesBetweenHooks == 0) heed_hook();
  }
}

void Message::heed_hook() const {
  if (const auto line = line_.lock()) line->heed_hook();
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
