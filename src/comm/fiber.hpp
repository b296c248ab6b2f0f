// Calls that go on on their caller's thread, a bit at a time: for where no other thread may call what they wait for. Each
// has a stack of its own, and whoever waits on that thread lets all of them go on.
#pragma once

#include <ucontext.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tessera {

class Fiber {
 public:
  explicit Fiber(std::function<void()> fn);  // which must not throw
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it until it pauses or ends. True: it has ended.
  bool resume();
  // Whether the caller is one; and back from it to whoever resumed it.
  static bool inside();
  static void pause();

 private:
  static void enter();
  void change(ucontext_t& from, ucontext_t& to);

  std::function<void()> fn_;
  std::byte* stack_;
  ucontext_t here_ = {}, there_ = {};
  // What the C++ runtime keeps of exceptions by thread: each side has its own.
  struct Exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  } exceptions_;
  bool ended_ = false;
};

// One after the other. For the thread that made the first of them.
class FiberQueue {
 public:
  FiberQueue() : own_(std::make_shared<Fibers>()) {}
  // What is left, as it was not waited for and this is another thread: nobody goes on with it any more, and as what it holds
  // may be in use, that stays.
  ~FiberQueue();
  FiberQueue(const FiberQueue&) = delete;
  FiberQueue& operator=(const FiberQueue&) = delete;
  // As when it ends. Waits for one that is just going on, on its own thread.
  void give_up();
  // Starts it if it is the first.
  void push(std::function<void()> fn);
  // Throws Error on another thread than its own.
  void check_thread() const;
  bool empty() const { return own_->size == 0; }
  bool is_own_thread() const { return own_->owner == std::this_thread::get_id(); }

  // All of this thread, where it is in none of them.
  static void progress_all();
  static bool any_here();

  // Known to the thread that goes on with them, and to their queue, which may end on another.
  struct Fibers {
    ~Fibers();
    std::deque<std::unique_ptr<Fiber>> fibers;
    std::atomic<size_t> size{0};
    std::atomic<std::thread::id> owner{};
    std::atomic<bool> given_up{false};
    bool running = false;
    std::recursive_mutex going_on;  // held while one does; it may itself drop what it belongs to
    void progress();
  };

 private:
  const std::shared_ptr<Fibers> own_;
};

// For loops that wait: lets others of this thread go on. True: it was a fiber that paused, and has waited enough.
bool let_others_go_on();

}  // namespace tessera
