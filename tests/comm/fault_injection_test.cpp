// Faults at every moment of a call: nobody hangs, everybody gets an error, and a caller's memory is its own again as soon as
// its call has come out. Inputs and outputs lie in malloc's memory and go at once, so that AddressSanitizer sees a late reader.
#include <atomic>
#include <stdexcept>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

constexpr Moment kMoments[] = {Moment::before_announce, Moment::before_copy, Moment::during_copy, Moment::after_copy,
                               Moment::before_leave};

using Memory = std::vector<float>;

constexpr size_t kMany = 5000;  // elements, more than travel with the announcement

Tensor view(Memory& memory) { return Tensor::view(std::span(memory), {static_cast<int64_t>(memory.size())}); }

struct Collective {
  const char* name;
  std::function<void(Comm&)> call;
};

void gather_all(Comm& comm) {
  Memory x(300), out(300 * static_cast<size_t>(comm.size()));
  all_gather(comm, view(x), {.out = view(out)});
}
void reduce_all(Comm& comm, size_t length) {
  Memory x(length), out(length);
  all_reduce(comm, view(x), {}, view(out));
}
void reduce_in_place(Comm& comm) {
  Memory x(5000);
  all_reduce(comm, view(x), {}, view(x));
}
void reduce_and_scatter(Comm& comm) {
  Memory x(4 * static_cast<size_t>(comm.size())), out(4);
  reduce_scatter(comm, view(x), {.out = view(out)});
}
void exchange_all(Comm& comm) {
  Memory x(6 * static_cast<size_t>(comm.size())), out(x.size());
  all_to_all_v(comm, view(x), {.send_sizes = Sizes(static_cast<size_t>(comm.size()), 6), .out = view(out)});
}
void broadcast_first(Comm& comm) {
  Memory x(900), out(900);
  broadcast(comm, comm.rank() == 0 ? view(x) : Tensor(), 0, view(out));
}
void gather_last(Comm& comm) {
  Memory x(500);
  gather(comm, view(x), comm.size() - 1);
}
void start_and_wait(Comm& comm) {
  Memory x(300), out(300 * static_cast<size_t>(comm.size()));
  start(comm, AllGather{.x = view(x), .out = view(out)}).wait();
}

const Collective kCollectives[] = {
    {"all_gather", gather_all},
    {"all_reduce", [](Comm& comm) { reduce_all(comm, 10); }},
    {"all_reduce_in_two_rounds", [](Comm& comm) { reduce_all(comm, 5000); }},
    {"all_reduce_in_place", reduce_in_place},
    {"reduce_scatter", reduce_and_scatter},
    {"all_to_all_v", exchange_all},
    {"broadcast", broadcast_first},
    {"gather", gather_last},
    {"started", start_and_wait},
};

std::ostream& operator<<(std::ostream& out, const Collective& collective) { return out << collective.name; }

// Runs the collective, then barriers, so that whoever came through the first learns of the fault at the second. `over`
// counts the ranks that have ended.
std::vector<Thrown> with_fault(int ranks, const Collective& collective, Moment moment, int occurrence,
                               const std::function<void()>& fault, std::chrono::nanoseconds timeout,
                               std::atomic<int>* over = nullptr) {
  const int victim = ranks - 1;
  std::atomic<int> seen{0};
  const auto probe = [&](Moment now, int rank, int64_t call) {
    if (now == moment && rank == victim && call == 1 && seen++ == occurrence) fault();
  };
  std::vector<Thrown> thrown(static_cast<size_t>(ranks));
  run(ranks,
      [&](Comm& comm) {
        thrown[static_cast<size_t>(comm.rank())] = thrown_by([&] {
          collective.call(comm);
          comm.barrier();
          comm.barrier();
        });
        if (over != nullptr) ++*over;
      },
      {.timeout = timeout, .probe = probe});
  return thrown;
}

class FaultIn : public ::testing::TestWithParam<Collective> {};

TEST_P(FaultIn, ThrownAtAnyMomentReachesEveryRank) {
  for (const Moment moment : kMoments) {
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(fmt::format("moment {}, {} ranks", static_cast<int>(moment), ranks));
      const auto thrown = with_fault(
          ranks, GetParam(), moment, 0, [] { throw std::runtime_error("injected"); }, std::chrono::minutes(5));
      EXPECT_EQ(thrown.back().type, "std::exception");
      EXPECT_EQ(thrown.back().text, "injected");
      for (size_t r = 0; r + 1 < thrown.size(); ++r) {
        EXPECT_TRUE(thrown[r].type == "PeerLostError" || thrown[r].type == "AbortedError") << thrown[r];
        EXPECT_TRUE(contains(thrown[r].text, fmt::format("rank {}", ranks - 1))) << thrown[r];
        EXPECT_TRUE(contains(thrown[r].text, "injected")) << thrown[r];
      }
    }
  }
}

TEST_P(FaultIn, ThatIsNoStdExceptionReachesEveryRankToo) {
  for (const Moment moment : kMoments) {
    SCOPED_TRACE(static_cast<int>(moment));
    const auto thrown = with_fault(
        3, GetParam(), moment, 0, [] { throw 42; }, std::chrono::minutes(5));
    EXPECT_EQ(thrown.back().type, "something else");
    for (size_t r = 0; r + 1 < thrown.size(); ++r) {
      EXPECT_TRUE(thrown[r].type == "PeerLostError" || thrown[r].type == "AbortedError") << thrown[r];
    }
  }
}

// The late rank stays away until a peer has given up on it, however slow the machine; a peer cannot while the late one has
// a claim on its memory, so there the delay is just many times the timeout.
TEST_P(FaultIn, DelayedAtAnyMomentEndsInAnErrorOnEveryRank) {
  constexpr milliseconds kTimeout(60), kClaimed(1500);
  std::vector<std::thread> threads;  // they mostly sleep
  for (const Moment moment : kMoments) {
    for (const int ranks : {2, 3, 4}) {
      threads.emplace_back([=] {
        std::atomic<int> over{0};
        const auto delay = [&] {
          const auto end = std::chrono::steady_clock::now() +
                           (moment == Moment::during_copy ? kClaimed : milliseconds(std::chrono::minutes(1)));
          while (over == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
        };
        const auto thrown = with_fault(ranks, GetParam(), moment, 0, delay, kTimeout, &over);
        for (const Thrown& each : thrown) {
          EXPECT_TRUE(each.type == "TimeoutError" || each.type == "AbortedError")
              << each << "\nmoment " << static_cast<int>(moment) << ", " << ranks << " ranks";
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Every, FaultIn, ::testing::ValuesIn(kCollectives),
                         [](const auto& test) { return std::string(test.param.name); });

// The second round reads what the first one wrote into the caller's output.
TEST(FaultInTheSecondRound, ReachesEveryRank) {
  const Collective& two_rounds = kCollectives[2];
  for (const Moment moment : {Moment::before_copy, Moment::during_copy, Moment::after_copy, Moment::before_leave}) {
    SCOPED_TRACE(static_cast<int>(moment));
    const auto thrown = with_fault(
        3, two_rounds, moment, 1, [] { throw std::runtime_error("injected"); }, std::chrono::minutes(5));
    EXPECT_EQ(thrown[2].text, "injected");
    EXPECT_TRUE(contains(thrown[0].text, "injected")) << thrown[0];
    EXPECT_TRUE(contains(thrown[1].text, "injected")) << thrown[1];
    const auto late = with_fault(
        3, two_rounds, moment, 1, [] { std::this_thread::sleep_for(milliseconds(1500)); }, milliseconds(60));
    for (const Thrown& each : late) EXPECT_NE(each.type, "nothing");
  }
}

// Whether it stays so for that time: a reader lets go a moment before its probe says so.
bool still(const std::atomic<bool>& state, int milliseconds_long) {
  for (int i = 0; i < milliseconds_long && state; ++i) std::this_thread::sleep_for(milliseconds(1));
  return state;
}

// Rank 0 owns memory that rank 1 reads, and gives it up as soon as it may.
struct Reader {
  std::vector<float> got;
  Thrown thrown;
  bool copying_when_the_owner_came_out = false;
};
Reader read_from_one_who_gives_up(Moment delayed_at, const std::function<void(Comm&, Memory& x, Memory& out)>& call,
                                  size_t length) {
  Reader reader;
  std::atomic<bool> copying{false}, owner_out{false};
  const auto probe = [&](Moment moment, int rank, int64_t number) {
    if (rank != 1 || number != 2) return;
    if (moment == Moment::during_copy) copying = true;
    if (moment == delayed_at && moment == Moment::during_copy) std::this_thread::sleep_for(milliseconds(2000));
    while (moment == delayed_at && moment == Moment::before_copy && !owner_out) std::this_thread::yield();
    if (moment == Moment::after_copy) copying = false;
  };
  run(2,
      [&](Comm& comm) {
        comm.barrier();
        comm.set_timeout(milliseconds(100));
        auto x = std::make_unique<Memory>(length, 1.0f + static_cast<float>(comm.rank()));
        Memory out(comm.rank() == 1 ? 2 * length : 0, 7.0f);
        const Thrown thrown = thrown_by([&] { call(comm, *x, out); });
        if (comm.rank() == 0) {
          reader.copying_when_the_owner_came_out = still(copying, 500);
          x->assign(length, 99.0f);
          x.reset();
          owner_out = true;
          EXPECT_EQ(thrown.type, "TimeoutError") << thrown.text;
        } else {
          reader.got = out;
          reader.thrown = thrown;
        }
      },
      {.probe = probe});
  return reader;
}

void gather_to_one(Comm& comm, Memory& x, Memory& out) {
  gather(comm, view(x), {.root = 1, .out = comm.rank() == 1 ? view(out) : Tensor()});
}

TEST(FreedMemory, AnOwnerWaitsForAReaderThatCopies) {
  const Reader reader = read_from_one_who_gives_up(Moment::during_copy, gather_to_one, 100000);
  EXPECT_FALSE(reader.copying_when_the_owner_came_out);
  EXPECT_EQ(reader.thrown.type, "TimeoutError") << reader.thrown.text;
  // What it read was whole: the owner's 1, not the 99 of afterwards.
  EXPECT_EQ(std::count(reader.got.begin(), reader.got.end(), 1.0f), 100000);
  EXPECT_EQ(std::count(reader.got.begin(), reader.got.end(), 2.0f), 100000);
}

TEST(FreedMemory, AReaderThatHasNotBegunDoesNotRead) {
  const Reader reader = read_from_one_who_gives_up(Moment::before_copy, gather_to_one, 100000);
  EXPECT_EQ(reader.thrown.type, "TimeoutError") << reader.thrown.text;
  EXPECT_EQ(std::count(reader.got.begin(), reader.got.end(), 7.0f), 200000);
}

TEST(FreedMemory, SoDoesAReductionOfSeveralTerms) {
  const auto reduce_to_one = [](Comm& comm, Memory& x, Memory& out) {
    reduce(comm, view(x), 1, ReduceOp::sum,
           comm.rank() == 1 ? view(out).narrow(0, 0, static_cast<int64_t>(kMany)) : Tensor());
  };
  const Reader late = read_from_one_who_gives_up(Moment::during_copy, reduce_to_one, kMany);
  EXPECT_FALSE(late.copying_when_the_owner_came_out);
  EXPECT_EQ(std::count(late.got.begin(), late.got.end(), 3.0f), static_cast<ptrdiff_t>(kMany));
  const Reader never = read_from_one_who_gives_up(Moment::before_copy, reduce_to_one, kMany);
  EXPECT_EQ(std::count(never.got.begin(), never.got.end(), 7.0f), static_cast<ptrdiff_t>(2 * kMany));
}

// The owner's own thread throws in the middle: it may free its memory only when nobody copies.
TEST(FreedMemory, AnOwnerThatThrowsWaitsForAReaderThatCopies) {
  for (const bool standard : {true, false}) {
    std::atomic<bool> copying{false};
    bool copied_when_out = false;
    const auto probe = [&](Moment moment, int rank, int64_t) {
      if (rank == 1 && moment == Moment::during_copy) {
        copying = true;
        std::this_thread::sleep_for(milliseconds(100));
      }
      if (rank == 1 && moment == Moment::after_copy) copying = false;
      if (rank == 0 && moment == Moment::before_copy) {
        while (!copying) std::this_thread::yield();
        if (standard) throw std::runtime_error("injected");
        throw 42;
      }
    };
    run(2,
        [&](Comm& comm) {
          Memory out(2 * kMany);
          const Thrown thrown = thrown_by([&] {
            Memory x(kMany, 1.0f);
            all_gather(comm, view(x), {.out = view(out)});
          });
          EXPECT_NE(thrown.type, "nothing");
          if (comm.rank() == 0) copied_when_out = !still(copying, 30);
        },
        {.probe = probe});
    EXPECT_TRUE(copied_when_out) << "standard exception: " << standard;
  }
}

}  // namespace
}  // namespace tessera::test
