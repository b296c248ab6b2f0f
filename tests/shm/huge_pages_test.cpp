// Huge pages of the shared heap: there where the kernel gives them, for the owner and its peers, and missed nowhere.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/processes.hpp"
#include "transport/shm/heap.hpp"
#include "transport/shm/huge_pages.hpp"

namespace tessera::test {
namespace {

using shm::Huge;
using shm::kHugePage;
using testing_support::run_processes_well;

constexpr auto kHuge = static_cast<int64_t>(kHugePage);

// Of the memory that ranks share, what this process has mapped in huge pages.
int64_t huge_bytes_mapped() {
  std::ifstream in("/proc/self/smaps");
  std::string line;
  bool ours = false;
  int64_t sum = 0;
  while (std::getline(in, line)) {
    const size_t name = line.find(' ');
    if (name != std::string::npos && name > 0 && line[name - 1] != ':') ours = line.find("memfd:tessera") != line.npos;
    if (ours && line.starts_with("ShmemPmdMapped:")) sum += std::stoll(line.substr(15)) * 1024;
  }
  return sum;
}

// Tried here by itself, so that a heap that gives up too early is found out.
bool kernel_gives_huge_pages() {
  static const bool gives = [] {
    const int file = memfd_create("probe", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kHuge) != 0) return false;
    void* room = mmap(nullptr, 2 * kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(room) + kHugePage - 1) / kHugePage * kHugePage;
    auto* const page = static_cast<char*>(
        mmap(reinterpret_cast<void*>(at), kHugePage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
    page[5] = 1;
    const bool collapsed = madvise(page, kHugePage, 25 /* MADV_COLLAPSE */) == 0;
    munmap(room, 2 * kHugePage);
    close(file);
    return collapsed;
  }();
  return gives;
}

TEST(HugePages, CanStartWhereArenasDoInEveryProcess) {
  for (const int ranks : {1, 2, 3, 7}) {
    const auto made = shm::Segment::create(ranks, 3 * kHuge);
    const auto seen = shm::Segment::attach(dup(made->descriptor()));
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(made->arena(r).data()) % kHugePage, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(seen->arena(r).data()) % kHugePage, 0u);
    }
  }
}

TEST(HugePages, KeepWhatIsThere) {
  if (!kernel_gives_huge_pages()) GTEST_SKIP() << "this kernel gives shared memory no huge pages";
  const auto segment = shm::Segment::create(1, 2 * kHuge);
  const auto arena = segment->arena(0);
  arena[7] = std::byte{1};
  arena[kHugePage - 1] = std::byte{2};
  const Huge huge = shm::ask_for_huge_pages(arena.data(), 2 * kHugePage);
  if (huge == Huge::not_now) GTEST_SKIP() << "the machine has no two huge pages just now";
  EXPECT_EQ(huge, Huge::given);
  EXPECT_EQ(arena[7], std::byte{1});
  EXPECT_EQ(arena[kHugePage - 1], std::byte{2});
  EXPECT_EQ(std::accumulate(arena.begin(), arena.end(), 0, [](int sum, std::byte b) { return sum + int(b); }), 3);
  EXPECT_EQ(huge_bytes_mapped(), 2 * kHuge);
}

TEST(HugePages, AreTakenByHeapsThatAreUsed) {
  if (!kernel_gives_huge_pages()) GTEST_SKIP() << "this kernel gives shared memory no huge pages";
  const auto segment = shm::Segment::create(2, 8 * kHuge);
  const auto heap = std::make_shared<shm::Heap>(segment, 1, 5000);
  const auto few = heap->allocate(100), page = heap->allocate(100 << 10);
  std::fill_n(page.get(), 100 << 10, std::byte{7});
  EXPECT_EQ(huge_bytes_mapped(), 0) << "a rank that uses little takes little";
  EXPECT_LE(heap->usage().touched_bytes, 128 << 10);
  const auto more = heap->allocate(1 << 20);
  std::fill_n(more.get(), 1 << 20, std::byte{8});
  EXPECT_EQ(huge_bytes_mapped(), kHuge) << "with what was in use before";
  EXPECT_EQ(std::count(page.get(), page.get() + (100 << 10), std::byte{7}), 100 << 10);
  EXPECT_EQ(heap->usage().touched_bytes, kHuge - 8192) << "all of it counts";
  const auto much = heap->allocate(3 * kHuge);
  std::fill_n(much.get(), 3 * kHugePage, std::byte{9});
  EXPECT_EQ(huge_bytes_mapped(), 4 * kHuge);
  EXPECT_EQ(heap->usage().touched_bytes, 4 * kHuge - 8192);
  EXPECT_EQ(std::count(more.get(), more.get() + (1 << 20), std::byte{8}), 1 << 20);
  EXPECT_NE(heap->allocate(4 * kHuge), nullptr) << "up to the end of the arena";
  EXPECT_EQ(heap->usage().touched_bytes, 8 * kHuge - 8192);
}

// Rank 0 alone has something in its heap: what the others have mapped of huge pages is rank 0's.
void gather_from_the_first(Comm& comm, int64_t mapped) {
  const int64_t elements = 4 * kHuge / 4;
  const Tensor mine = comm.rank() == 0 ? comm.allocate(DType::i32, {elements}) : Tensor::empty(DType::i32, {0});
  mine.fill([](std::span<const int64_t> i) { return static_cast<int32_t>(i[0] * 7); });
  const Tensor out = Tensor::empty(DType::i32, {elements});
  all_gather(comm, mine, {.out = out});
  for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(out.span<int32_t>()[static_cast<size_t>(i)], i * 7) << i;
  EXPECT_EQ(huge_bytes_mapped() / (4 * kHuge) * (4 * kHuge), mapped) << "rank " << comm.rank();
}

TEST(HugePages, AreThePeersToo) {
  if (!kernel_gives_huge_pages()) GTEST_SKIP() << "this kernel gives shared memory no huge pages";
  for (const int ranks : {1, 2, 3, 4}) {
    run_processes_well(ranks, [](Comm& comm) { gather_from_the_first(comm, 4 * kHuge); });
  }
}

// As on kernels that have none.
TEST(HugePages, AreNotNeeded) {
  for (const int ranks : {1, 2, 3}) {
    run_processes_well(ranks, [](Comm& comm) {
      ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
      gather_from_the_first(comm, 0);
    });
  }
  run_processes_well(1, [](Comm&) {
    ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    const auto segment = shm::Segment::create(1, 4 * kHuge);
    EXPECT_EQ(shm::ask_for_huge_pages(segment->arena(0).data(), kHugePage), Huge::never);
    const auto heap = std::make_shared<shm::Heap>(segment, 0, 5000);
    const auto one = heap->allocate(kHuge), two = heap->allocate(1 << 20);
    EXPECT_EQ(heap->usage().touched_bytes, kHuge + (1 << 20)) << "no more than was asked for";
  });
}

// A machine with so much memory, of which half is left.
class Machine {
 public:
  explicit Machine(int64_t available_kib) {
    std::filesystem::create_directories(root() + "/proc");
    std::ofstream(root() + "/proc/meminfo")
        << "MemTotal: " << 2 * available_kib << " kB\nMemAvailable: " << available_kib << " kB\n";
  }
  ~Machine() { std::filesystem::remove_all(root()); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  const std::string& root() const { return root_; }

 private:
  const std::string root_ = fmt::format("{}tessera-machine.{}", testing::TempDir(), getpid());
};

// What a rank takes without need others may need.
TEST(HugePages, AreLeftWhereMemoryIsShort) {
  const auto segment = shm::Segment::create(32, 16 * kHuge);
  {
    const Machine machine(24 << 10);
    const auto heap = std::make_shared<shm::Heap>(segment, 0, 0, machine.root());
    const auto one = heap->allocate(400 << 10);
    EXPECT_LE(heap->usage().touched_bytes, 512 << 10);
    EXPECT_THROW(heap->allocate(25 << 20), Error);
  }
  const Machine machine(32 << 20);
  const auto heap = std::make_shared<shm::Heap>(segment, 1, 0, machine.root());
  const auto one = heap->allocate(400 << 10);
  EXPECT_TRUE(!kernel_gives_huge_pages() || heap->usage().touched_bytes == kHuge);
}

TEST(Heap, LeavesWhatOtherRanksWerePromised) {
  const Machine machine(24 << 10);
  const auto segment = shm::Segment::create(3, 16 * kHuge);
  const auto heap = std::make_shared<shm::Heap>(segment, 1, 0, machine.root());
  shm::Place& other = segment->place(0);
  other.promised = 20 << 20;
  EXPECT_THROW(heap->allocate(10 << 20), Error);
  EXPECT_EQ(segment->place(1).promised, 0) << "who was refused claims nothing";
  other.promised = INT64_MAX;  // a damaged one
  segment->place(2).promised = INT64_MIN;
  EXPECT_THROW(heap->allocate(1 << 20), Error);
  other.ended = 1;
  const auto ten = heap->allocate(10 << 20);
  EXPECT_NE(ten, nullptr);
  const int64_t promised = segment->place(1).promised;
  EXPECT_GE(promised, 0);
  EXPECT_LT(promised, 1 << 20) << "what is taken is promised no more";
}

}  // namespace
}  // namespace tessera::test
