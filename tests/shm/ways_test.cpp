// How bytes get from process to process: the statistics tell, and the heap behind it.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"
#include "transport/chunks.hpp"
#include "transport/shm/connect.hpp"
#include "transport/shm/heap.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::test {
namespace {

using shm::Way;
using testing_support::attach_allowed;
using testing_support::ProcessOptions;
using testing_support::run_processes;
using testing_support::run_processes_well;
using testing_support::ways;

constexpr int64_t kLarge = 100000;  // elements: beyond what is copied eagerly between two ranks

float value(int rank, std::span<const int64_t> at) {
  float v = static_cast<float>(rank * 1000);
  for (const int64_t i : at) v = v * 3 + static_cast<float>(i % 101);
  return v;
}

void fill(const Tensor& t, int rank) {
  t.fill([&](std::span<const int64_t> at) { return value(rank, at); });
}

// Gathers x of every rank along dim 0 and compares every element.
void check_gather(Comm& comm, const Tensor& x) {
  fill(x, comm.rank());
  const auto [all, sizes] = all_gather(comm, x);
  int64_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    const Tensor expected = Tensor::empty(x.dtype(), all.narrow(0, at, sizes[static_cast<size_t>(r)]).shape());
    fill(expected, r);
    ASSERT_TRUE(all.narrow(0, at, sizes[static_cast<size_t>(r)]).equals(expected)) << "of rank " << r;
    at += sizes[static_cast<size_t>(r)];
  }
}

TEST(Ways, TheSharedHeapIsReadInPlace) {
  run_processes_well(3, [](Comm& comm) {
    check_gather(comm, comm.allocate(DType::f32, {kLarge + comm.rank()}));
    EXPECT_EQ(comm.stats().bytes_attached, 0);
    EXPECT_EQ(comm.stats().bytes_staged, 0);
    // What a collective returned is such memory too.
    const Tensor all = all_gather(comm, comm.allocate(DType::f32, {kLarge})).tensor;
    comm.reset_stats();
    check_gather(comm, all);
    EXPECT_EQ(comm.stats().bytes_received, 2 * all.bytes());
    EXPECT_EQ(comm.stats().bytes_attached + comm.stats().bytes_staged, 0);
  });
}

// By the kernel where it may, else staged: which of the two was tried apart from the transport.
TEST(Ways, OrdinaryMemoryIsReadByTheKernelOrStaged) {
  const bool attached = attach_allowed();
  run_processes_well(2, [attached](Comm& comm) {
    const Tensor x = Tensor::empty(DType::f32, {kLarge});
    check_gather(comm, x);
    EXPECT_EQ(comm.stats().bytes_attached, attached ? x.bytes() : 0);
    EXPECT_EQ(comm.stats().bytes_staged, attached ? 0 : x.bytes());
  });
}

TEST(Ways, LittleOrdinaryMemoryIsStaged) {
  run_processes_well(2, [](Comm& comm) {
    const Tensor x = Tensor::empty(DType::f32, {3500});
    check_gather(comm, x);
    EXPECT_EQ(comm.stats().bytes_attached, 0);
    EXPECT_EQ(comm.stats().bytes_staged, x.bytes());
    // Still less goes with the announcement itself, also where only one rank has more than is taken from the heap.
    comm.reset_stats();
    for (const int64_t elements : {200, 2000, 3000, 3072}) {
      check_gather(comm, Tensor::empty(DType::f32, {elements}));
      check_gather(comm, Tensor::empty(DType::f32, {comm.rank() == 0 ? elements : 100}));
      check_gather(comm,
                   comm.rank() == 0 ? Tensor::empty(DType::f32, {elements}) : comm.allocate(DType::f32, {elements}));
    }
    EXPECT_EQ(comm.stats().bytes_attached + comm.stats().bytes_staged, 0);
  });
}

TEST(Ways, ForcedOnesMoveEverythingSo) {
  for (const Way way : ways()) {
    if (way == Way::choose) continue;
    run_processes_well(3,
                       [way](Comm& comm) {
                         const Tensor ordinary = Tensor::empty(DType::f32, {kLarge}),
                                      heap = comm.allocate(DType::f32, {kLarge});
                         check_gather(comm, ordinary);
                         check_gather(comm, heap);
                         const Stats s = comm.stats();
                         const int64_t each = ordinary.bytes();
                         EXPECT_EQ(s.bytes_attached, way == Way::attach ? 4 * each : 0);
                         EXPECT_EQ(s.bytes_staged, way == Way::staged ? 2 * each : way == Way::in_place ? each : 0);
                       },
                       {.way = way});
  }
}

TEST(Ways, ColumnsAndOtherStrides) {
  for (const Way way : ways()) {
    run_processes_well(2,
                       [](Comm& comm) {
                         const Tensor wide = Tensor::empty(DType::f32, {40, 3000});
                         check_gather(comm, wide.transpose(0, 1));
                         check_gather(comm, wide.narrow(1, 7, 1500));
                         check_gather(comm, wide.narrow(1, 1, 2));
                         const Tensor thin = Tensor::empty(DType::i8, {70000, 3}).narrow(1, 1, 1);
                         check_gather(comm, thin);
                         // Backwards, with gaps.
                         std::vector<float> memory(100000);
                         check_gather(comm, Tensor::view(memory.data() + 99999, DType::f32, {20000}, {-5}));
                         // Each row is the same memory.
                         const Tensor row = Tensor::full(DType::f32, {1, 5000}, static_cast<float>(comm.rank()));
                         const auto [all, sizes] = all_gather(comm, row.expand({30, 5000}));
                         for (int64_t r = 0; r < 60; ++r) ASSERT_EQ(all.at<float>(r, 4999), static_cast<float>(r / 30));
                       },
                       {.way = way});
  }
}

// Of terms that are fetched in several pieces, the last one shorter; strided ones too, and in place.
// Single elements, with gaps of up to a page. One by one the first million would take the kernel a minute.
TEST(Ways, ElementsFarApartInOrdinaryMemory) {
  run_processes_well(2, [](Comm& comm) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{4'000'000, 12}, {40'000, 100}, {3'000, 600}}) {
      const int64_t me = comm.rank();
      const Tensor x = Tensor::generate(DType::i32, {rows, columns}, [&](auto at) { return at[0] * 3 + at[1] + me; });
      const Tensor sum = reduce_scatter(comm, x, 1, {1, columns - 1});
      const int64_t column = me == 0 ? 0 : 1;
      for (int64_t row = 0; row < rows; row += 7) {
        ASSERT_EQ(sum.at<int32_t>(row, 0), 2 * (row * 3 + column) + 1) << columns << " columns, row " << row;
      }
    }
  });
}

TEST(Ways, SumsOfManyPieces) {
  const auto term = [](int rank, std::span<const int64_t> at) { return (rank + 1) * (at[0] * 7 + at[1]); };
  for (const Way way : ways()) {
    for (const int ranks : {2, 3}) {
      run_processes_well(ranks,
                         [term](Comm& comm) {
                           const Tensor whole = Tensor::empty(DType::i64, {509, 400});
                           const int64_t factor = comm.size() * (comm.size() + 1) / 2;
                           for (const Tensor& x : {whole, whole.narrow(1, 3, 380), whole.transpose(0, 1)}) {
                             x.fill([&](std::span<const int64_t> at) { return term(comm.rank(), at); });
                             const Tensor sum = all_reduce(comm, x);
                             all_reduce(comm, x, ReduceOp::sum, x);
                             const Tensor expected = Tensor::empty(DType::i64, x.shape());
                             expected.fill([&](std::span<const int64_t> at) { return factor * term(0, at); });
                             ASSERT_TRUE(sum.equals(expected));
                             ASSERT_TRUE(x.equals(expected));
                           }
                         },
                         {.way = way});
    }
  }
}

// From the second time on what was worked out is used again, as long as all terms lie in the heap.
TEST(Ways, SumsAgainWhereverTheirTermsLie) {
  const auto program = [](Comm& comm) {
    const int n = comm.size();
    const std::vector<int64_t> some = {200 * n, 64}, other = {64, 200 * n};
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::avg}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (int turn = 0; turn < 9; ++turn) {
          // Of rank r r + 1 times as much; whole numbers that bfloat16 has.
          const auto value_of = [&](int factor) {
            return [factor, turn](std::span<const int64_t> at) {
              return static_cast<float>(factor) * static_cast<float>((at[0] * 3 + at[1] + turn) % 8);
            };
          };
          const bool ordinary = turn == 4 && comm.rank() == 0, turned = turn >= 6;
          Tensor x =
              ordinary ? Tensor::empty(dtype, turned ? other : some) : comm.allocate(dtype, turned ? other : some);
          if (turned) x = x.transpose(0, 1);
          x.fill(value_of(comm.rank() + 1));
          const int total = op == ReduceOp::max ? n : n * (n + 1) / 2;
          const Tensor expected = Tensor::empty(dtype, some);
          expected.fill([&](std::span<const int64_t> at) {
            const float v = value_of(total)(at);
            return op == ReduceOp::avg ? v / static_cast<float>(n) : v;
          });
          ASSERT_TRUE(reduce_scatter(comm, x, 0, {}, op).equals(expected.narrow(0, 200 * comm.rank(), 200))) << turn;
          ASSERT_TRUE(all_reduce(comm, x, op).equals(expected)) << turn;
        }
      }
    }
  };
  for (const int ranks : {1, 2, 3, 4, 7}) run_processes_well(ranks, program);
}

TEST(Ways, AFullHeapIsNoError) {
  run_processes_well(2,
                     [](Comm& comm) {
                       std::vector<Tensor> kept;
                       while (comm.stats().heap_misses == 0) kept.push_back(comm.allocate(DType::f32, {1 << 20}));
                       for (int i = 0; i < 3; ++i) check_gather(comm, kept.back());
                       EXPECT_GT(comm.stats().heap_misses, 0);
                       kept.clear();
                       comm.reset_stats();
                       check_gather(comm, comm.allocate(DType::f32, {1 << 20}));
                       EXPECT_EQ(comm.stats().heap_misses, 0);
                     },
                     {.heap_bytes = 32 << 20});
}

// In the heap, and where it has no room: the limit is asked before both.
TEST(Ways, MoreThanThereIsIsAnErrorThatSaysSo) {
  const int64_t total = shm::memory_limit().total_bytes;
  for (const bool shared : {true, false}) {
    run_processes_well(
        2,
        [=](Comm& comm) {
          const Thrown thrown = thrown_by([&] { comm.allocate(DType::u8, {total + 1}); });
          EXPECT_EQ(thrown.type, "Error");
          EXPECT_TRUE(contains(thrown.text, fmt::format("bytes of {} memory, but", shared ? "shared" : "private")))
              << thrown.text;
          EXPECT_TRUE(contains(thrown.text, "raise the limit")) << thrown.text;
          check_gather(comm, comm.allocate(DType::f32, {kLarge}));
        },
        {.heap_bytes = shared ? 2 * total : int64_t{32} << 20});
  }
}

// From here on this process is refused what reading other processes' memory takes.
bool forbid_attach() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What that one would have to read is staged. Whom the others may read, and it need not, is still read by them.
TEST(Ways, OneRankThatMayReadNobodyGetsAllTheSame) {
  const auto segment = shm::Segment::create(3, int64_t{64} << 20);
  run_processes_well(3,
                     [](Comm& comm) {
                       const Tensor x = Tensor::empty(DType::f32, {kLarge});
                       check_gather(comm, x);
                       EXPECT_EQ(comm.stats().bytes_attached, 0);
                       EXPECT_EQ(comm.stats().bytes_staged, x.bytes());
                       all_reduce(comm, x);
                       Comm allowed = comm.split(comm.rank() == 1);
                       check_gather(allowed, x);
                       const bool attached = comm.rank() != 1 && attach_allowed();
                       EXPECT_EQ(allowed.stats().bytes_attached, attached ? x.bytes() : 0);
                     },
                     {.come = [&](int rank) {
                       if (rank == 1 && !forbid_attach()) throw Error("there is no seccomp here");
                       return shm::connect(segment, rank, Way::choose, {});
                     }});
}

TEST(Ways, MemoryOutlivesTheCommunicator) {
  run_processes_well(2, [](Comm& comm) {
    Tensor all;
    {
      Comm child = comm.split(0);
      all = all_gather(child, Tensor::full(DType::f32, {kLarge}, static_cast<float>(comm.rank()))).tensor;
    }
    comm.barrier();
    EXPECT_EQ(all.at<float>(kLarge), 1.0f);
    all.fill([](std::span<const int64_t>) { return 2.0f; });
    check_gather(comm, all);
  });
}

// One kept, one recycled, of about the same size: the second call's output is the first one's memory.
TEST(Ways, OutputsAreRecycled) {
  run_processes_well(2, [](Comm& comm) {
    const Tensor x = comm.allocate(DType::f32, {kLarge});
    const void* first = all_gather(comm, x).tensor.data();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(all_gather(comm, x).tensor.data(), first);
  });
}

TEST(Heap, GivesOutWhatDoesNotOverlapAndTakesItBack) {
  const auto segment = shm::Segment::create(1, 64 << 20);
  const auto heap = std::make_shared<shm::Heap>(segment, 0, 5000);
  std::minstd_rand random(3);
  struct Block {
    std::shared_ptr<std::byte> data;
    size_t bytes;
    std::byte mark;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 3 == 0)) {
      const size_t victim = random() % blocks.size();
      const Block& b = blocks[victim];
      ASSERT_EQ(std::count(b.data.get(), b.data.get() + b.bytes, b.mark), static_cast<ptrdiff_t>(b.bytes));
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(victim));
      continue;
    }
    const size_t bytes = random() % 2 == 0 ? random() % 3000 : random() % 900000;
    auto data = heap->allocate(static_cast<int64_t>(bytes));
    ASSERT_NE(data, nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data.get()) % 64, 0u);
    const auto mark = static_cast<std::byte>(random());
    std::fill(data.get(), data.get() + bytes, mark);
    blocks.push_back({std::move(data), bytes, mark});
  }
  blocks.clear();
  EXPECT_EQ(heap->usage().live_bytes, 0);
  // Large blocks have joined: a larger one than any before fits into what was used already.
  const int64_t touched = heap->usage().touched_bytes;
  EXPECT_NE(heap->allocate(touched / 8), nullptr);
  EXPECT_EQ(heap->usage().touched_bytes, touched);
  EXPECT_EQ(heap->allocate(64 << 20), nullptr);
}

TEST(Chunks, CoverEveryElementOnceInOrder) {
  for (const Dims& shape : {Dims{}, Dims{1}, Dims{7}, Dims{3, 5}, Dims{4, 1, 6}, Dims{2, 3, 4, 5}, Dims{0, 3}}) {
    for (const int64_t most : {1, 2, 7, 30, 1000}) {
      const Chunks chunks(shape, most);
      const Tensor order = Tensor::zeros(DType::i64, shape);
      int64_t next = 0;
      for (int64_t i = 0; i < chunks.count(); ++i) {
        EXPECT_LE(chunks[i].elements(), most);
        order.box(chunks[i]).fill([&](std::span<const int64_t>) { return ++next; });
      }
      EXPECT_EQ(next, order.elements());
      for (int64_t i = 0; i < next; ++i) EXPECT_EQ(order.span<int64_t>()[static_cast<size_t>(i)], i + 1);
    }
  }
}

}  // namespace
}  // namespace tessera::test
