// A block that is kept for reuse must look freed to AddressSanitizer, or recycling would hide every use after free.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tessera {

inline void poison([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(data, bytes);
#endif
}

inline void unpoison([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#endif
}

}  // namespace tessera
