// Work: a call that was started and goes on by itself.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <tessera/error.hpp>

namespace tessera {

namespace detail {
// What stands behind a Work. wait() returns when it is done, or throws its
// error, every time it is called.
class Task {
 public:
  virtual ~Task() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
  virtual void drop() noexcept = 0;  // completes; an error that nobody saw comes
                                     // at the communicator's next call
};
}  // namespace detail

// Keeps the tensors of its call alive. Dropping it waits; its error, if any,
// then comes at the communicator's next call. Movable, not copyable; for one
// thread at a time.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<detail::Task> task) : task_(std::move(task)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept {
    std::swap(task_, other.task_);
    return *this;
  }
  ~Work() {
    if (task_ != nullptr) task_->drop();
  }

  bool done() const { return task_ == nullptr || task_->done(); }
  // Rethrows what the call threw.
  void wait() const {
    if (task_ != nullptr) task_->wait();
  }

 private:
  std::shared_ptr<detail::Task> task_;
};

// A Work with a result.
template <class T>
class WorkOf : public Work {
 public:
  WorkOf() = default;
  WorkOf(std::shared_ptr<detail::Task> task, std::function<T()> result)
      : Work(std::move(task)), result_(std::move(result)) {}

  // Waits, and returns what the call would have returned. Once: a second time
  // throws Error.
  T get() {
    wait();
    if (result_ == nullptr) throw Error("get() has handed out its result already");
    return std::exchange(result_, nullptr)();
  }

 private:
  std::function<T()> result_;
};

}  // namespace tessera
