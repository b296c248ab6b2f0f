// The pool that the memory of new tensors comes from.
#pragma once

#include <cstdint>
#include <memory>

namespace tessera {

// A fresh output costs several times the copy into it in page faults, so memory
// is recycled and large blocks ask for huge pages. What is kept for reuse and
// what is in use never exceed twice the most that was in use at once. Thread
// safety: every function may be called from any thread.
namespace pool {

struct Usage {
  int64_t live_bytes = 0;    // in use
  int64_t cached_bytes = 0;  // kept for reuse
  int64_t peak_bytes = 0;    // the most in use at once, since the start or the last trim()
  int64_t fresh_blocks = 0;  // blocks ever asked of the system
};

// At least `bytes` bytes, aligned to 64; goes back to the pool with the last
// reference. Throws Error where the system has no memory, saying how much was
// asked for.
std::shared_ptr<void> allocate(int64_t bytes);
Usage usage();
// Gives all that is kept for reuse back to the system.
void trim();

}  // namespace pool
}  // namespace tessera
