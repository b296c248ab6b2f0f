// What a collective costs, counted and not timed: agreements, copies, bytes and memory.
#include <atomic>
#include <cstdlib>
#include <new>

#include <tessera/collective.hpp>
#include <tessera/pool.hpp>

#include "support/global.hpp"
#include "support/ranks.hpp"

namespace {

// The largest block that this thread asked the heap for while it was told to watch. Tensors come from the pool and do not
// go this way: what is seen here would be a staging buffer.
thread_local bool watching = false;
thread_local size_t largest_block = 0;

void* allocate(size_t bytes, size_t align) {
  if (watching && bytes > largest_block) largest_block = bytes;
  void* data = align <= alignof(std::max_align_t) ? std::malloc(bytes == 0 ? 1 : bytes)
                                                  : std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// Not inlined: where GCC sees only one half of a pair it takes it for mismatched with malloc() or free(), and warns.
[[gnu::noinline]] void* operator new(size_t bytes) { return allocate(bytes, 1); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return allocate(bytes, 1); }
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<size_t>(align));
}
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<size_t>(align));
}
// std::stable_sort takes memory so, and gives it back by the plain delete.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, size_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }

namespace tessera::testing_support {
namespace {

constexpr int64_t kRow = 1024 * 4;  // bytes of a row of the tensors here

class CopyConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, CopyConformance, everywhere(), name_of);

// Rows of 1024 f32 for each rank, many enough that a piece stands out among the small change of a call.
std::vector<Sizes> patterns(int ranks) {
  std::vector<Sizes> list = size_patterns(ranks);
  for (Sizes& sizes : list) {
    for (int64_t& size : sizes) size *= 16;
  }
  return list;
}

int64_t not_empty(const Sizes& sizes) {
  return static_cast<int64_t>(sizes.size()) - std::count(sizes.begin(), sizes.end(), 0);
}

// Whether the last call went in one round. Between hosts more may be cheaper: those have counts of their own
// (schedules_test.cpp), and what is expected here whatever the schedule stays as it is.
bool was_direct(Comm& comm) { return comm.recent_calls().back().schedule.find("rounds:") == std::string::npos; }

TEST_P(CopyConformance, AllGatherCopiesEachByteOnceAndAllocatesItsOutput) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : patterns(comm.size())) {
      const int64_t own = sizes[static_cast<size_t>(comm.rank())], rows = sum_of(sizes);
      const Tensor x = part(DType::f32, cut({rows, 1024}, 0, sizes, comm.rank()));
      all_gather(comm, x);  // what a communicator keeps between calls is there now
      comm.reset_stats();
      largest_block = 0;
      watching = true;
      const Tensor all = all_gather(comm, x).tensor;
      watching = false;
      const Stats s = comm.stats();
      EXPECT_EQ(s.exchanges, 1);
      EXPECT_EQ(s.bytes_copied, all.bytes());
      EXPECT_EQ(s.bytes_received, (rows - own) * kRow);
      if (was_direct(comm)) {
        EXPECT_EQ(s.moves, 1);
        EXPECT_EQ(s.copies, not_empty(sizes));
        EXPECT_EQ(s.messages, not_empty(sizes) - (own > 0));
        EXPECT_EQ(s.bytes_sent, (comm.size() - 1) * own * kRow);
      }
      EXPECT_EQ(s.allocations, 1);
      EXPECT_EQ(s.bytes_allocated, all.bytes());
      EXPECT_LT(largest_block, size_t{16 * kRow}) << "a block as large as a piece came from the heap";
    }
  });
}

// The pool is one for the process, so ranks that are threads look at it together.
TEST(Copies, AllGatherTakesFromThePoolWhatItReturns) {
  constexpr int kRanks = 3;
  constexpr int64_t kPiece = int64_t{1} << 20;
  on_ranks(transports()[0], kRanks, [](Comm& comm) {
    const Tensor x = Tensor::zeros(DType::u8, {kPiece});
    comm.barrier();
    if (comm.rank() == 0) pool::trim();  // also sets the peak back
    comm.barrier();
    const int64_t before = pool::usage().live_bytes;
    comm.barrier();
    const Tensor all = all_gather(comm, x).tensor;
    comm.barrier();
    const int64_t outputs = kRanks * kRanks * kPiece;
    EXPECT_EQ(pool::usage().live_bytes - before, outputs);
    EXPECT_EQ(pool::usage().peak_bytes - before, outputs);
    comm.barrier();
  });
}

TEST_P(CopyConformance, AllGatherToTheCallersMemoryAllocatesNothing) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : patterns(comm.size())) {
      const Dims shape = {sum_of(sizes), 1024};
      const Tensor x = part(DType::f32, cut(shape, 0, sizes, comm.rank()));
      const Tensor out = Tensor::empty(DType::f32, shape);
      const int64_t live = pool::usage().live_bytes;
      comm.barrier();
      comm.reset_stats();
      all_gather(comm, x, {.sizes = sizes, .out = out});
      EXPECT_EQ(comm.stats().allocations, 0);
      EXPECT_EQ(comm.stats().bytes_allocated, 0);
      if (was_direct(comm)) {
        EXPECT_EQ(comm.stats().copies, not_empty(sizes));
      }
      EXPECT_EQ(comm.stats().bytes_copied, out.bytes());
      if (comm.size() == 1) {
        EXPECT_EQ(pool::usage().live_bytes, live);
      }
      comm.barrier();
    }
  });
}

TEST_P(CopyConformance, AllGatherInPlaceLeavesTheOwnPartAlone) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : patterns(comm.size())) {
      const Dims shape = {sum_of(sizes), 1024};
      const int64_t own = sizes[static_cast<size_t>(comm.rank())];
      const Tensor out = Tensor::zeros(DType::f32, shape);
      const Tensor x = out.box(cut(shape, 0, sizes, comm.rank()));
      comm.reset_stats();
      all_gather(comm, x, {.out = out});
      EXPECT_EQ(comm.stats().allocations, 0);
      if (was_direct(comm)) {
        EXPECT_EQ(comm.stats().copies, not_empty(sizes) - (own > 0));
      }
      EXPECT_EQ(comm.stats().bytes_copied, (sum_of(sizes) - own) * kRow);
    }
  });
}

TEST_P(CopyConformance, PartsAreCopiedOnceToo) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : patterns(comm.size())) {
      const Dims shape = {sum_of(sizes), 1024};
      const Tensor x = part(DType::f32, cut(shape, 0, sizes, comm.rank()));
      comm.reset_stats();
      all_gather_parts(comm, x);
      EXPECT_EQ(comm.stats().copies, not_empty(sizes));
      EXPECT_EQ(comm.stats().bytes_copied, sum_of(sizes) * kRow);
      EXPECT_EQ(comm.stats().bytes_allocated, sum_of(sizes) * kRow);
    }
  });
}

// Padding to the longest would move ranks × the longest.
TEST_P(CopyConformance, OneRankThatHasAllIsNotPaddedFor) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    Sizes sizes(static_cast<size_t>(n), 0);
    sizes[0] = 64;
    const Tensor x = part(DType::f32, cut({64, 1024}, 0, sizes, comm.rank()));
    comm.reset_stats();
    all_gather(comm, x);
    EXPECT_EQ(comm.stats().bytes_received, comm.rank() == 0 ? 0 : 64 * kRow);
    if (was_direct(comm)) {
      EXPECT_EQ(comm.stats().bytes_sent, comm.rank() == 0 ? (n - 1) * 64 * kRow : 0);
      EXPECT_EQ(comm.stats().copies, 1);
    }
    EXPECT_EQ(comm.stats().bytes_copied, 64 * kRow);
  });
}

TEST_P(CopyConformance, AListSharesAgreementAndMove) {
  on_ranks([](Comm& comm) {
    std::vector<AllGather> list;
    int64_t bytes = 0, copies = 0;
    for (const Sizes& sizes : patterns(comm.size())) {
      list.push_back({.x = part(DType::f32, cut({sum_of(sizes), 1024}, 0, sizes, comm.rank()))});
      bytes += sum_of(sizes) * kRow;
      copies += not_empty(sizes);
    }
    run(comm, list);
    EXPECT_EQ(comm.stats().exchanges, 1);
    if (was_direct(comm)) {
      EXPECT_EQ(comm.stats().moves, 1);
      EXPECT_EQ(comm.stats().copies, copies);
    }
    EXPECT_EQ(comm.stats().bytes_copied, bytes);
    EXPECT_EQ(comm.stats().allocations, static_cast<int64_t>(list.size()));
  });
}

TEST_P(CopyConformance, AllToAllMovesOnlyWhatChangesItsRank) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const auto me = static_cast<size_t>(comm.rank());
    for (const Sizes& rows : size_patterns(n)) {
      const Sizes columns = size_patterns(n)[1];
      const Dims shape = {sum_of(rows), sum_of(columns)};
      const Tensor x = part(DType::i64, cut(shape, 0, rows, comm.rank()));
      comm.reset_stats();
      const Tensor mine = all_to_all(comm, x, 1, 0, columns).tensor;
      const int64_t stays = rows[me] * columns[me] * 8;
      EXPECT_EQ(comm.stats().bytes_copied, mine.bytes());
      EXPECT_EQ(comm.stats().bytes_received, mine.bytes() - stays);
      EXPECT_EQ(comm.stats().bytes_sent, x.bytes() - stays);
      EXPECT_EQ(comm.stats().bytes_allocated, mine.bytes());
    }
  });
}

TEST_P(CopyConformance, AllToAllVMovesOnlyWhatChangesItsRank) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    Sizes send;
    for (int to = 0; to < n; ++to) send.push_back((comm.rank() + to) % 3);
    const Tensor x = Tensor::zeros(DType::i32, {sum_of(send), 5});
    comm.reset_stats();
    const auto [came, sizes] = all_to_all_v(comm, x, send);
    const int64_t stays = send[static_cast<size_t>(comm.rank())] * 20;
    EXPECT_EQ(comm.stats().copies, not_empty(sizes));
    EXPECT_EQ(comm.stats().bytes_received, came.bytes() - stays);
    EXPECT_EQ(comm.stats().bytes_sent, x.bytes() - stays);
  });
}

TEST_P(CopyConformance, TheRootOfABroadcastCopiesNothing) {
  on_ranks([](Comm& comm) {
    const Tensor x = comm.rank() == 0 ? Tensor::zeros(DType::f32, {8, 1024}) : Tensor();
    const Tensor all = broadcast(comm, x);
    const bool root = comm.rank() == 0;
    EXPECT_EQ(comm.stats().copies, root ? 0 : 1);
    EXPECT_EQ(comm.stats().allocations, root ? 0 : 1);
    EXPECT_EQ(comm.stats().bytes_received, root ? 0 : 8 * kRow);
    EXPECT_EQ(comm.stats().bytes_sent, root ? (comm.size() - 1) * 8 * kRow : 0);
    if (root) {
      EXPECT_EQ(all.data(), x.data());
    }
  });
}

TEST_P(CopyConformance, GatherAndScatterTouchOnlyTheRoot) {
  on_ranks([](Comm& comm) {
    const int root = comm.size() - 1;
    const bool is_root = comm.rank() == root;
    const Sizes sizes = patterns(comm.size())[1];
    const int64_t own = sizes[static_cast<size_t>(comm.rank())] * kRow, all = sum_of(sizes) * kRow;
    const Tensor x = part(DType::f32, cut({sum_of(sizes), 1024}, 0, sizes, comm.rank()));
    const Tensor whole = gather(comm, x, root).tensor;
    EXPECT_EQ(comm.stats().bytes_received, is_root ? all - own : 0);
    EXPECT_EQ(comm.stats().bytes_sent, is_root ? 0 : own);
    EXPECT_EQ(comm.stats().allocations, is_root ? 1 : 0);
    comm.reset_stats();
    scatter(comm, whole, root, 0, sizes);
    EXPECT_EQ(comm.stats().bytes_received, is_root ? 0 : own);
    EXPECT_EQ(comm.stats().bytes_sent, is_root ? all - own : 0);
    EXPECT_EQ(comm.stats().bytes_copied, own);
  });
}

TEST_P(CopyConformance, ReductionsReadEachTermOnce) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Sizes sizes = patterns(n)[1];
    const int64_t own = sizes[static_cast<size_t>(comm.rank())] * kRow;
    const Tensor x = term(DType::f32, Box::whole({sum_of(sizes), 1024}), comm.rank());
    comm.reset_stats();
    reduce_scatter(comm, x, 0, sizes);
    if (was_direct(comm)) {
      EXPECT_EQ(comm.stats().copies, own > 0 ? 1 : 0);
      EXPECT_EQ(comm.stats().bytes_copied, own);
      EXPECT_EQ(comm.stats().bytes_received, (n - 1) * own);
      EXPECT_EQ(comm.stats().bytes_sent, x.bytes() - own);
    }
    EXPECT_EQ(comm.stats().bytes_allocated, own);
    // Large: a reduce_scatter as even as can be, then a gather of its parts; no rank reads more than twice the tensor.
    const Tensor large = term(DType::f32, Box::whole({4 * n, 1024}), comm.rank());
    comm.reset_stats();
    all_reduce(comm, large);
    const std::string schedule = comm.recent_calls().back().schedule;
    if (schedule.starts_with("logarithmic") || schedule.starts_with("folded")) {
      EXPECT_LE(comm.stats().bytes_received, comm.stats().moves * large.bytes());
    } else {
      EXPECT_EQ(comm.stats().moves, 2);
      EXPECT_EQ(comm.stats().bytes_received, 2 * (n - 1) * large.bytes() / n);
    }
    EXPECT_EQ(comm.stats().bytes_allocated, large.bytes());
  });
}

}  // namespace
}  // namespace tessera::testing_support
