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
thread_local std::vector<std::shared_ptr<FiberQueue::Fibers>> queues;

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

FiberQueue::~FiberQueue() { give_up(); }

void FiberQueue::give_up() {
  std::lock_guard lock(own_->going_on);
  own_->given_up = true;
}

void FiberQueue::push(std::function<void()> fn) {
  if (empty()) {
    own_->owner = std::this_thread::get_id();
    if (std::find(queues.begin(), queues.end(), own_) == queues.end()) queues.push_back(own_);
  }
  own_->fibers.push_back(std::make_unique<Fiber>(std::move(fn)));
  own_->size = own_->fibers.size();
  if (own_->fibers.size() == 1) own_->progress();
}

void FiberQueue::check_thread() const {
  if (is_own_thread()) return;
  throw Error(
      "an asynchronous call goes on only on the thread that started it, as MPI was initialised for calls of one "
      "thread: "
      "use MPI_THREAD_MULTIPLE");
}

FiberQueue::Fibers::~Fibers() {
  for (auto& fiber : fibers) static_cast<void>(fiber.release());
}

// The first of them.
void FiberQueue::Fibers::progress() {
  if (running || Fiber::inside()) return;
  running = true;
  while (true) {
    std::lock_guard lock(going_on);
    if (given_up || fibers.empty() || !fibers.front()->resume()) break;
    fibers.pop_front();
    size = fibers.size();
  }
  running = false;
}

void FiberQueue::progress_all() {
  if (Fiber::inside()) return;
  for (size_t i = 0; i < queues.size(); ++i) {
    const auto queue = queues[i];
    if (queue->given_up || queue->fibers.empty()) queues.erase(queues.begin() + static_cast<ptrdiff_t>(i--));
    else queue->progress();
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
