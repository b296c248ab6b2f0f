// What carries bytes between hosts, where that is no MPI: an engine that the program has anyway, such as a process group of
// another framework. tessera opens no connection to another host by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tessera {

// A message on its way. Its memory is the engine's until wait() has come back, or this is destroyed.
class Carried {
 public:
  virtual ~Carried() = default;
  // Returns when it is over; false: stop() was called before that. Throws a std::exception where it never will be, as the
  // peer is lost.
  virtual bool wait() = 0;
  // Ends the wait, or the one that comes. Any thread may call it.
  virtual void stop() noexcept = 0;
};

// Carries messages between the ranks of one group, each to each. Messages of one channel (0 and 1 are used) between two ranks
// arrive in the order in which they were sent, in receives in the order in which they were posted. Thread safety: all
// functions may be called at any time.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Both return at once, and throw a std::exception where the peer is lost. A receive may be longer than its message.
  virtual std::unique_ptr<Carried> send(const void* data, int64_t bytes, int to, int channel) = 0;
  virtual std::unique_ptr<Carried> receive(void* data, int64_t bytes, int from, int channel) = 0;
};

// Makes the carrier of the ranks that join(), when it turns out that they are on several hosts. Collective among them.
using MakeCarrier = std::function<std::shared_ptr<Carrier>()>;

}  // namespace tessera
