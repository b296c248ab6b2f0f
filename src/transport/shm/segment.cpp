#include "transport/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "comm/board.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/process.hpp"

namespace tessera::shm {
namespace {

// "tessera1", read as a little-endian word, and how large what ranks share is in this build.
constexpr uint64_t kMagic = 0x3161726573736574 ^ (uint64_t{sizeof(Slot)} << 20);
constexpr size_t kArenaUnit = kHugePage;        // arenas start where huge pages can
constexpr size_t kMostBytes = size_t{1} << 44;  // of address space that one communicator may take
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  uint64_t magic = kMagic;
  uint64_t ranks = 0;
  uint64_t arena_bytes = 0;
  int64_t launcher = 0;
  uint64_t launcher_started = 0;
};

size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t places_at() { return whole(sizeof(Header), kPage); }
size_t reads_at(size_t ranks) { return places_at() + whole(ranks * sizeof(Place), kPage); }
size_t board_at(size_t ranks) { return reads_at(ranks) + whole(ranks * ranks, kPage); }
size_t arenas_at(size_t ranks) { return whole(board_at(ranks) + Board::bytes(static_cast<int>(ranks)), kArenaUnit); }

[[noreturn]] void fail(const std::string& what) { throw Error(fmt::format("shared memory: {}", what)); }
[[noreturn]] void fail_with_errno(const std::string& what) { fail(fmt::format("{}: {}", what, std::strerror(errno))); }

// Every process maps it at a multiple of the size of huge pages: only so can one entry of its page table hold one. `bytes`
// is such a multiple too.
std::byte* map(int descriptor, size_t bytes) {
  void* reserved = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(reserved);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  std::byte* const base = start + before;
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
    munmap(start, bytes + kHugePage);
    return nullptr;
  }
  if (before > 0) munmap(start, before);
  munmap(base + bytes, kHugePage - before);
  madvise(base, bytes, MADV_DONTDUMP);  // a core file would hold every rank's arena
  return base;
}

// Owns a descriptor until it is taken.
struct Guard {
  int descriptor;
  ~Guard() {
    if (descriptor >= 0) close(descriptor);
  }
  int take() { return std::exchange(descriptor, -1); }
};

}  // namespace

Segment::Segment(int descriptor, std::byte* base, size_t bytes, int ranks, size_t arena_bytes)
    : descriptor_(descriptor), base_(base), bytes_(bytes), ranks_(ranks), arena_bytes_(arena_bytes) {}

Segment::~Segment() {
  munmap(base_, bytes_);
  close(descriptor_);
}

std::shared_ptr<Segment> Segment::create(int ranks, int64_t arena_bytes, bool led) {
  if (ranks < 1 || ranks > kMaxRanks) fail(fmt::format("{} ranks; 1 to {} work", ranks, kMaxRanks));
  if (arena_bytes < 0) fail(fmt::format("a heap of {} bytes is not positive", arena_bytes));
  const auto n = static_cast<size_t>(ranks);
  size_t each = whole(static_cast<size_t>(arena_bytes > 0 ? arena_bytes : memory_limit().total_bytes), kArenaUnit);
  each = std::min(each, kMostBytes / n / kArenaUnit * kArenaUnit);
  Guard file{memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (file.descriptor < 0) fail_with_errno("memfd_create");
  // A limit on the size of files or of the address space (ulimit -f, -v) may leave room for less.
  std::byte* base = nullptr;
  size_t bytes = 0;
  for (; base == nullptr; each = whole(each / 2, kArenaUnit)) {
    bytes = arenas_at(n) + n * each;
    if (ftruncate(file.descriptor, static_cast<off_t>(bytes)) == 0) base = map(file.descriptor, bytes);
    if (base != nullptr) break;
    if (each <= kArenaUnit) fail_with_errno(fmt::format("no room for {} ranks", ranks));
  }
  if (fcntl(file.descriptor, F_ADD_SEALS, kSeals) != 0) fail_with_errno("sealing");
  const int64_t launcher = led ? getpid() : 0;
  new (base)
      Header{.ranks = n, .arena_bytes = each, .launcher = launcher, .launcher_started = led ? start_time(launcher) : 0};
  std::shared_ptr<Segment> segment(new Segment(file.take(), base, bytes, ranks, each));
  for (int r = 0; r < ranks; ++r) new (&segment->place(r)) Place;
  Board::initialise(segment->board(), ranks);
  return segment;
}

std::shared_ptr<Segment> Segment::attach(int descriptor) {
  Guard file{descriptor};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) fail(fmt::format("descriptor {} is not the launcher's memory", descriptor));
  // Sealed, its size stays what it is while this looks at it.
  if ((seals & kSeals) != kSeals) fail(fmt::format("descriptor {} is not sealed", descriptor));
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) fail_with_errno("fstat");
  const auto bytes = static_cast<size_t>(status.st_size);
  Header header{};
  if (pread(descriptor, &header, sizeof(header), 0) != sizeof(header) || header.magic != kMagic) {
    fail(
        fmt::format("descriptor {} holds no segment of this version of tessera; use the launcher that belongs to the "
                    "program's library",
                    descriptor));
  }
  const size_t n = header.ranks;
  if (n < 1 || n > kMaxRanks || header.arena_bytes % kArenaUnit != 0 || header.arena_bytes > kMostBytes ||
      bytes != arenas_at(n) + n * header.arena_bytes) {
    fail(fmt::format("the segment's header is damaged: {} ranks, arenas of {} bytes, {} bytes in all", n,
                     header.arena_bytes, bytes));
  }
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) fail_with_errno("FD_CLOEXEC");
  std::byte* base = map(descriptor, bytes);
  if (base == nullptr) {
    fail_with_errno(
        fmt::format("cannot map {} bytes of address space (raise ulimit -v, or give a smaller --heap)", bytes));
  }
  return std::shared_ptr<Segment>(new Segment(file.take(), base, bytes, static_cast<int>(n), header.arena_bytes));
}

Place& Segment::place(int rank) const { return reinterpret_cast<Place*>(base_ + places_at())[rank]; }

std::atomic<uint8_t>& Segment::reads(int reader, int owner) const {
  return reinterpret_cast<std::atomic<uint8_t>*>(base_ +
                                                 reads_at(static_cast<size_t>(ranks_)))[reader * ranks_ + owner];
}

void* Segment::board() const { return base_ + board_at(static_cast<size_t>(ranks_)); }

std::span<std::byte> Segment::arena(int rank) const {
  return {base_ + arenas_at(static_cast<size_t>(ranks_)) + static_cast<size_t>(rank) * arena_bytes_, arena_bytes_};
}

int64_t Segment::launcher() const { return reinterpret_cast<const Header*>(base_)->launcher; }
uint64_t Segment::launcher_started() const { return reinterpret_cast<const Header*>(base_)->launcher_started; }

void Segment::ring(int rank) const {
  Place& p = place(rank);
  p.bell.fetch_add(1, std::memory_order_seq_cst);
  if (p.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(p.bell);
}

void Segment::ring_all() const {
  for (int r = 0; r < ranks_; ++r) ring(r);
}

void Segment::note_end(int rank, int wait_status) const {
  Place& p = place(rank);
  p.wait_status = wait_status;
  p.ended.store(1, std::memory_order_release);
  ring_all();
}

std::string Segment::last_words(int rank) const {
  const char* text = place(rank).last_words;
  return std::string(text, strnlen(text, sizeof(Place::last_words)));
}

std::string text_of_status(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WIFEXITED(status) ? WEXITSTATUS(status) : status);
}

void hand_over(const Segment& segment, int rank) {
  fcntl(segment.descriptor(), F_SETFD, 0);
  setenv(kRankVariable, std::to_string(rank).c_str(), 1);
  setenv(kRanksVariable, std::to_string(segment.ranks()).c_str(), 1);
  setenv(kDescriptorVariable, std::to_string(segment.descriptor()).c_str(), 1);
}

std::optional<HandOver> parse_hand_over(const char* rank, const char* ranks, const char* descriptor) {
  if (rank == nullptr && ranks == nullptr && descriptor == nullptr) return std::nullopt;
  const auto number = [](const char* name, const char* text) {
    int value = -1;
    const char* end = text == nullptr ? nullptr : text + std::strlen(text);
    if (text == nullptr || std::from_chars(text, end, value).ptr != end || text == end || value < 0) {
      fail(fmt::format("{} is {}, not a number from 0 on; start the program with `tessera run`, or unset it", name,
                       text == nullptr ? "not set" : fmt::format("\"{:.40}\"", text)));
    }
    return value;
  };
  const HandOver given{number(kRankVariable, rank), number(kRanksVariable, ranks),
                       number(kDescriptorVariable, descriptor)};
  if (given.ranks < 1 || given.ranks > kMaxRanks || given.rank >= given.ranks) {
    fail(fmt::format("{}={} and {}={} do not fit", kRankVariable, given.rank, kRanksVariable, given.ranks));
  }
  return given;
}

std::optional<HandOver> hand_over_from_environment() {
  return parse_hand_over(std::getenv(kRankVariable), std::getenv(kRanksVariable), std::getenv(kDescriptorVariable));
}

}  // namespace tessera::shm
