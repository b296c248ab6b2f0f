// The launcher's memory and its hand-over: what is damaged, foreign or closed is an error, and nothing leaks out.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"
#include "transport/shm/connect.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/process.hpp"

namespace tessera::test {
namespace {

using shm::Segment;
using testing_support::Ended;
using testing_support::run_processes;

constexpr int64_t kArena = 4 << 20;

Thrown attaching(int descriptor) {
  return thrown_by([&] { Segment::attach(descriptor); });
}

TEST(Segment, IsWhatTheLauncherMade) {
  const auto made = Segment::create(3, kArena);
  made->arena(1)[100] = std::byte{42};
  const auto seen = Segment::attach(dup(made->descriptor()));
  EXPECT_EQ(seen->ranks(), 3);
  EXPECT_EQ(seen->arena(1).size(), static_cast<size_t>(kArena));
  EXPECT_EQ(seen->arena(1)[100], std::byte{42});
  EXPECT_EQ(seen->launcher(), getpid());
  // Arenas do not meet, and none takes memory before it is used.
  EXPECT_EQ(seen->arena(2).data(), seen->arena(1).data() + kArena);
}

TEST(Segment, HasNoNameAndCannotShrink) {
  const auto made = Segment::create(1, kArena);
  char name[256] = {};
  ASSERT_GT(readlink(fmt::format("/proc/self/fd/{}", made->descriptor()).c_str(), name, sizeof(name) - 1), 0);
  EXPECT_TRUE(contains(name, "/memfd:tessera")) << name;  // in no file system
  EXPECT_NE(ftruncate(made->descriptor(), 4096), 0);
  EXPECT_NE(ftruncate(made->descriptor(), int64_t{1} << 40), 0);
}

TEST(Segment, IsClosedToProgramsThatARankStarts) {
  const auto made = Segment::create(1, kArena);
  EXPECT_EQ(fcntl(made->descriptor(), F_GETFD), FD_CLOEXEC);
  const int inherited = dup(made->descriptor());
  EXPECT_EQ(fcntl(inherited, F_GETFD), 0);
  const auto seen = Segment::attach(inherited);
  EXPECT_EQ(fcntl(inherited, F_GETFD), FD_CLOEXEC);
}

TEST(Segment, ThatIsNoneIsRefused) {
  EXPECT_TRUE(contains(attaching(9999).text, "is not the launcher's memory"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(contains(attaching(ends[0]).text, "is not the launcher's memory"));
  close(ends[1]);
  EXPECT_NE(fcntl(ends[0], F_GETFD), 0) << "what was refused is closed";
  EXPECT_TRUE(contains(attaching(memfd_create("other", MFD_ALLOW_SEALING)).text, "is not sealed"));
  const int empty = memfd_create("other", MFD_ALLOW_SEALING);
  fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_TRUE(contains(attaching(empty).text, "no segment of this version"));
}

TEST(Segment, WithADamagedHeaderIsRefused) {
  for (const size_t word : {0u, 1u, 2u}) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40, ~uint64_t{0}}) {
      const auto made = Segment::create(3, kArena);
      std::memcpy(made->all().data() + 8 * word, &value, 8);
      const Thrown thrown = attaching(dup(made->descriptor()));
      EXPECT_EQ(thrown.type, "Error") << "word " << word << " is " << value;
    }
  }
}

TEST(Segment, OfTooManyRanksIsRefused) {
  EXPECT_TRUE(contains(thrown_by([] { Segment::create(0); }).text, "0 ranks"));
  EXPECT_TRUE(contains(thrown_by([] { Segment::create(100000); }).text, "100000 ranks"));
  EXPECT_EQ(Segment::create(64)->ranks(), 64);  // with as much address space as the machine has memory, for each
}

TEST(HandOver, ThatMakesNoSenseSaysWhat) {
  using shm::parse_hand_over;
  EXPECT_FALSE(parse_hand_over(nullptr, nullptr, nullptr).has_value());
  const auto good = parse_hand_over("2", "4", "17");
  EXPECT_EQ(good->rank, 2);
  EXPECT_EQ(good->ranks, 4);
  EXPECT_EQ(good->descriptor, 17);
  struct Bad {
    const char *rank, *ranks, *descriptor, *says;
  };
  for (const Bad& bad : {Bad{"4", "4", "3", "do not fit"}, Bad{"0", "0", "3", "do not fit"},
                         Bad{"-1", "4", "3", "TESSERA_RANK"}, Bad{"x", "4", "3", "TESSERA_RANK is \"x\""},
                         Bad{"1", nullptr, "3", "TESSERA_RANKS is not set"}, Bad{"1", "4 ", "3", "TESSERA_RANKS"},
                         Bad{"1", "4", "", "TESSERA_SHM_FD"}, Bad{"1", "99999999999", "3", "TESSERA_RANKS"}}) {
    const Thrown thrown = thrown_by([&] { parse_hand_over(bad.rank, bad.ranks, bad.descriptor); });
    EXPECT_TRUE(contains(thrown.text, bad.says)) << thrown;
  }
}

TEST(Way, ThatIsNoneIsRefused) {
  EXPECT_EQ(shm::parse_way(nullptr), shm::Way::choose);
  EXPECT_EQ(shm::parse_way("staged"), shm::Way::staged);
  EXPECT_TRUE(contains(thrown_by([] { shm::parse_way("quickly"); }).text, "in_place, attach and staged"));
}

TEST(Joining, TwiceIsAnError) {
  const auto segment = Segment::create(1, kArena);
  Comm first = shm::connect(segment, 0, shm::Way::choose, {});
  const Thrown thrown = thrown_by([&] { shm::connect(segment, 0, shm::Way::choose, {}); });
  EXPECT_TRUE(contains(thrown.text, "rank 0 has joined already")) << thrown;
  expect_alive(first);
}

TEST(Joining, WithoutOneThatDoesNotComeTimesOut) {
  const auto segment = Segment::create(3, kArena);
  const Thrown thrown = thrown_by([&] { shm::connect(segment, 1, shm::Way::choose, {.timeout = milliseconds(100)}); });
  EXPECT_EQ(thrown.type, "TimeoutError");
  EXPECT_TRUE(contains(thrown.text, "ranks 0,2 did not come")) << thrown;
}

TEST(Joining, WithoutOneThatEndedIsALostPeer) {
  const auto segment = Segment::create(2, kArena);
  segment->note_end(1, 3 << 8);
  const Thrown thrown = thrown_by([&] { shm::connect(segment, 0, shm::Way::choose, {}); });
  EXPECT_EQ(thrown.type, "PeerLostError");
  EXPECT_TRUE(contains(thrown.text, "rank 1 exited with code 3 before it came")) << thrown;
}

// The number of a process that ended may be another's: its memory is not read.
TEST(Process, IsReadOnlyWithItsToken) {
  const shm::Identity me = shm::own_identity();
  uint64_t word = 17, got = 0;
  const iovec here{&got, 8}, there{&word, 8};
  EXPECT_EQ(shm::read_process(me, {&here, 1}, {&there, 1}), shm::Attached::whole);
  EXPECT_EQ(got, 17u);
  shm::Identity other = me;
  ++other.token;
  EXPECT_EQ(shm::read_process(other, {&here, 1}, {&there, 1}), shm::Attached::gone);
  other = me;
  other.token_address = 64;
  EXPECT_NE(shm::read_process(other, {&here, 1}, {&there, 1}), shm::Attached::whole);
  const iovec nowhere{reinterpret_cast<void*>(64), 8};
  EXPECT_EQ(shm::read_process(me, {&here, 1}, {&nowhere, 1}), shm::Attached::refused);
  other = me;
  other.pid = 4194304 + 1;  // beyond the largest there can be
  EXPECT_EQ(shm::read_process(other, {&here, 1}, {&there, 1}), shm::Attached::gone);
}

TEST(Process, IsKnownByItsStart) {
  const shm::Identity me = shm::own_identity();
  const int descriptor = shm::open_process(me.pid, me.started);
  EXPECT_GE(descriptor, 0);
  close(descriptor);
  EXPECT_EQ(shm::open_process(me.pid, me.started + 1), -1);
  EXPECT_EQ(shm::start_time(4194305), 0u);
}

TEST(Limits, AreThoseOfTheMachineOrLess) {
  const shm::MemoryLimit limit = shm::memory_limit();
  EXPECT_GT(limit.available_bytes, 0);
  EXPECT_LE(limit.available_bytes, limit.total_bytes);
  EXPECT_LE(limit.total_bytes, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  EXPECT_FALSE(limit.set_by.empty());
}

// A machine of 1 GiB, and control groups: of each the path, the limit and what is in use.
struct Group {
  std::string path, most, used, cached = "0";
};
shm::MemoryLimit limit_with(const std::vector<Group>& groups, const std::string& own) {
  char name[] = "/tmp/tessera-limits-XXXXXX";
  const std::string root = mkdtemp(name);
  std::filesystem::create_directories(root + "/proc/self");
  std::ofstream(root + "/proc/meminfo") << "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\n";
  std::ofstream(root + "/proc/self/cgroup") << own << "\n";
  for (const Group& group : groups) {
    const bool v2 = own.starts_with("0::");
    const std::string folder = root + "/sys/fs/cgroup" + (v2 ? "" : "/memory") + group.path;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes")) << group.most;
    std::ofstream(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes")) << group.used;
    std::ofstream(folder + "/memory.stat") << "anon 5\ninactive_file " << group.cached << "\n";
  }
  const shm::MemoryLimit limit = shm::memory_limit(root);
  std::filesystem::remove_all(root);
  return limit;
}

TEST(Limits, OfAnOuterGroupThatIsLargerAndNearlyFullHold) {
  const auto limit =
      limit_with({{"/outer", "800000", "799000"}, {"/outer/inner", "500000", "100000"}}, "0::/outer/inner");
  EXPECT_EQ(limit.total_bytes, 500000);
  EXPECT_EQ(limit.set_by, "control group /sys/fs/cgroup/outer/inner");
  EXPECT_EQ(limit.available_bytes, 1000);
  EXPECT_EQ(limit.tightest, "control group /sys/fs/cgroup/outer");
  EXPECT_EQ(limit.tightest_bytes, 800000);
}

TEST(Limits, AreTheMachinesWhereGroupsHaveNone) {
  for (const std::string own : {"0::/a", "0::/", "4:cpu,memory:/a", "3:cpu:/a", ""}) {
    const auto limit = limit_with({{"/a", "max", "5"}}, own);
    EXPECT_EQ(limit.total_bytes, 1 << 30) << own;
    EXPECT_EQ(limit.available_bytes, 1 << 29) << own;
    EXPECT_EQ(limit.tightest, "the machine") << own;
  }
}

TEST(Limits, LeaveOutWhatCanBeReclaimed) {
  for (const std::string own : {"0::/a", "4:cpu,memory:/a"}) {
    const auto limit = limit_with({{"/a", "600000", "500000", "300000"}}, own);
    EXPECT_EQ(limit.available_bytes, 400000) << own;
    EXPECT_EQ(limit.total_bytes, 600000) << own;
    EXPECT_EQ(limit_with({{"/a", "600000", "700000"}}, own).available_bytes, 0) << own;
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // UBSan looks at memory through a pipe, for which there must be descriptors too
// Ranks that may open so many files more, and join.
std::vector<Ended> join_with_files(const std::shared_ptr<Segment>& segment, int more) {
  return run_processes(2, [](Comm& comm) { expect_alive(comm); }, {.come = [&](int rank) {
                         const int next = dup(0);
                         close(next);
                         rlimit limit = {};
                         getrlimit(RLIMIT_NOFILE, &limit);
                         limit.rlim_cur = static_cast<rlim_t>(next + more);
                         setrlimit(RLIMIT_NOFILE, &limit);
                         return shm::connect(segment, rank, shm::Way::choose, {});
                       }});
}

TEST(Join, WithTooFewDescriptorsSaysSo) {
  int joined = 0, failed = 0;
  for (int more = 0; more < 6; ++more) {
    const auto ended = join_with_files(Segment::create(2, kArena), more);
    const bool well = ended[0].exited(0) && ended[1].exited(0);
    joined += well ? 1 : 0;
    failed += well ? 0 : 1;
    // Where it is enough for one of them, that one hears that the other is gone.
    const std::string threw = ended[0].threw + ended[1].threw;
    EXPECT_TRUE(well || contains(threw, "raise ulimit -n")) << more << ": " << threw;
    EXPECT_FALSE(contains(threw, "launcher")) << more << ": " << threw;
    for (const Ended& e : ended) EXPECT_EQ(e.failures, "");
  }
  EXPECT_GT(joined, 0) << "with enough of them";
  EXPECT_GT(failed, 0) << "with none";
}
#endif

TEST(Join, WhileAnotherProcessOfTheRankJoinsNamesNoProcess) {
  const auto segment = Segment::create(2, kArena);
  segment->place(0).joined.store(1);
  const Thrown thrown = thrown_by([&] { shm::connect(segment, 0, shm::Way::choose, {}); });
  EXPECT_TRUE(contains(thrown.text, "rank 0 has joined already: ")) << thrown;
}

// In a child of a rank a Comm only throws, and the rank does not mind.
TEST(ForkedChild, OfARankCannotCall) {
  const auto ended = run_processes(2, [](Comm& comm) {
    comm.barrier();
    const pid_t child = fork();
    if (child == 0) _exit(thrown_by([&] { comm.barrier(); }).text.find("fork") == std::string::npos ? 1 : 0);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    expect_alive(comm);
  });
  for (const Ended& e : ended) EXPECT_EQ(e.failures + e.threw, "");
}

}  // namespace
}  // namespace tessera::test
