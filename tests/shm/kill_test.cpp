// A rank that dies, at any point of any call: the others hear of it at once, by name, and nothing stays behind.
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace tessera::test {
namespace {

using testing_support::Ended;
using testing_support::kSanitized;
using testing_support::ProcessOptions;
using testing_support::run_processes;
using testing_support::tell;

struct Collective {
  const char* name;
  void (*call)(Comm& comm);
};
std::ostream& operator<<(std::ostream& out, const Collective& collective) { return out << collective.name; }

Tensor rows(Comm& comm, int64_t each = 5000) {
  return Tensor::full(DType::f32, {each + comm.rank(), 4}, static_cast<float>(comm.rank()));
}
Tensor same(int64_t each = 5000) { return Tensor::full(DType::f32, {each, 4}, 1.0f); }

const Collective kCollectives[] = {
    {"barrier", [](Comm& comm) { comm.barrier(); }},
    {"all_gather", [](Comm& comm) { all_gather(comm, rows(comm)); }},
    {"all_gather_of_little", [](Comm& comm) { all_gather(comm, rows(comm, 3)); }},
    {"all_gather_from_the_heap",
     [](Comm& comm) {
       const Tensor x = comm.allocate(DType::f32, {5000, 4});
       x.copy_from(same());
       all_gather(comm, x);
     }},
    {"all_gather_parts", [](Comm& comm) { all_gather_parts(comm, rows(comm)); }},
    {"reduce_scatter", [](Comm& comm) { reduce_scatter(comm, same()); }},
    {"all_reduce", [](Comm& comm) { all_reduce(comm, same()); }},
    {"all_reduce_of_little", [](Comm& comm) { all_reduce(comm, same(3)); }},
    {"all_reduce_in_place",
     [](Comm& comm) {
       const Tensor x = same();
       all_reduce(comm, x, ReduceOp::sum, x);
     }},
    {"all_to_all", [](Comm& comm) { all_to_all(comm, same(5000), 0, 1); }},
    {"all_to_all_v",
     [](Comm& comm) { all_to_all_v(comm, same(1000 * comm.size()), Sizes(static_cast<size_t>(comm.size()), 1000)); }},
    {"broadcast", [](Comm& comm) { broadcast(comm, comm.rank() == 0 ? same() : Tensor()); }},
    {"scatter", [](Comm& comm) { scatter(comm, comm.rank() == 0 ? same() : Tensor(), 0); }},
    {"gather", [](Comm& comm) { gather(comm, rows(comm), 0); }},
    {"reduce", [](Comm& comm) { reduce(comm, same(), 0); }},
    {"list",
     [](Comm& comm) {
       run(comm, std::vector{AllGather{.x = rows(comm)}, AllGather{.x = rows(comm, 2)}});
     }},
    {"started", [](Comm& comm) { start(comm, AllGather{.x = rows(comm)}).wait(); }},
    {"split", [](Comm& comm) { comm.split(comm.rank() % 2); }},
};

constexpr Moment kMoments[] = {Moment::before_announce, Moment::before_copy, Moment::during_copy, Moment::after_copy,
                               Moment::before_leave};

std::vector<std::string> files_in(const char* folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

int mapped_segments() {
  std::ifstream in("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(in, line);) count += contains(line, "memfd:tessera") ? 1 : 0;
  return count;
}

// While it lives nothing may come to stay: no mapping, no descriptor, no process that a rank started. Shared memory is an
// anonymous file: it is gone when no process holds it.
class NothingStays {
 public:
  NothingStays() { prctl(PR_SET_CHILD_SUBREAPER, 1); }  // children of dead ranks become ours
  ~NothingStays() {
    const auto end = Clock::now() + std::chrono::seconds(60);
    pid_t left = 0;
    while ((left = waitpid(-1, nullptr, WNOHANG)) >= 0 && Clock::now() < end) {
      if (left == 0) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(left, -1) << "a process is left";
    EXPECT_EQ(mapped_segments(), segments_);
    EXPECT_EQ(files_in("/proc/self/fd").size(), descriptors_);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

 private:
  int segments_ = mapped_segments();
  size_t descriptors_ = files_in("/proc/self/fd").size();
};

// Survivors tell "type: text". It is the type that shows that they did not wait for the timeout.
void expect_told(const std::vector<Ended>& ended, int victim, const std::string& how) {
  for (size_t r = 0; r < ended.size(); ++r) {
    if (static_cast<int>(r) == victim) continue;
    const Ended& e = ended[r];
    EXPECT_TRUE(e.exited(0) && e.failures.empty()) << "rank " << r << ": " << e.failures << e.threw;
    EXPECT_TRUE(e.said.starts_with("PeerLostError")) << "rank " << r << ": " << e.said;
    EXPECT_TRUE(contains(e.said, fmt::format("rank {} left", victim))) << "rank " << r << ": " << e.said;
    // On a machine that is very slow the launcher may not have said how before a survivor tells it.
    EXPECT_TRUE(contains(e.said, how) || contains(e.said, "its process is gone")) << "rank " << r << ": " << e.said;
  }
}

// The collective, then barriers: who came through the first hears of it at the second.
std::vector<Ended> with_death(int ranks, int victim, const Collective& collective, Moment moment,
                              const std::function<void()>& death, shm::Way way = shm::Way::choose) {
  ProcessOptions options{.way = way};
  options.run.timeout = std::chrono::minutes(5);
  options.run.probe = [=](Moment now, int rank, int64_t call) {
    if (now == moment && rank == victim && call == 2) death();
  };
  return run_processes(
      ranks,
      [&](Comm& comm) {
        comm.barrier();
        const auto start = Clock::now();
        const Thrown thrown = thrown_by([&] {
          collective.call(comm);
          comm.barrier();
          if (comm.rank() == victim) death();  // where the call has no such moment
          comm.barrier();
        });
        // The timeout is five minutes: who waited for it did not hear of the death.
        EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
        tell(fmt::format("{}: {}", thrown.type, thrown.text));
      },
      options);
}

class Killed : public ::testing::TestWithParam<Collective> {};

TEST_P(Killed, AtAnyMomentTheOthersHearOfIt) {
  const NothingStays nothing_stays;
  for (const Moment moment : kMoments) {
    for (const int ranks : kSanitized ? std::vector{3} : std::vector{2, 3, 4}) {
      SCOPED_TRACE(fmt::format("moment {}, {} ranks", static_cast<int>(moment), ranks));
      const int victim = (ranks + static_cast<int>(moment)) % ranks;
      const auto ended = with_death(ranks, victim, GetParam(), moment, [] { kill(getpid(), SIGKILL); });
      EXPECT_TRUE(ended[static_cast<size_t>(victim)].killed_by(SIGKILL));
      expect_told(ended, victim, "was killed by signal 9");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(In, Killed, ::testing::ValuesIn(kCollectives),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Died, OfAnExitOrAnAbortIsToldAsSuch) {
  const NothingStays nothing_stays;
  const auto of_exit = with_death(3, 1, kCollectives[1], Moment::during_copy, [] { _exit(7); });
  EXPECT_TRUE(of_exit[1].exited(7));
  expect_told(of_exit, 1, "exited with code 7");
  const auto of_abort = with_death(3, 0, kCollectives[5], Moment::before_copy, [] {
    signal(SIGABRT, SIG_DFL);  // a sanitizer would print a page
    abort();
  });
  EXPECT_TRUE(of_abort[0].killed_by(SIGABRT));
  expect_told(of_abort, 0, "was killed by signal 6");
}

TEST(Died, InEachWayOfMoving) {
  const NothingStays nothing_stays;
  for (const shm::Way way : testing_support::ways()) {
    for (const Moment moment : kMoments) {
      for (const Collective& collective : {kCollectives[1], kCollectives[6]}) {
        SCOPED_TRACE(
            fmt::format("way {}, moment {}, {}", static_cast<int>(way), static_cast<int>(moment), collective.name));
        expect_told(with_death(
                        3, 2, collective, moment, [] { kill(getpid(), SIGKILL); }, way),
                    2, "signal 9");
      }
    }
  }
}

// The child of a rank holds all its descriptors open, and goes on.
TEST(Died, ThoughItsForkedChildLivesOn) {
  const NothingStays nothing_stays;
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const auto ended = with_death(3, 1, kCollectives[1], Moment::during_copy, [&] {
    if (fork() == 0) {
      char byte = 0;
      close(gate[1]);
      while (read(gate[0], &byte, 1) < 0) {}
      _exit(0);
    }
    kill(getpid(), SIGKILL);
  });
  expect_told(ended, 1, "signal 9");
  close(gate[0]);
  close(gate[1]);  // lets it go
}

// Rank 0 waits for rank 1 first, which lives and does not come: it hears of rank 2 all the same.
TEST(Died, ThoughAnotherOneIsWaitedFor) {
  const NothingStays nothing_stays;
  const auto ended = run_processes(3, [](Comm& comm) {
    const Thrown thrown = thrown_by([&] {
      comm.barrier();
      if (comm.rank() == 2) kill(getpid(), SIGKILL);
      if (comm.rank() == 1) recv(comm, 0, 5);
      else comm.barrier();
    });
    tell(fmt::format("{}: {}", thrown.type, thrown.text));
  });
  expect_told(ended, 2, "signal 9");
}

// Rank 1 has announced its call before it dies, and rank 2 is far from it: rank 0 does not wait for that.
TEST(Died, AfterItAnnouncedThoughAThirdIsLate) {
  const NothingStays nothing_stays;
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  for (const Collective& collective : {kCollectives[0], kCollectives[1], kCollectives[7]}) {
    SCOPED_TRACE(collective.name);
    const auto ended = run_processes(3, [&](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        std::thread([] {
          std::this_thread::sleep_for(milliseconds(300));
          kill(getpid(), SIGKILL);
        }).detach();
      }
      char byte = 0;
      // Until rank 0 has heard of it.
      if (comm.rank() == 2 && read(gate[0], &byte, 1) != 1) tell("no gate");
      const Thrown thrown = thrown_by([&] { collective.call(comm); });
      if (comm.rank() == 0 && write(gate[1], &byte, 1) != 1) tell("no gate");
      tell(fmt::format("{}: {}", thrown.type, thrown.text));
    });
    EXPECT_TRUE(ended[1].killed_by(SIGKILL));
    expect_told(ended, 1, "signal 9");
  }
  close(gate[0]);
  close(gate[1]);
}

TEST(Died, WhileOthersWaitForAMessage) {
  const NothingStays nothing_stays;
  for (const bool sends : {false, true}) {
    const auto ended = run_processes(3, [&](Comm& comm) {
      // Rank 2 may hear of it before it has seen that all came to the first barrier.
      const Thrown thrown = thrown_by([&] {
        comm.barrier();
        if (comm.rank() == 1) kill(getpid(), SIGKILL);
        if (comm.rank() == 2) comm.barrier();
        else if (sends) send(comm, rows(comm), 1);
        else recv(comm, 1);
      });
      tell(fmt::format("{}: {}", thrown.type, thrown.text));
    });
    expect_told(ended, 1, "signal 9");
  }
}

TEST(Died, InACommunicatorThatWasSplitOff) {
  const NothingStays nothing_stays;
  const auto ended = run_processes(4, [](Comm& comm) {
    Comm half = comm.split(comm.rank() % 2);
    half.barrier();
    if (comm.rank() == 3) kill(getpid(), SIGKILL);
    if (comm.rank() == 1) {
      const Thrown thrown = thrown_by([&] { half.barrier(); });
      EXPECT_EQ(thrown.type, "PeerLostError");
      EXPECT_TRUE(contains(thrown.text, "rank 1 left")) << thrown;
    } else {
      expect_alive(half);  // theirs is whole
    }
    EXPECT_EQ(thrown_by([&] { comm.barrier(); }).type, "PeerLostError");
  });
  for (const int r : {0, 1, 2}) EXPECT_TRUE(ended[static_cast<size_t>(r)].exited(0)) << r;
  for (const Ended& e : ended) EXPECT_EQ(e.failures + e.threw, "");
}

TEST(Died, TheRestGoesOnTogether) {
  const NothingStays nothing_stays;
  const auto ended = run_processes(4, [](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 2) kill(getpid(), SIGKILL);
    EXPECT_EQ(thrown_by([&] { all_gather(comm, rows(comm)); }).type, "PeerLostError");
    Comm rest = comm.shrink();
    EXPECT_EQ(rest.size(), 3);
    expect_alive(rest);
    if (rest.rank() == 0) kill(getpid(), SIGKILL);
    EXPECT_EQ(thrown_by([&] { all_reduce(rest, same()); }).type, "PeerLostError");
    Comm last = rest.shrink();
    EXPECT_EQ(last.size(), 2);
    expect_alive(last);
  });
  for (const int r : {1, 3})
    EXPECT_EQ(ended[static_cast<size_t>(r)].failures + ended[static_cast<size_t>(r)].threw, "");
}

TEST(Stopped, IsLateAndNotLost) {
  const NothingStays nothing_stays;
  ProcessOptions options;
  options.run.timeout = milliseconds(500);
  const auto ended = run_processes(
      3,
      [](Comm& comm) {
        comm.barrier();
        comm.barrier();
        if (comm.rank() == 1) raise(SIGSTOP);
        const Thrown thrown = thrown_by([&] { all_gather(comm, rows(comm)); });
        tell(fmt::format("{}: {}", thrown.type, thrown.text));
      },
      options,
      [&](const std::vector<pid_t>& pids) {
        // It is let go when the others have ended: they do not wait for that.
        for (const int r : {0, 2}) {
          siginfo_t info;
          waitid(P_PID, static_cast<id_t>(pids[static_cast<size_t>(r)]), &info, WEXITED | WNOWAIT);
        }
        kill(pids[1], SIGCONT);
      });
  for (const int r : {0, 2}) {
    const Ended& e = ended[static_cast<size_t>(r)];
    EXPECT_TRUE(e.said.starts_with("TimeoutError")) << e.said << e.threw;
    EXPECT_TRUE(contains(e.said, "rank 1 did not come")) << e.said;
  }
}

// Kills at random times, in a stream of random calls.
TEST(KilledAtRandom, TheOthersHearOfIt) {
  const NothingStays nothing_stays;
  const int runs = soak() > 1 ? 400 : kSanitized ? 5 : 25;
  std::minstd_rand random(7);
  for (int i = 0; i < runs; ++i) {
    const int ranks = 2 + static_cast<int>(random() % 3),
              victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const auto after = std::chrono::microseconds(random() % 20000);
    SCOPED_TRACE(fmt::format("run {}: {} ranks, rank {} after {} µs", i, ranks, victim, after.count()));
    const auto seed = static_cast<unsigned>(random());
    const auto ended = run_processes(
        ranks,
        [&](Comm& comm) {
          std::minstd_rand order(seed);
          const Thrown thrown = thrown_by([&] {
            while (true) kCollectives[order() % std::size(kCollectives)].call(comm);
          });
          tell(fmt::format("{}: {}", thrown.type, thrown.text));
        },
        {},
        [&](const std::vector<pid_t>& pids) {
          // Not before all have joined: what happens then has tests of its own.
          std::this_thread::sleep_for(milliseconds(30) + after);
          kill(pids[static_cast<size_t>(victim)], SIGKILL);
        });
    for (int r = 0; r < ranks; ++r) {
      if (r == victim) continue;
      const Ended& e = ended[static_cast<size_t>(r)];
      EXPECT_TRUE(contains(e.said + e.threw, "PeerLostError") || contains(e.threw, "before it came"))
          << e.said << e.threw;
      EXPECT_TRUE(contains(e.said + e.threw, fmt::format("rank {}", victim))) << e.said << e.threw;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::test
