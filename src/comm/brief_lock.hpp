// A lock for what is held for less time than sleeping would take, and hardly ever by two: half the price of a mutex.
#pragma once

#include <atomic>
#include <thread>

namespace tessera {

class BriefLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace tessera
