// Ordinary memory that peers pick rows out of, or add up: it goes through shared memory, and only what they read of it.
#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "collective/moves.hpp"
#include "support/processes.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::test {
namespace {

using testing_support::attach_allowed;
using testing_support::run_processes_well;
using testing_support::ways;

int64_t element(std::span<const int64_t> at, int64_t factor) { return (at[0] * 1009 + at[1]) * factor + factor; }

// This rank's box of the whole, times `factor`; with gaps between its rows, if wanted.
Tensor part_of(const Box& box, int64_t factor, bool gaps) {
  const Dims room = {box.extent[0], box.extent[1] + (gaps ? 5 : 0)};
  const Tensor part = Tensor::zeros(DType::i64, room).narrow(1, gaps ? 2 : 0, box.extent[1]);
  part.fill([&](std::span<const int64_t> i) {
    return element(std::array{i[0] + box.offset[0], i[1] + box.offset[1]}, factor);
  });
  return part;
}

void expect_part(const Tensor& part, const Box& box, int64_t factor) {
  ASSERT_EQ(part.shape(), box.extent);
  ASSERT_TRUE(part.equals(part_of(box, factor, false)));
}

// Every number of calls from one line: the first, the ones that repeat it, and with other elements.
void check_sums(Comm& comm, const Dims& shape, bool gaps) {
  const int n = comm.size();
  const int64_t terms = int64_t{n} * (n + 1) / 2;
  for (const int64_t dim : {0, 1}) {
    Sizes sizes(static_cast<size_t>(n), 0);  // some have nothing
    sizes.front() = shape[static_cast<size_t>(dim)] / 3;
    sizes.back() += shape[static_cast<size_t>(dim)] - sizes.front();
    Box own = Box::whole(shape);
    for (int r = 0; r < comm.rank(); ++r) own.offset[static_cast<size_t>(dim)] += sizes[static_cast<size_t>(r)];
    own.extent[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(comm.rank())];
    for (int64_t i = 1; i < 5; ++i) {
      const Tensor x = part_of(Box::whole(shape), i * (comm.rank() + 1), gaps);
      expect_part(reduce_scatter(comm, x, dim, sizes), own, i * terms);
      expect_part(all_reduce(comm, x), Box::whole(shape), i * terms);
    }
  }
}

void check_layouts(Comm& comm, const Dims& shape, bool gaps) {
  const Mesh mesh({{"x", comm.size()}});
  const std::vector<Layout> layouts = {{mesh, {Shard(0)}}, {mesh, {Shard(1)}}, {mesh, {Replicate()}}, {mesh, {At(0)}}};
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      SCOPED_TRACE(fmt::format("{} to {}", from, to));
      for (int64_t i = 1; i < 5; ++i) {
        const auto box = from.box(shape, comm.rank()), target = to.box(shape, comm.rank());
        const Tensor moved = redistribute(comm, box ? part_of(*box, i, gaps) : Tensor(), from, to);
        ASSERT_EQ(moved.defined(), target.has_value());
        if (target) expect_part(moved, *target, i);
      }
    }
  }
}

TEST(Staged, SumsAndLayoutsAreRightByEveryWay) {
  for (const shm::Way way : ways()) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const bool gaps : {false, true}) {
        run_processes_well(ranks,
                           [gaps](Comm& comm) {
                             for (const Dims& shape : {Dims{97, 41}, Dims{301, 257}}) {
                               check_sums(comm, shape, gaps);
                               check_layouts(comm, shape, gaps);
                             }
                           },
                           {.way = way});
      }
    }
  }
}

TEST(Staged, IsOnlyWhatOthersRead) {
  for (const int ranks : {2, 3, 4}) {
    run_processes_well(ranks, [](Comm& comm) {
      const int64_t n = comm.size(), rows = 32 * n, columns = 600 * n;
      const Tensor term = part_of(Box::whole({rows, columns}), 1, false);
      const auto expect_staged = [&](const char* what, int64_t bytes) {
        EXPECT_EQ(comm.stats().bytes_staged, bytes) << what;
        EXPECT_EQ(comm.stats().bytes_attached, 0) << what;
        comm.reset_stats();
      };
      ASSERT_GT(term.bytes(), shm::eager_bytes(comm.size()));
      comm.reset_stats();
      const int64_t others = term.bytes() / n * (n - 1);
      reduce_scatter(comm, term, 0);
      expect_staged("reduce_scatter", others);
      reduce_scatter(comm, term, 1);
      expect_staged("reduce_scatter of columns", others);
      all_reduce(comm, term);
      expect_staged("all_reduce", others);
      const Mesh mesh({{"x", comm.size()}});
      const Layout to(mesh, {Shard(1)});
      redistribute(comm, term, {mesh, {Partial()}}, to);
      expect_staged("redistribute of terms", others);
    });
  }
}

TEST(Staged, IsNotWhatIsLargeOrCopiedAsItIs) {
  if (!attach_allowed()) GTEST_SKIP() << "ranks may not read each other's memory here";
  run_processes_well(2, [](Comm& comm) {
    const int64_t rows = shm::kStagedBytes / 8192;
    const Tensor most = Tensor::zeros(DType::i64, {rows, 1024}), more = Tensor::zeros(DType::i64, {rows + 2, 1024});
    reduce_scatter(comm, most);
    EXPECT_EQ(comm.stats().bytes_staged, most.bytes() / 2);
    EXPECT_EQ(comm.stats().bytes_attached, 0);
    comm.reset_stats();
    reduce_scatter(comm, more);
    EXPECT_EQ(comm.stats().bytes_attached, more.bytes() / 2);
    all_gather(comm, most);
    EXPECT_EQ(comm.stats().bytes_attached, more.bytes() / 2 + most.bytes());
    EXPECT_EQ(comm.stats().bytes_staged, 0);
  });
}

// A copy of which a part was left out serves one round only.
TEST(Staged, RoundsKnowWhatTheyAloneSend) {
  Rounds rounds;
  const auto send = [&](size_t round, int tensor) { rounds[round].sends.push_back({1, tensor, {}}); };
  const auto alone = [&] {
    std::vector<bool> flags;
    for (const Move& move : rounds.finish()) flags.push_back(move.sends_alone);
    return flags;
  };
  EXPECT_EQ(alone(), std::vector<bool>{});
  send(0, 0);
  send(0, 0);
  send(1, 2);
  EXPECT_EQ(alone(), (std::vector<bool>{true, true}));
  send(3, 0);
  EXPECT_EQ(alone(), (std::vector<bool>{false, true, true, false}));
  send(1, 0);
  EXPECT_EQ(alone(), (std::vector<bool>{false, false, true, false}));
  rounds.clear();
  send(0, 5);
  EXPECT_EQ(alone(), std::vector<bool>{true});
}

}  // namespace
}  // namespace tessera::test
