// The calls of one group, one after another.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tessera::backend {

class Call;

inline constexpr std::chrono::milliseconds kHookInterval{100};  // between two looks for an interrupt

// A future of a list of tensors, which is what c10d's callers expect.
c10::intrusive_ptr<c10::ivalue::Future> new_future();
void settle(c10::ivalue::Future& future, const std::vector<at::Tensor>& outputs, const std::exception_ptr& error);

// Runs calls in the order in which they came: a started one on the line's own thread, or on that of whoever waits for it
// first, which saves the way there and back. While calls are waited for as soon as they are started, as DTensor does, the
// own thread is not even woken: it looks now and then whether one was left to it. Thread safety: every function may be
// called from any thread.
class Line {
 public:
  // `abort` ends the group's calls, on any thread: when a wait was interrupted (tessera::set_wait_hook()).
  explicit Line(std::function<void()> abort) : abort_(std::move(abort)) {}
  ~Line();
  // Returns at once.
  void start(c10::intrusive_ptr<Call> call);
  // Returns when it is done. Throws what the hook does, as all below that wait; then it is done as well.
  void run(const c10::intrusive_ptr<Call>& call);
  // Runs what waits, up to this call, unless another thread does.
  void help(const Call& call);
  // Leaves that to others; false: it is not done at that time.
  bool await(const Call& call, std::chrono::steady_clock::time_point end);
  // Returns when nothing waits or runs.
  void drain();
  // Lets whoever waits be interrupted.
  void heed_hook() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  void watch(std::unique_lock<std::mutex>& lock, Time end = Time::max());
  void work_off();
  void nap(std::unique_lock<std::mutex>& lock);
  void run_next(std::unique_lock<std::mutex>& lock, bool by_worker = false);
  void see_through(std::unique_lock<std::mutex>& lock, const Call& call);
  void have_worker();

  const std::function<void()> abort_;
  std::mutex guard_;
  std::condition_variable came_, went_;
  std::deque<c10::intrusive_ptr<Call>> waiting_;
  bool busy_ = false;
  bool closing_ = false;
  bool waited_for_soon_ = false;  // the call that was last waited for, or left to a worker
  int napping_ = 0;               // workers that look by themselves
  uint64_t started_ = 0;
  int watching_ = 0;                  // threads that wait for went_
  std::vector<std::thread> workers_;  // one, and more while callbacks of futures keep the others
  size_t kept_ = 0;                   // workers in callbacks
};

// A call on a Line, as c10d has it. What it throws comes out of wait().
class Call : public c10d::Work {
 public:
  Call(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs, std::function<void()> body,
       std::weak_ptr<Line> line);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // For the line. When it has run, the future is told, if there is one: its callbacks may take long, and make calls.
  void run();
  bool take_telling();
  void tell() { settle(*future_, outputs_, exception_); }
  bool done() const;
  // Since start(); of a call that was not started, none.
  std::optional<std::chrono::nanoseconds> age() const;
  void set_started() { started_ = std::chrono::steady_clock::now(); }

 private:
  std::vector<at::Tensor> outputs_;
  std::function<void()> body_;
  std::weak_ptr<Line> line_;
  std::optional<std::chrono::steady_clock::time_point> started_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // where somebody asked for it
  bool settled_ = false;                            // the future has the result
};

}  // namespace tessera::backend
