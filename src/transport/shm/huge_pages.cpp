#include "transport/shm/huge_pages.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "transport/shm/segment.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace tessera::shm {

Huge ask_for_huge_pages(std::byte* begin, size_t bytes) {
  // The kernel joins pages that are there, and refuses where there is none.
  for (size_t at = 0; at < bytes; at += kHugePage) madvise(begin + at, kPage, MADV_POPULATE_READ);
  // One call for all: each makes every core hand in its list of fresh pages first.
  if (madvise(begin, bytes, MADV_COLLAPSE) == 0) return Huge::given;
  return errno == EAGAIN || errno == EBUSY || errno == ENOMEM ? Huge::not_now : Huge::never;
}

}  // namespace tessera::shm
