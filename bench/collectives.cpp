// The collectives beside the physical limit. `ratio` is our best time over the limit's best time in the same run.
#include <sys/mman.h>

#include <cstring>

#include "side_by_side.hpp"

namespace {

using namespace tessera;
using ::bench::Shared;
using ::bench::Sides;

constexpr int64_t kRowElements = 64;  // rows of 256 bytes of float32
constexpr int64_t kRowBytes = kRowElements * 4;

// How many rows each of two ranks has.
struct Split {
  int64_t rows[2];
  int64_t total() const { return rows[0] + rows[1]; }
};
Split ragged(int64_t mean_bytes) {
  const int64_t rows = std::max<int64_t>(mean_bytes / kRowBytes, 2);
  return {{rows / 2, rows + rows / 2}};
}

// Enough sets of buffers that a call does not find its data in the cache from the last one, within reason.
int rotation(int64_t bytes_per_set) {
  return static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / std::max<int64_t>(bytes_per_set, 1), 2, 24));
}
int64_t calls_for(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{64} << 20) / std::max<int64_t>(bytes, 1), 1, 20000);
}

std::vector<Tensor> tensors(int count, const Dims& shape, float value) {
  std::vector<Tensor> list;
  for (int i = 0; i < count; ++i) list.push_back(Tensor::full(DType::f32, shape, value));
  return list;
}

const Tensor& pick(const std::vector<Tensor>& list, int64_t number) {
  return list[static_cast<size_t>(number) % list.size()];
}

std::byte* at(const Tensor& t, int64_t bytes) { return t.data() + bytes; }

// Every peer's rows behind one another: what a careful person would write by hand for threads.
Sides gather_along_0(Comm& comm, Shared& shared, Split split) {
  const int me = comm.rank();
  const int sets = rotation(split.total() * kRowBytes * 3);
  shared.inputs[static_cast<size_t>(me)] = tensors(sets, {split.rows[me], kRowElements}, static_cast<float>(me));
  const auto outs = tensors(sets, {split.total(), kRowElements}, 0);
  return {[&comm, &shared, outs, me](int64_t i) {
            all_gather(comm, pick(shared.inputs[static_cast<size_t>(me)], i), {.dim = 0, .out = pick(outs, i)});
          },
          [&shared, outs, split](int64_t i) {
            shared.barrier.wait();
            const Tensor& out = pick(outs, i);
            std::memcpy(out.data(), pick(shared.inputs[0], i).data(), static_cast<size_t>(split.rows[0] * kRowBytes));
            std::memcpy(at(out, split.rows[0] * kRowBytes), pick(shared.inputs[1], i).data(),
                        static_cast<size_t>(split.rows[1] * kRowBytes));
            shared.barrier.wait();
          }};
}

void BM_AllGather(benchmark::State& state) {
  const Split split = ragged(state.range(0));
  ::bench::compare(state, 2, calls_for(split.total() * kRowBytes),
                   [&](Comm& comm, Shared& shared) { return gather_along_0(comm, shared, split); });
}
BENCHMARK(BM_AllGather)->Arg(1 << 10)->Arg(32 << 10)->Arg(1 << 20)->Arg(32 << 20)->UseManualTime()->Iterations(3);

// Along the last dimension: rows of each rank side by side in wider rows.
void BM_AllGatherInner(benchmark::State& state) {
  const int64_t row = state.range(1) / 4;  // elements of a rank's row
  const int64_t rows = state.range(0) / state.range(1);
  const int sets = rotation(state.range(0) * 6);
  ::bench::compare(state, 2, calls_for(state.range(0) * 2), [&](Comm& comm, Shared& shared) {
    const int me = comm.rank();
    shared.inputs[static_cast<size_t>(me)] = tensors(sets, {rows, row}, static_cast<float>(me));
    const auto outs = tensors(sets, {rows, 2 * row}, 0);
    return Sides{[&comm, &shared, outs, me](int64_t i) {
                   all_gather(comm, pick(shared.inputs[static_cast<size_t>(me)], i), {.dim = 1, .out = pick(outs, i)});
                 },
                 [&shared, outs, rows, row](int64_t i) {
                   shared.barrier.wait();
                   for (int peer = 0; peer < 2; ++peer) {
                     const Tensor& in = pick(shared.inputs[static_cast<size_t>(peer)], i);
                     std::byte* out = at(pick(outs, i), peer * row * 4);
                     for (int64_t r = 0; r < rows; ++r) {
                       std::memcpy(out + r * row * 8, at(in, r * row * 4), static_cast<size_t>(row * 4));
                     }
                   }
                   shared.barrier.wait();
                 }};
  });
}
BENCHMARK(BM_AllGatherInner)
    ->Args({1 << 20, 256})
    ->Args({1 << 20, 1024})
    ->Args({32 << 20, 256})
    ->Args({32 << 20, 1024})
    ->UseManualTime()
    ->Iterations(3);

// One rank has all (but a row). The "limit" is our own even split of the same total: skew must cost nothing.
void BM_AllGatherSkew(benchmark::State& state) {
  const int64_t rows = state.range(0) / kRowBytes;
  ::bench::compare(state, 2, calls_for(state.range(0)), [&](Comm& comm, Shared&) {
    const int me = comm.rank();
    const int sets = rotation(state.range(0) * 4);
    const auto skewed = tensors(sets, {me == 0 ? rows - 1 : 1, kRowElements}, 1);
    const auto even = tensors(sets, {rows / 2, kRowElements}, 1);
    const auto outs = tensors(sets, {rows, kRowElements}, 0);
    return Sides{
        [&comm, skewed, outs](int64_t i) { all_gather(comm, pick(skewed, i), {.dim = 0, .out = pick(outs, i)}); },
        [&comm, even, outs](int64_t i) { all_gather(comm, pick(even, i), {.dim = 0, .out = pick(outs, i)}); }};
  });
}
BENCHMARK(BM_AllGatherSkew)->Arg(2 << 20)->Arg(64 << 20)->UseManualTime()->Iterations(3);

// Memory of the system's for one call, as an allocator without a pool hands it out: every page of it costs a fault.
Tensor fresh(const Dims& shape) {
  const auto bytes = static_cast<size_t>(volume(shape) * 4);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("mmap failed");
  return Tensor::view(memory, DType::f32, shape, row_major(shape),
                      std::shared_ptr<void>(memory, [bytes](void* data) { munmap(data, bytes); }));
}

// The output allocated by the call, recycled by the pool; beside the same call with fresh memory every time.
void BM_AllGatherRecycledBesideFresh(benchmark::State& state) {
  const Split split = ragged(state.range(0));
  ::bench::compare(state, 2, calls_for(split.total() * kRowBytes), [&](Comm& comm, Shared&) {
    const auto inputs = tensors(4, {split.rows[comm.rank()], kRowElements}, 1);
    return Sides{[&comm, inputs](int64_t i) { all_gather(comm, pick(inputs, i)); },
                 [&comm, inputs, split](int64_t i) {
                   all_gather(comm, pick(inputs, i), {.dim = 0, .out = fresh({split.total(), kRowElements})});
                 }};
  });
}
BENCHMARK(BM_AllGatherRecycledBesideFresh)->Arg(1 << 20)->Arg(32 << 20)->UseManualTime()->Iterations(3);

// What is copied from repo to repo: pad to the longest, gather, concatenate, select. Here on threads, without its waits.
Sides padded_gather(Comm& comm, Shared& shared, Split split) {
  Sides sides = gather_along_0(comm, shared, split);
  const int me = comm.rank();
  const int64_t longest = std::max(split.rows[0], split.rows[1]);
  sides.limit = [&shared, split, me, longest](int64_t i) {
    const Tensor padded = pad_dim_to(pick(shared.inputs[static_cast<size_t>(me)], i), longest, 0);
    std::vector<Tensor> gathered;
    shared.barrier.wait();
    for (int peer = 0; peer < 2; ++peer) {
      gathered.push_back(pad_dim_to(pick(shared.inputs[static_cast<size_t>(peer)], i), longest, 0));
    }
    shared.barrier.wait();
    const Tensor together = Tensor::empty(DType::f32, {2 * longest, kRowElements});
    const Tensor selected = Tensor::empty(DType::f32, {split.total(), kRowElements});
    int64_t row = 0;
    for (int64_t peer = 0; peer < 2; ++peer) {
      together.narrow(0, peer * longest, longest).copy_from(gathered[static_cast<size_t>(peer)]);
      const int64_t rows = split.rows[peer];
      selected.narrow(0, row, rows).copy_from(together.narrow(0, peer * longest, rows));
      row += rows;
    }
    benchmark::DoNotOptimize(padded.data());
    benchmark::DoNotOptimize(selected.data());
  };
  return sides;
}

void BM_AllGatherBesidePadding(benchmark::State& state) {
  const Split split = ragged(state.range(0));
  ::bench::compare(state, 2, calls_for(split.total() * kRowBytes * 4),
                   [&](Comm& comm, Shared& shared) { return padded_gather(comm, shared, split); });
}
BENCHMARK(BM_AllGatherBesidePadding)->Arg(1 << 10)->Arg(1 << 20)->Arg(32 << 20)->UseManualTime()->Iterations(3);

// The sum of all 8-byte words: what reading alone costs.
uint64_t read_all(const std::byte* data, int64_t bytes) {
  uint64_t sums[8] = {};
  uint64_t words[8];
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    std::memcpy(words, data + i, 64);
    for (int k = 0; k < 8; ++k) sums[k] += words[k];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

// Each rank reads its half of both inputs and writes the half; the limit only reads.
void BM_ReduceScatter(benchmark::State& state) {
  const int64_t rows = state.range(0) / kRowBytes;
  ::bench::compare(state, 2, calls_for(state.range(0)), [&](Comm& comm, Shared& shared) {
    const int me = comm.rank();
    const int sets = rotation(state.range(0) * 3);
    shared.inputs[static_cast<size_t>(me)] = tensors(sets, {rows, kRowElements}, 1);
    const auto outs = tensors(sets, {rows / 2, kRowElements}, 0);
    return Sides{[&comm, &shared, outs, me](int64_t i) {
                   reduce_scatter(comm, pick(shared.inputs[static_cast<size_t>(me)], i),
                                  {.dim = 0, .out = pick(outs, i)});
                 },
                 [&shared, me, rows](int64_t i) {
                   shared.barrier.wait();
                   for (int peer = 0; peer < 2; ++peer) {
                     const Tensor& in = pick(shared.inputs[static_cast<size_t>(peer)], i);
                     benchmark::DoNotOptimize(read_all(at(in, me * rows / 2 * kRowBytes), rows / 2 * kRowBytes));
                   }
                   shared.barrier.wait();
                 }};
  });
}
BENCHMARK(BM_ReduceScatter)->Arg(1 << 20)->Arg(32 << 20)->UseManualTime()->Iterations(3);

// The call itself: nothing to move; beside one spin barrier.
void BM_Barrier(benchmark::State& state) {
  ::bench::compare(state, 2, 20000, [&](Comm& comm, Shared& shared) {
    return Sides{[&comm](int64_t) { comm.barrier(); }, [&shared](int64_t) { shared.barrier.wait(); }};
  });
}
BENCHMARK(BM_Barrier)->UseManualTime()->Iterations(3);

}  // namespace
