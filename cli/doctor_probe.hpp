// Trying out, rather than reading up, what works between processes here, and how fast.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "transport/shm/huge_pages.hpp"

namespace tessera::cli {

// 0: works; else an errno.
int try_sealed_memory();   // an anonymous file that can be mapped and sealed
int try_process_handle();  // a descriptor that tells the end of a process
int try_futex();           // one process wakes another

// For 2 MiB of shared memory, as ranks ask for them.
shm::Huge try_huge_pages();

// One child of a parent reads the memory of another, as ranks of one launcher do.
struct Attach {
  int plain = 0;     // 0: works; else an errno
  int admitted = 0;  // the same, when the owner has admitted the parent's children (which Yama asks for)
};
Attach try_attach();

// Bytes a second, of one core that takes what another process has.
struct CopySpeed {
  int64_t bytes = 0;
  double in_place = 0;  // out of shared memory
  double attach = 0;    // by process_vm_readv; 0: refused
  double staged = 0;    // the owner copies it into shared memory, then the reader out of it
};

struct Speeds {
  std::vector<CopySpeed> copies;
  // The sizes at which reading across processes is faster than two copies; none: none that was measured.
  struct Range {
    int64_t from = 0;
    std::optional<int64_t> to;  // none: the largest that was measured, and so probably all larger ones
  };
  std::optional<Range> attach_wins;
  // Bytes a second when 64 MiB are written for the first time, and again.
  double fresh_shared = 0, warm_shared = 0, fresh_private_huge = 0;
};

// Takes one to two seconds and about 130 MiB. Throws Error where the processes cannot be started.
Speeds measure(bool attach_works);

}  // namespace tessera::cli
