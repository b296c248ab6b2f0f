// Processes that no launcher started: they meet, share memory, and notice each other's end.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/meeting.hpp"
#include "support/processes.hpp"
#include "transport/shm/passing.hpp"
#include "transport/shm/process.hpp"

namespace tessera::test {
namespace {

using std::chrono::seconds;
using testing_support::Ended;
using testing_support::MeetingPlace;
using testing_support::ProcessOptions;
using testing_support::run_processes;
using testing_support::run_processes_well;
using testing_support::tell;

ProcessOptions joined(const MeetingPlace& place, int ranks, std::chrono::nanoseconds timeout = seconds(60)) {
  return {.come = [&place, ranks, timeout](int rank) {
    return join(place.meeting(), rank, ranks, {.name = "met", .timeout = timeout});
  }};
}

int entries(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

int mappings() {
  std::ifstream in("/proc/self/maps");
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

// What a rank does that sees whether its join() throws: it tells what.
std::function<Comm(int)> telling(const std::function<Comm(int)>& come) {
  return [come](int rank) {
    const Thrown thrown = thrown_by([&] { come(rank); });
    tell(thrown.type + ": " + thrown.text);
    _exit(0);
    return Comm();
  };
}

std::vector<Ended> end_of_join(int ranks, const std::function<Comm(int)>& come) {
  return run_processes(ranks, [](Comm&) {}, {.come = telling(come)});
}

class Join : public testing::TestWithParam<int> {};

TEST_P(Join, GivesACommunicatorThatWorks) {
  const MeetingPlace place;
  const int ranks = GetParam();
  run_processes_well(
      ranks,
      [&](Comm& comm) {
        ASSERT_EQ(comm.size(), ranks);
        EXPECT_EQ(comm.name(), "met");
        const int64_t big = 70'000;  // more than travels by way of the shared heap
        const Tensor mine = Tensor::full(DType::i64, {big + comm.rank()}, comm.rank());
        const auto [all, sizes] = all_gather(comm, mine);
        int64_t at = 0;
        for (int r = 0; r < ranks; ++r) {
          EXPECT_EQ(sizes[static_cast<size_t>(r)], big + r);
          EXPECT_EQ(all.at<int64_t>(at), r);
          at += big + r;
        }
        Comm half = comm.split(comm.rank() % 2);
        EXPECT_EQ(all_reduce(half, number(1)).at<int64_t>(0), half.size());
        const int next = (comm.rank() + 1) % ranks, before = (comm.rank() + ranks - 1) % ranks;
        const Work sent = start_send(comm, number(comm.rank()), next);
        EXPECT_EQ(recv(comm, before).tensor.at<int64_t>(0), before);
        sent.wait();
      },
      joined(place, ranks));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Join, testing::Values(1, 2, 3, 7));

TEST(JoinedProcesses, ReadEachOthersMemoryWhereTheSystemLetsThem) {
  if (!testing_support::attach_allowed()) GTEST_SKIP() << "this system forbids it";
  const MeetingPlace place;
  run_processes_well(
      2,
      [](Comm& comm) {
        all_gather(comm, Tensor::zeros(DType::f32, {1 << 20}));
        EXPECT_EQ(comm.stats().bytes_attached, 4 << 20);
      },
      joined(place, 2));
}

TEST(JoinedProcesses, MeetAgainAndAgainWithoutALeak) {
  const MeetingPlace place;
  const int times = std::getenv("TESSERA_SOAK") != nullptr ? 2000 : 150;
  run_processes_well(
      3,
      [&](Comm& comm) {
        const auto meet = [&](int i) {
          Comm again = join(place.meeting(fmt::format("{}-", i)), comm.rank(), comm.size());
          EXPECT_EQ(all_reduce(again, number(i)).at<int64_t>(0), 3 * i);
        };
        for (int i = 0; i < 5; ++i) meet(i);
        const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task"), maps = mappings();
        for (int i = 5; i < times; ++i) meet(i);
        EXPECT_EQ(entries("/proc/self/fd"), descriptors);
        EXPECT_EQ(entries("/proc/self/task"), threads);
        EXPECT_LE(mappings(), maps + times / 2);  // a leak would be of one a time; sanitizers take some for themselves
        EXPECT_EQ(all_reduce(comm, number(1)).at<int64_t>(0), 3) << "the first is alive all the time";
      },
      joined(place, 3));
}

TEST(JoinedProcesses, HearOfADeathAtOnce) {
  const MeetingPlace place;
  const auto ended = run_processes(
      3,
      [](Comm& comm) {
        comm.barrier();
        if (comm.rank() == 1) kill(getpid(), SIGKILL);
        const Thrown thrown = thrown_by([&] { comm.barrier(); });
        tell(thrown.type + ": " + thrown.text);
      },
      joined(place, 3, seconds(120)));
  EXPECT_TRUE(ended[1].killed_by(SIGKILL));
  for (const size_t r : {0, 2}) {
    EXPECT_TRUE(ended[r].said.starts_with("PeerLostError")) << ended[r].said;
    EXPECT_TRUE(contains(ended[r].said, "rank 1 left")) << ended[r].said;
    EXPECT_TRUE(contains(ended[r].said, "its process is gone (pid")) << ended[r].said;
  }
}

TEST(JoinedProcesses, NameWhoDidNotCome) {
  const MeetingPlace place;
  const auto ended = end_of_join(4, [&](int rank) {
    if (rank == 2) return Comm();
    return join(place.meeting(), rank, 4, {.timeout = kShort});
  });
  for (const size_t r : {0, 1, 3}) {
    EXPECT_EQ(ended[r].said, "TimeoutError: tessera::join(): rank 2 of 4 did not come");
  }
}

// Each of the ranks ends as soon as all have come, before it takes part.
class DeathInJoin : public testing::TestWithParam<int> {};

TEST_P(DeathInJoin, IsToldToTheOthers) {
  const int victim = GetParam();
  const MeetingPlace place;
  const auto ended = end_of_join(3, [&](int rank) {
    Meeting meeting = place.meeting();
    const auto get = meeting.get;
    meeting.get = [&](const std::string& key, milliseconds timeout) {
      if (rank == victim && (key == "answer" || key == "rank1")) kill(getpid(), SIGKILL);
      return get(key, timeout);
    };
    return join(meeting, rank, 3, {.timeout = seconds(120)});
  });
  for (int r = 0; r < 3; ++r) {
    if (r == victim) continue;
    const std::string& said = ended[static_cast<size_t>(r)].said;
    EXPECT_TRUE(said.starts_with("PeerLostError: tessera::join(): ")) << said;
    EXPECT_TRUE(contains(said, "is gone") || contains(said, "was gone") || contains(said, "it has failed") ||
                contains(said, "ended, or failed"))
        << said;
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, DeathInJoin, testing::Values(0, 1, 2));

// What one rank says of itself is changed on the way.
std::vector<Ended> with_card(const MeetingPlace& place, int liar, const std::function<void(std::string&)>& change) {
  return end_of_join(3, [&place, liar, change](int rank) {
    Meeting meeting = place.meeting();
    if (rank == liar) {
      meeting.set = [set = meeting.set, change](const std::string& key, std::string value) {
        change(value);
        set(key, value);
      };
    }
    return join(meeting, rank, 3, {.timeout = seconds(60)});
  });
}

TEST(JoinedProcesses, OnTwoHostsGetOneErrorThatNamesThem) {
  const MeetingPlace place;
  const auto ended = with_card(place, 2, [](std::string& card) {
    const size_t host = card.find(' ') + 1, name = card.find(' ', host) + 1;
    card.replace(name, card.find(' ', name) - name, "elsewhere");
    card.insert(host, "another");
  });
  for (const Ended& e : ended) {
    EXPECT_TRUE(e.said.starts_with("Error: tessera::join(): rank 2 is on elsewhere, rank 0 on ")) << e.said;
    EXPECT_EQ(e.said, ended[0].said);
  }
}

TEST(JoinedProcesses, OfTwoVersionsGetOneError) {
  const MeetingPlace place;
  const auto ended = with_card(place, 1, [](std::string& card) { card.replace(0, card.find(' '), "tessera-9"); });
  for (const Ended& e : ended) EXPECT_TRUE(contains(e.said, "rank 1 has \"tessera-9\", rank 0 has")) << e.said;
}

TEST(JoinedProcesses, RefuseWhatMakesNoSense) {
  const MeetingPlace place;
  EXPECT_THROW(join(place.meeting(), 0, 0), Error);
  EXPECT_THROW(join(place.meeting(), 2, 2), Error);
  EXPECT_THROW(join(place.meeting(), -1, 2), Error);
  EXPECT_THROW(join(place.meeting(), 0, 2, {.timeout = seconds(0)}), Error);
}

// A process of the same user that knows where the desk is, and not the secret, or that is not the one expected.
TEST(Desk, GivesNothingToStrangers) {
  shm::Desk desk;
  const auto segment = shm::Segment::create(2, 1 << 21, false);
  const auto try_to_fetch = [&](const shm::Address& address) {
    const pid_t child = fork();
    if (child == 0) {
      const Thrown thrown =
          thrown_by([&] { shm::fetch(address, shm::Identity{.pid = getppid()}, 1, Clock::now() + seconds(60)); });
      _exit(thrown.type == "nothing" ? 0 : thrown.type == "PeerLostError" ? 1 : 2);
    }
    return child;
  };
  const auto exit_code = [](pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  const auto hand_out = [&](const shm::Identity& to) {
    const shm::Identity guests[] = {shm::own_identity(), to};
    return thrown_by([&] { desk.hand_out(segment->descriptor(), guests, Clock::now() + kShort); });
  };
  pid_t child = try_to_fetch({desk.address().name, std::string(32, '0')});
  EXPECT_NE(hand_out({.pid = child, .started = shm::start_time(child)}).type, "nothing");
  EXPECT_EQ(exit_code(child), 1) << "it does not know the secret";
  child = try_to_fetch(desk.address());
  EXPECT_EQ(hand_out(shm::own_identity()).type, "TimeoutError");
  EXPECT_EQ(exit_code(child), 1) << "another process is expected";
  child = try_to_fetch(desk.address());
  EXPECT_EQ(hand_out({.pid = child, .started = shm::start_time(child)}).type, "nothing");
  EXPECT_EQ(exit_code(child), 0);
}

}  // namespace
}  // namespace tessera::test
