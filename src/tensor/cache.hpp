// What the caches of this machine can hold, and so what goes around them.
#pragma once

#include <cstdint>

namespace tessera {

// The largest cache that a core reads through, as the kernel tells it: the C library counts those of other sockets and dies, too.
int64_t last_level_cache_bytes();

// From this size of a job on, results go around the cache. Below, a call alone may take longer for that, but not a program
// that then reads its results: out of the cache that takes a third of the time. Sums have more to read, which results would
// push out. Measured with 8 to 96 MiB of results in turn, with 32 MiB of cache; 2 MiB at least.
int64_t copy_stream_bytes();
int64_t sum_stream_bytes();

// What a job of less than this reads and writes is in some core's own cache, more likely than not.
inline constexpr int64_t kNearBytes = int64_t{512} << 10;

}  // namespace tessera
