// Communicators of ranks whose shared heap is full: all ranks say the same, or all go on.
#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"

namespace tessera::test {
namespace {

using testing_support::Ended;
using testing_support::run_processes;
using testing_support::run_processes_well;

constexpr int64_t kHeapBytes = 4 << 20;

// Takes all that the heap has, down to its smallest piece.
std::vector<Tensor> fill_heap(Comm& comm) {
  std::vector<Tensor> kept;
  for (int64_t bytes = 1 << 20; bytes >= 64; bytes /= 2) {
    while (true) {
      const int64_t before = comm.stats().heap_misses;
      Tensor t = comm.allocate(DType::u8, {bytes});
      if (comm.stats().heap_misses > before) break;
      kept.push_back(std::move(t));
    }
  }
  return kept;
}

TEST(FullHeap, OfOneRankMakesSplitFailOnAllAndTheCommunicatorGoesOn) {
  for (const int ranks : {2, 3, 4, 7}) {
    run_processes_well(ranks,
                       [](Comm& comm) {
                         const int full = comm.size() - 1;
                         std::vector<Tensor> kept;
                         if (comm.rank() == full) kept = fill_heap(comm);
                         // In the second the full rank leads a group of its own, and others' groups fail with it.
                         for (const int64_t color : {int64_t{0}, int64_t{comm.rank()}}) {
                           const Thrown thrown = thrown_by([&] { comm.split(color, -comm.rank()).barrier(); });
                           EXPECT_EQ(thrown.type, "Error") << thrown;
                           EXPECT_TRUE(contains(thrown.text, fmt::format("rank {} cannot make its group", full)))
                               << thrown;
                           EXPECT_TRUE(contains(thrown.text, "tessera run --heap")) << thrown;
                           EXPECT_EQ(all_reduce(comm, number(1)).at<int64_t>(0), comm.size());
                         }
                         kept.clear();
                         for (int i = 0; i < 100; ++i) {  // nothing of the failed ones was kept
                           Comm all = comm.split(0);
                           expect_alive(all);
                         }
                       },
                       {.heap_bytes = kHeapBytes});
  }
}

// All but `roomy` have a full heap when rank 1 dies.
std::vector<Ended> shrink_with_full_heaps(int roomy) {
  return run_processes(
      4,
      [roomy](Comm& comm) {
        std::vector<Tensor> kept;
        if (comm.rank() != roomy) kept = fill_heap(comm);
        comm.barrier();
        if (comm.rank() == 1) kill(getpid(), SIGKILL);
        EXPECT_EQ(thrown_by([&] {
                    while (true) comm.barrier();
                  }).type,
                  "PeerLostError");
        if (roomy >= 0) {
          Comm rest = comm.shrink();
          EXPECT_EQ(rest.size(), 3);
          expect_alive(rest);
          return;
        }
        const Thrown thrown = thrown_by([&] { comm.shrink(); });
        EXPECT_EQ(thrown.type, "Error") << thrown;
        EXPECT_TRUE(contains(thrown.text, "no rank has room") && contains(thrown.text, "tessera run --heap")) << thrown;
      },
      {.heap_bytes = kHeapBytes});
}

TEST(FullHeap, OfSomeLeavesShrinkToThoseWithRoom) {
  for (const int roomy : {0, 2, 3}) {
    const auto ended = shrink_with_full_heaps(roomy);
    for (const size_t r : {0, 2, 3}) EXPECT_EQ(ended[r].failures + ended[r].threw, "") << r << ", room in " << roomy;
  }
}

TEST(FullHeap, OfAllMakesShrinkFailOnAll) {
  const auto ended = shrink_with_full_heaps(-1);
  for (const size_t r : {0, 2, 3}) EXPECT_EQ(ended[r].failures + ended[r].threw, "") << r;
}

}  // namespace
}  // namespace tessera::test
