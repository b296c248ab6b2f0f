// Thousands of random interleavings: small calls in random order, every rank held up at random moments, failures in between.
// Results are checked; ThreadSanitizer checks the rest. TESSERA_SOAK=1 runs ten times as many.
#include <atomic>
#include <numeric>
#include <random>
#include <stdexcept>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

using Random = std::mt19937_64;

uint64_t mix(uint64_t value) {  // splitmix64: neighbours give unrelated numbers
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

void dawdle(uint64_t how) {
  switch (how % 16) {
    case 0: std::this_thread::sleep_for(std::chrono::microseconds(how / 16 % 150)); break;
    case 1:
    case 2:
    case 3: std::this_thread::yield(); break;
    case 4:
    case 5:
    case 6:
    case 7:
      for (uint64_t spins = how / 16 % 500; spins > 0; --spins) std::atomic_signal_fence(std::memory_order_seq_cst);
      break;
    default: break;
  }
}

// Without state of its own, so that it adds no order between the ranks.
auto delays(uint64_t seed) {
  return [seed](Moment moment, int rank, int64_t call) {
    dawdle(mix(seed ^ mix(static_cast<uint64_t>(rank) * 1000003 + static_cast<uint64_t>(call) * 8 +
                          static_cast<uint64_t>(moment))));
  };
}

// What rank r contributes to a call.
int64_t value_of(uint64_t salt, int rank) {
  return static_cast<int64_t>(mix(salt + static_cast<uint64_t>(rank)) % 1000);
}
int64_t sum_of(uint64_t salt, int ranks) {
  int64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value_of(salt, r);
  return sum;
}
Tensor filled(uint64_t salt, int rank, int64_t count) {
  return Tensor::full(DType::i64, {count}, value_of(salt, rank));
}

void check_gather(Comm& comm, uint64_t salt, const Gathered& got) {
  int64_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    const int64_t count = value_of(salt + 50, r) % 4;
    ASSERT_EQ(got.sizes[static_cast<size_t>(r)], count);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got.tensor.at<int64_t>(at++), value_of(salt, r));
  }
  ASSERT_EQ(at, got.tensor.elements());
}

void check_filled(const Tensor& tensor, int64_t value) {
  for (const int64_t each : tensor.span<int64_t>()) ASSERT_EQ(each, value);
}

void gather_ragged(Comm& comm, uint64_t salt) {
  check_gather(comm, salt, all_gather(comm, filled(salt, comm.rank(), value_of(salt + 50, comm.rank()) % 4)));
}

void reduce_small_or_large(Comm& comm, uint64_t salt) {
  const int64_t count = salt % 3 == 0 ? 1500 : 3;  // two rounds or one
  const Tensor x = filled(salt, comm.rank(), count);
  check_filled(all_reduce(comm, x, ReduceOp::sum, salt % 2 == 0 ? x : Tensor()), sum_of(salt, comm.size()));
}

void reduce_and_scatter(Comm& comm, uint64_t salt) {
  Sizes sizes;
  for (int r = 0; r < comm.size(); ++r) sizes.push_back(value_of(salt + 50, r) % 3);
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const Tensor mine = reduce_scatter(comm, filled(salt, comm.rank(), rows), 0, sizes);
  ASSERT_EQ(mine.elements(), sizes[static_cast<size_t>(comm.rank())]);
  check_filled(mine, sum_of(salt, comm.size()));
}

void exchange_pairs(Comm& comm, uint64_t salt) {
  Sizes send;
  for (int r = 0; r < comm.size(); ++r) send.push_back((comm.rank() + r) % 3);
  const int64_t rows = std::accumulate(send.begin(), send.end(), int64_t{0});
  const auto [got, sizes] = all_to_all_v(comm, filled(salt, comm.rank(), rows), send);
  int64_t at = 0;
  for (int from = 0; from < comm.size(); ++from) {
    ASSERT_EQ(sizes[static_cast<size_t>(from)], (from + comm.rank()) % 3);
    for (int64_t i = 0; i < (from + comm.rank()) % 3; ++i) ASSERT_EQ(got.at<int64_t>(at++), value_of(salt, from));
  }
}

void broadcast_one(Comm& comm, uint64_t salt) {
  const int root = static_cast<int>(salt % static_cast<uint64_t>(comm.size()));
  check_filled(broadcast(comm, comm.rank() == root ? filled(salt, root, 7) : Tensor(), root), value_of(salt, root));
}

void send_around(Comm& comm, uint64_t salt) {
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  auto posted = start_recv(comm, salt % 2 == 0 ? previous : kAnySource, static_cast<int64_t>(salt % 5));
  send(comm, filled(salt, comm.rank(), 4), next, static_cast<int64_t>(salt % 5));
  check_filled(posted.get().tensor, value_of(salt, previous));
  comm.barrier();  // a receive from anybody must not take the next round's
}

void start_several(Comm& comm, uint64_t salt) {
  auto sum = start(comm, AllReduce{.x = filled(salt, comm.rank(), 5)});
  auto all = start(comm, AllGather{.x = filled(salt + 1, comm.rank(), value_of(salt + 51, comm.rank()) % 4)});
  if (salt % 2 == 0) comm.barrier();
  check_gather(comm, salt + 1, all.get());
  if (salt % 3 != 0) check_filled(sum.get(), sum_of(salt, comm.size()));  // else it is dropped
}

void split_in_two(Comm& comm, uint64_t salt) {
  Comm half = comm.split(comm.rank() % 2, static_cast<int64_t>(salt % 2) * -comm.rank());
  gather_ragged(half, salt);
}

void disagree(Comm& comm, uint64_t salt) {
  const int odd = static_cast<int>(salt % static_cast<uint64_t>(comm.size()));
  const Tensor x = Tensor::full(DType::i64, {2, comm.rank() == odd ? 3 : 2}, 0);
  const Thrown thrown = thrown_by([&] { all_gather(comm, x); });
  if (thrown.type == "MismatchError") return;
  throw AbortedError(thrown.text);  // the run was spoilt before: whoever expected none sees it
}

void call_randomly(Comm& comm, uint64_t salt) {
  using Call = void (*)(Comm&, uint64_t);
  constexpr Call kCalls[] = {gather_ragged, reduce_small_or_large, reduce_and_scatter, exchange_pairs, broadcast_one,
                             send_around,   start_several,         split_in_two,       disagree};
  kCalls[mix(salt) % std::size(kCalls)](comm, mix(salt + 1) >> 8);
}

TEST(Interleavings, OfCallsThatWork) {
  const int runs = 150 * soak();
  for (int i = 0; i < runs; ++i) {
    const uint64_t seed = mix(static_cast<uint64_t>(i));
    const int ranks = 2 + i % 4;
    SCOPED_TRACE(fmt::format("run {} on {} ranks", i, ranks));
    run(ranks,
        [&](Comm& comm) {
          for (uint64_t step = 0; step < 12; ++step) call_randomly(comm, seed + step);
          expect_alive(comm);
        },
        {.probe = delays(seed)});
    if (HasFailure()) return;
  }
}

// How a rank spoils a run.
enum class Spoil { throws, throws_in_a_call, leaves, is_late, aborts, is_aborted_from_outside };

struct Spoiled {
  uint64_t seed;
  int ranks;
  Spoil how;
  int who;
  uint64_t when;  // the number of the step
};

void spoil(Comm& comm, const Spoiled& plan) {
  switch (plan.how) {
    case Spoil::throws: throw std::runtime_error("spoilt");
    case Spoil::leaves: throw std::logic_error("leaves");
    case Spoil::is_late: std::this_thread::sleep_for(milliseconds(60)); break;
    case Spoil::aborts: comm.abort("spoilt"); break;
    case Spoil::is_aborted_from_outside: {
      std::thread([&] {
        dawdle(plan.seed >> 7);
        comm.abort("spoilt");
      }).join();
      break;
    }
    case Spoil::throws_in_a_call: break;  // the probe does
  }
}

// All steps; what ended them, if anything.
Thrown go_through(Comm& comm, const Spoiled& plan) {
  return thrown_by([&] {
    for (uint64_t step = 0; step < 10; ++step) {
      if (step == plan.when && comm.rank() == plan.who) spoil(comm, plan);
      call_randomly(comm, plan.seed + step);
    }
    comm.barrier();
  });
}

// Everybody comes out with an error, unless the fault came too late to matter; then those that are left go on together.
void run_spoiled(const Spoiled& plan) {
  const auto held_up = delays(plan.seed);
  std::atomic<bool> spoilt{false};  // once: communicators that come of this one count their calls anew
  const auto probe = [&](Moment moment, int rank, int64_t call) {
    held_up(moment, rank, call);
    if (plan.how == Spoil::throws_in_a_call && rank == plan.who && static_cast<uint64_t>(call) == plan.when + 1 &&
        static_cast<uint64_t>(moment) == plan.seed % 5 && !spoilt.exchange(true)) {
      throw std::runtime_error("spoilt");
    }
  };
  std::atomic<int> unharmed{0}, went_on{0};
  const Thrown all = thrown_by([&] {
    run(plan.ranks,
        [&](Comm& comm) {
          if (plan.how == Spoil::is_late) comm.set_timeout(milliseconds(20));
          const Thrown thrown = go_through(comm, plan);
          if (thrown.type == "nothing") {
            ++unharmed;
            return;
          }
          if (thrown.type == "std::exception") throw std::runtime_error(thrown.text);
          EXPECT_TRUE(thrown.type == "PeerLostError" || thrown.type == "TimeoutError" || thrown.type == "AbortedError")
              << thrown;
          comm.abort("what failed may have been a part of it only");
          comm.set_timeout(milliseconds(200));
          Comm rest;
          // A rank that is too late, or whose peers were too late for it, is left out.
          const Thrown shrunk = thrown_by([&] { rest = comm.shrink(); });
          if (shrunk.type != "nothing") {
            EXPECT_EQ(shrunk.type, "AbortedError") << shrunk;
            return;
          }
          rest.set_timeout(std::chrono::minutes(5));
          for (uint64_t step = 20; step < 24; ++step) call_randomly(rest, plan.seed + step);
          expect_alive(rest);
          ++went_on;
        },
        {.probe = probe});
  });
  // A Work that was dropped as the last thing of its rank tells run() that it timed out.
  EXPECT_TRUE(all.type == "nothing" || all.type == "RankError" || all.type == "TimeoutError") << all;
  EXPECT_TRUE(unharmed == 0 || went_on == 0 || plan.how == Spoil::throws_in_a_call) << unharmed << " and " << went_on;
}

TEST(Interleavings, OfCallsThatFail) {
  const int runs = 250 * soak();
  for (int i = 0; i < runs; ++i) {
    const uint64_t seed = mix(static_cast<uint64_t>(i) + 100000);
    const Spoiled plan{seed, 2 + i % 4, static_cast<Spoil>(seed % 6),
                       static_cast<int>(seed / 6 % (2 + static_cast<uint64_t>(i) % 4)), seed / 64 % 10};
    SCOPED_TRACE(fmt::format("run {}: {} ranks, spoilt in way {} by rank {} at step {}", i, plan.ranks,
                             static_cast<int>(plan.how), plan.who, plan.when));
    run_spoiled(plan);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::test
