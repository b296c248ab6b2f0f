// The player `memcpy`: what the machine can do at best. Processes whose inputs lie in memory that all of them have
// mapped, so that a call is two spin barriers and one copy of each byte, straight to its place. The sizes are known,
// nothing is checked, and no line of the library is in it.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "bench.hpp"
#include "players/play.hpp"
#include "players/spin_barrier.hpp"

namespace tessera::cli {
namespace {

using bench::Box;
using bench::Op;
using bench::SpinBarrier;

constexpr int64_t kFewElements = 4096;  // below this a barrier costs more than reading every term

void* map(size_t bytes, int flags, int fd) {
  void* memory = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

struct Unmap {
  size_t bytes = 0;
  void operator()(float* data) const { munmap(data, std::max<size_t>(bytes, 1)); }
};
using FloatMapping = std::unique_ptr<float, Unmap>;

FloatMapping map_floats(int64_t elements, int flags, int fd = -1) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  return FloatMapping(static_cast<float*>(map(bytes, flags, fd)), Unmap{bytes});
}

constexpr size_t kHuge = size_t{2} << 20;

size_t in_huge_pages(int64_t elements) {
  return std::max<size_t>((static_cast<size_t>(elements) * sizeof(float) + kHuge - 1) / kHuge, 1) * kHuge;
}

// Shared memory with huge pages, where the kernel gives them to whoever asks (MADV_COLLAPSE, for pages that are there): only
// then is this the limit of the machine. They need an address that is a multiple of their size.
FloatMapping map_shared_floats(int64_t elements, int fd) {
  const size_t bytes = in_huge_pages(elements);
  auto* const room = static_cast<char*>(mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (room == MAP_FAILED) throw std::runtime_error("mmap failed");
  char* const start = room + (kHuge - reinterpret_cast<uintptr_t>(room) % kHuge) % kHuge;
  if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    throw std::runtime_error("mmap failed");
  }
  if (start > room) munmap(room, static_cast<size_t>(start - room));
  munmap(start + bytes, static_cast<size_t>(room + kHuge - start));
  return FloatMapping(reinterpret_cast<float*>(start), Unmap{bytes});
}

void ask_for_huge_pages(float* data, int64_t elements) {
  constexpr int kCollapse = 25;
  madvise(data, in_huge_pages(elements), kCollapse);
}

// out = the sum of the terms, each of which is read once. Two terms are one loop; more are added on, in blocks that stay
// in the first cache.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void add_up(const float* const* terms, int count, int64_t elements, float* __restrict out) {
  constexpr int64_t kBlock = 2048;
  for (int64_t start = 0; start < elements; start += kBlock) {
    const int64_t end = std::min(start + kBlock, elements);
    const float *a = terms[0], *b = terms[count > 1 ? 1 : 0];
    for (int64_t i = start; i < end; ++i) out[i] = count > 1 ? a[i] + b[i] : a[i];
    for (int t = 2; t < count; ++t) {
      const float* term = terms[t];
      for (int64_t i = start; i < end; ++i) out[i] += term[i];
    }
  }
}

class MemcpyRank : public bench::Rank {
 public:
  MemcpyRank(int rank, int ranks, SpinBarrier& barrier, int file)
      : rank_(rank), ranks_(ranks), barrier_(barrier), file_(file) {}

  void prepare(const bench::Case& c) override {
    inputs_.reset();
    outputs_.reset();
    fresh_.clear();
    fresh_.resize(c.output == "fresh" ? static_cast<size_t>(c.sets) : 0);
    case_ = c;
    out_elements_ = bench::output_elements(c, rank_);
    starts_.assign(1, 0);
    for (int r = 0; r < ranks_; ++r) starts_.push_back(starts_.back() + bench::input_of(c, r).elements());
    // All must have let go of the old pages before the file is emptied under them.
    barrier_.wait();
    const int64_t together = starts_.back() * c.sets + (c.op == Op::all_reduce ? whole_elements() * c.sets : 0);
    const auto file_bytes = static_cast<off_t>(in_huge_pages(together));
    if (rank_ == 0 && (ftruncate(file_, 0) != 0 || ftruncate(file_, file_bytes) != 0)) {
      throw std::runtime_error("no shared memory");
    }
    barrier_.wait();
    inputs_ = map_shared_floats(together, file_);
    if (fresh_.empty()) {
      outputs_ = map_floats(out_elements_ * c.sets, MAP_PRIVATE | MAP_ANONYMOUS);
      std::fill_n(outputs_.get(), out_elements_ * c.sets, 0.0f);
    }
    for (int64_t set = 0; set < c.sets; ++set) bench::fill_input(c, rank_, set, input(rank_, set));
    barrier_.wait();
    if (rank_ == 0) ask_for_huge_pages(inputs_.get(), together);
    barrier_.wait();
  }

  void barrier() override { barrier_.wait(); }

  void call(int64_t set) override {
    if (!fresh_.empty()) renew(fresh_[static_cast<size_t>(set)]);
    barrier_.wait();
    switch (case_.op) {
      case Op::all_gather: gather(set); break;
      case Op::reduce_scatter: reduce(set, out(set)); break;
      case Op::all_reduce: all_reduce(set); break;
      case Op::all_to_all: exchange(set); break;
      case Op::redistribute: turn(set); break;
      case Op::broadcast:
        if (rank_ != 0) copy(out(set), input(0, set), out_elements_);
    }
    barrier_.wait();
  }

  float* input(int64_t set) override { return input(rank_, set); }
  float* output(int64_t set) override { return case_.op == Op::broadcast && rank_ == 0 ? nullptr : out(set); }

 private:
  int64_t whole_elements() const { return bench::whole_of(case_).elements(); }
  float* input(int rank, int64_t set) const {
    return inputs_.get() + starts_.back() * set + starts_[static_cast<size_t>(rank)];
  }
  float* sum(int64_t set) const { return inputs_.get() + starts_.back() * case_.sets + whole_elements() * set; }
  float* out(int64_t set) const {
    return fresh_.empty() ? outputs_.get() + out_elements_ * set : fresh_[static_cast<size_t>(set)].get();
  }
  // New pages of the system's, every one of which costs a fault: what tessera's player does with --output fresh.
  void renew(FloatMapping& output) const {
    output.reset();
    const size_t bytes = std::max<size_t>(static_cast<size_t>(out_elements_) * sizeof(float), 1);
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    output = FloatMapping(static_cast<float*>(memory), Unmap{bytes});
  }

  static void copy(float* to, const float* from, int64_t elements) {
    std::memcpy(to, from, static_cast<size_t>(elements) * sizeof(float));
  }

  void gather(int64_t set) {
    const Box whole = bench::whole_of(case_);
    for (int i = 0; i < ranks_; ++i) {
      const int from = (rank_ + i) % ranks_;  // not all at the same piece
      const Box box = bench::cut_of(case_, from);
      const int64_t rows = case_.dim == 0 ? 1 : box.rows;
      const int64_t length = box.elements() / std::max<int64_t>(rows, 1);
      float* to = out(set) + box.row * whole.columns + box.column;
      for (int64_t row = 0; row < rows; ++row) copy(to + row * whole.columns, input(from, set) + row * length, length);
    }
  }

  // This rank's cut of the sum.
  void reduce(int64_t set, float* to) {
    const Box cut = bench::cut_of(case_, rank_);
    const float* terms[kMostBenchRanks];
    for (int r = 0; r < ranks_; ++r) terms[r] = input(r, set) + cut.row * cut.columns;
    add_up(terms, ranks_, cut.elements(), to);
  }

  // Every rank adds up all terms, or, where that is more to read, its cut into shared memory and then copies all cuts.
  void all_reduce(int64_t set) {
    if (ranks_ <= 2 || out_elements_ <= kFewElements) {
      const float* terms[kMostBenchRanks];
      for (int r = 0; r < ranks_; ++r) terms[r] = input(r, set);
      return add_up(terms, ranks_, out_elements_, out(set));
    }
    reduce(set, sum(set) + bench::cut_of(case_, rank_).row * case_.across);
    barrier_.wait();
    copy(out(set), sum(set), out_elements_);
  }

  void exchange(int64_t set) {
    float* to = out(set);
    const auto boxes = bench::output_of(case_, rank_);
    for (int from = 0; from < ranks_; ++from) {
      const Box& box = boxes[static_cast<size_t>(from)];
      copy(to, input(from, set) + (box.row - case_.offset(from)) * case_.across, box.elements());
      to += box.elements();
    }
  }

  // Of every rank's rows this rank's columns.
  void turn(int64_t set) {
    const Box mine = bench::columns_of(case_, rank_);
    for (int i = 0; i < ranks_; ++i) {
      const int from = (rank_ + i) % ranks_;  // not all at the same piece
      float* to = out(set) + case_.offset(from) * mine.columns;
      const float* rows = input(from, set) + mine.column;
      for (int64_t row = 0; row < case_.extent(from); ++row) {
        copy(to + row * mine.columns, rows + row * case_.across, mine.columns);
      }
    }
  }

  int rank_, ranks_;
  SpinBarrier& barrier_;
  int file_;
  bench::Case case_;
  int64_t out_elements_ = 0;
  std::vector<int64_t> starts_;  // of the ranks' inputs in a set, in elements
  FloatMapping inputs_, outputs_;
  std::vector<FloatMapping> fresh_;  // by set, in place of outputs_
};

int play_rank(const std::string& name, const std::string& socket, int rank, int ranks, SpinBarrier& barrier, int file) {
  try {
    auto channel = bench::Channel::connect(socket);
    MemcpyRank player(rank, ranks, barrier, file);
    bench::Play(channel, rank, player).run(name, ranks);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int play_memcpy(const std::string& name, const std::string& socket, int ranks) {
  void* page = map(sizeof(SpinBarrier), MAP_SHARED | MAP_ANONYMOUS, -1);
  auto* barrier = new (page) SpinBarrier(ranks);
  const int file = memfd_create("tessera-bench", MFD_CLOEXEC);
  if (file < 0) throw std::runtime_error("no shared memory");
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a rank without the others would spin for ever
    _exit(play_rank(name, socket, rank, ranks, *barrier, file));
  }
  const int code = play_rank(name, socket, 0, ranks, *barrier, file);
  bool good = code == 0;
  for (int status = 0; wait(&status) > 0;) good = good && status == 0;
  return good ? 0 : 1;
}

}  // namespace tessera::cli
