// More ranks than cores, and long random streams of calls.
#include <random>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace tessera::test {
namespace {

using testing_support::kSanitized;
using testing_support::run_processes_well;

// Element i of rank r's tensor in round k.
int64_t element(int64_t round, int64_t rank, int64_t i) { return round * 1000003 + rank * 10007 + i; }

Tensor numbers(int64_t round, int64_t rank, int64_t length, const Tensor& into = {}) {
  const Tensor t = into.defined() ? into : Tensor::empty(DType::i64, {length});
  t.fill([&](std::span<const int64_t> at) { return element(round, rank, at[0]); });
  return t;
}

// One random collective, the same on all ranks, every element checked.
void call_and_check(Comm& comm, int64_t round, std::minstd_rand& random) {
  const int n = comm.size(), me = comm.rank();
  const auto kind = random() % 6;
  const int64_t scale = int64_t{1} << (random() % 15);
  Sizes lengths;
  for (int r = 0; r < n; ++r) lengths.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(scale)));
  const bool from_heap = random() % 2 == 0;
  const int root = static_cast<int>(random() % static_cast<unsigned>(n));
  const auto make = [&](int64_t length) {
    return numbers(round, me, length, from_heap ? comm.allocate(DType::i64, {length}) : Tensor());
  };
  const int64_t mine = lengths[static_cast<size_t>(me)], common = lengths[0];
  switch (kind) {
    case 0: {
      const auto [all, sizes] = all_gather(comm, make(mine));
      ASSERT_EQ(sizes, lengths);
      int64_t at = 0;
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < lengths[static_cast<size_t>(r)]; ++i)
          ASSERT_EQ(all.at<int64_t>(at++), element(round, r, i));
      }
      break;
    }
    case 1: {
      const Tensor sum = all_reduce(comm, make(common));
      for (int64_t i = 0; i < common; ++i) {
        ASSERT_EQ(sum.at<int64_t>(i), n * element(round, 0, i) + 10007 * n * (n - 1) / 2);
      }
      break;
    }
    case 2: {
      const Tensor part = reduce_scatter(comm, make(common), 0, {}, ReduceOp::max);
      const int64_t chunk = (common + n - 1) / n, start = std::min<int64_t>(chunk * me, common);
      ASSERT_EQ(part.elements(), std::min(chunk, common - start));
      for (int64_t i = 0; i < part.elements(); ++i) ASSERT_EQ(part.at<int64_t>(i), element(round, n - 1, start + i));
      break;
    }
    case 3: {
      const Tensor all = broadcast(comm, me == root ? make(common) : Tensor(), root);
      for (int64_t i = 0; i < common; ++i) ASSERT_EQ(all.at<int64_t>(i), element(round, root, i));
      break;
    }
    case 4: {
      Sizes send(static_cast<size_t>(n), common / 8);
      const auto [got, sizes] = all_to_all_v(comm, make(common / 8 * n), send);
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < common / 8; ++i) {
          ASSERT_EQ(got.at<int64_t>(r * (common / 8) + i), element(round, r, me * (common / 8) + i));
        }
      }
      break;
    }
    default: {
      const auto [all, sizes] = gather(comm, make(mine), root);
      if (me != root) break;
      ASSERT_EQ(sizes, lengths);
      int64_t at = 0;
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < lengths[static_cast<size_t>(r)]; ++i)
          ASSERT_EQ(all.at<int64_t>(at++), element(round, r, i));
      }
    }
  }
}

void stream(int ranks, int64_t calls, unsigned seed) {
  run_processes_well(ranks,
                     [=](Comm& comm) {
                       std::minstd_rand random(seed);
                       for (int64_t i = 0; i < calls && !testing::Test::HasFatalFailure(); ++i)
                         call_and_check(comm, i, random);
                       EXPECT_EQ(comm.stats().exchanges, calls);
                     },
                     {.limit = std::chrono::seconds(600)});
}

TEST(Many, TenThousandMixedCalls) { stream(3, (kSanitized ? 500 : 10000) * soak(), 11); }

TEST(Many, RanksOnFewCores) { stream(16, (kSanitized ? 20 : 300) * soak(), 5); }

TEST(Many, SixtyFourRanks) {
  run_processes_well(64, [](Comm& comm) {
    std::minstd_rand random(99);
    for (int64_t i = 0; i < (kSanitized ? 2 : 20); ++i) call_and_check(comm, i, random);
    Comm eighth = comm.split(comm.rank() % 8);
    EXPECT_EQ(eighth.size(), 8);
    expect_alive(eighth);
    expect_alive(comm);
  });
}

}  // namespace
}  // namespace tessera::test
