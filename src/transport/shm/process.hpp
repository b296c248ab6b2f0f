// What the kernel offers between processes: knowing that one ended, and reading its memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "transport/shm/segment.hpp"

namespace tessera::shm {

// Those that look at a process throw Error where this one has no descriptor left for that.

// When the process began, in ticks since boot; 0: there is none.
uint64_t start_time(int64_t pid);

// Whether the process is there and runs: one that ended, and that nobody has waited for, does not.
bool lives(const Identity& process);

// A descriptor that becomes readable when the process ends; -1: it is gone (or another has its number now).
int open_process(int64_t pid, uint64_t started);

// This process, as others know it.
Identity own_identity();

// Lets the other descendants of that process, an ancestor of this one, read this process's memory, where the system asks
// for that (Yama). It has room for one: the first that is given stays.
void admit_readers(int64_t ancestor);

enum class Attached { whole, gone, refused };

// Reads `there` of the rank's process into `here`; both have as many bytes, and at most kMostPieces pieces. The token is
// read in the same breath: a process that ended, and whose number another one has, is `gone`, and nothing of it is used.
inline constexpr size_t kMostPieces = 512;
Attached read_process(const Identity& process, std::span<const iovec> here, std::span<const iovec> there);

}  // namespace tessera::shm
