// Huge pages for shared memory. The system's setting for it (shmem_enabled) is `never` nearly everywhere, but a process may
// ask for them by name, since Linux 6.1, and needs no right for that.
#pragma once

#include <cstddef>

namespace tessera::shm {

enum class Huge {
  given,    // there is one huge page for each 2 MiB
  not_now,  // there was no memory in one piece, or somebody held a page; it may work another time
  never,    // an old kernel, or they are forbidden: to this process, or to all
};

// Makes huge pages of [begin, begin + bytes), multiples of 2 MiB both, which lies in one mapping of shared memory that is
// aligned as its file is. What is there stays; what is not is zero. It takes about as long as zeroing does. Where it is not
// `given`, some may have got one.
Huge ask_for_huge_pages(std::byte* begin, size_t bytes);

}  // namespace tessera::shm
