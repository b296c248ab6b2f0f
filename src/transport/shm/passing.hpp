// Handing a descriptor to processes that know a secret: over a socket that has no file, with the kernel's word on who is at
// the other end.
#pragma once

#include <span>
#include <string>

#include "comm/futex.hpp"
#include "transport/shm/segment.hpp"

namespace tessera::shm {

// Closes what it holds.
class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int descriptor = -1) : descriptor_(descriptor) {}
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(other.release()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  ~OwnedDescriptor();
  int get() const { return descriptor_; }
  int release();

 private:
  int descriptor_;
};

// Where a descriptor can be fetched, as one word that is worth keeping private.
struct Address {
  std::string name;    // of the socket: the kernel chose it
  std::string secret;  // random
};

class Desk {
 public:
  Desk();  // throws Error
  const Address& address() const { return address_; }
  // Gives the descriptor to each of the guests, by rank, but to rank 0, who is here. Throws PeerLostError where one of them
  // is gone, TimeoutError with the names of those that did not come.
  void hand_out(int descriptor, std::span<const Identity> guests, Deadline deadline);

 private:
  OwnedDescriptor socket_;
  Address address_;
};

// The descriptor that the host gives to this rank. Throws Error, PeerLostError, TimeoutError.
int fetch(const Address& address, const Identity& host, int rank, Deadline deadline);

}  // namespace tessera::shm
