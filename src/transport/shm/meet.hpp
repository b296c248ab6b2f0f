// A segment for ranks of one host that no launcher of tessera's started: one makes it and tells the others, by whatever way
// they have to talk, where to find it.
#pragma once

#include <memory>

#include "transport/shm/segment.hpp"

namespace tessera::shm {

// Plain words. They are no secret: the kernel lets only processes of the same user follow them.
struct Invitation {
  int64_t pid = 0;
  uint64_t started = 0;
  int64_t descriptor = -1;
};

// The segment must live until all have accepted.
Invitation invite(const Segment& segment);
// Throws Error where the process is gone, belongs to somebody else, or the file is no segment.
std::shared_ptr<Segment> accept(const Invitation& invitation);

// The same for two processes where one can open what the other has: the machine since it was started, what is apart in
// containers (processes, sockets), and the user. A word.
std::string host_identity();

}  // namespace tessera::shm
