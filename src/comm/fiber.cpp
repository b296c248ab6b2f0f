#include "comm/fiber.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <tessera/error.hpp>

namespace tessera {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = (size_t{1} << 20) + kGuardBytes;  // pages that are never touched cost nothing

thread_local Fiber* current = nullptr;
thread_local std::vector<FiberQueue*> queues;

std::byte* new_stack() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw Error("there is no memory for the stack of an asynchronous call");
  mprotect(memory, kGuardBytes, PROT_NONE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fiber::Fiber(std::function<void()> fn) : fn_(std::move(fn)), stack_(new_stack()) {
  getcontext(&there_);
  there_.uc_stack.ss_sp = stack_;
  there_.uc_stack.ss_size = kStackBytes;
  there_.uc_link = nullptr;
  makecontext(&there_, &Fiber::enter, 0);
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::enter() {
  Fiber& self = *current;
  self.fn_();
  self.fn_ = nullptr;
  self.ended_ = true;
  self.change(self.there_, self.here_);
}

void Fiber::change(ucontext_t& from, ucontext_t& to) {
  Exceptions& kept = *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(kept, exceptions_);
  swapcontext(&from, &to);
}

bool Fiber::resume() {
  Fiber* before = std::exchange(current, this);
  change(here_, there_);
  current = before;
  return ended_;
}

bool Fiber::inside() { return current != nullptr; }

void Fiber::pause() { current->change(current->there_, current->here_); }

FiberQueue::~FiberQueue() {
  std::erase(queues, this);
  // Of another thread, where they were not ended: what they hold may be in use, and stays.
  for (auto& fiber : fibers_) static_cast<void>(fiber.release());
}

void FiberQueue::push(std::function<void()> fn) {
  if (fibers_.empty()) {
    owner_ = std::this_thread::get_id();
    if (std::find(queues.begin(), queues.end(), this) == queues.end()) queues.push_back(this);
  }
  fibers_.push_back(std::make_unique<Fiber>(std::move(fn)));
  if (fibers_.size() == 1) progress();
}

void FiberQueue::check_thread() const {
  if (is_own_thread()) return;
  throw Error(
      "an asynchronous call goes on only on the thread that started it, as MPI was initialised for calls of one "
      "thread: "
      "use MPI_THREAD_MULTIPLE");
}

// The first of them.
void FiberQueue::progress() {
  if (running_ || Fiber::inside()) return;
  running_ = true;
  while (!fibers_.empty() && fibers_.front()->resume()) fibers_.pop_front();
  running_ = false;
}

void FiberQueue::progress_all() {
  if (Fiber::inside()) return;
  for (size_t i = 0; i < queues.size(); ++i) {
    if (queues[i]->empty()) queues.erase(queues.begin() + static_cast<ptrdiff_t>(i--));
    else queues[i]->progress();
  }
}

bool FiberQueue::any_here() { return !Fiber::inside() && !queues.empty(); }

bool let_others_go_on() {
  if (Fiber::inside()) {
    Fiber::pause();
    return true;
  }
  if (!queues.empty()) FiberQueue::progress_all();
  return false;
}

}  // namespace tessera
