// Communicators made out of others, and out of other processes' memory.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "transport/threads/group.hpp"

namespace tessera::test {
namespace {

TEST(Split, ByColorOrderedByKeyThenRank) {
  run(6, [](Comm& comm) {
    // Even ranks in reverse order, odd ones as they are.
    const bool even = comm.rank() % 2 == 0;
    Comm half = comm.split(comm.rank() % 2, even ? -comm.rank() : 5);
    EXPECT_EQ(half.size(), 3);
    EXPECT_EQ(half.rank(), even ? 2 - comm.rank() / 2 : comm.rank() / 2);
    EXPECT_EQ(half.name(), even ? "world/0" : "world/1");
    EXPECT_EQ(half.timeout(), comm.timeout());
    expect_alive(half);
    const auto ranks = all_gather(half, Tensor::full(DType::i64, {1}, comm.rank())).tensor;
    const int64_t expected[2][3] = {{4, 2, 0}, {1, 3, 5}};
    for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.at<int64_t>(r), expected[comm.rank() % 2][r]);
    expect_alive(comm);
  });
}

TEST(Split, ANegativeColorIsInNone) {
  run(4, [](Comm& comm) {
    Comm some = comm.split(comm.rank() == 2 ? -1 : 9);
    EXPECT_EQ(some.defined(), comm.rank() != 2);
    if (some.defined()) {
      EXPECT_EQ(some.size(), 3);
      expect_alive(some);
    }
    const Comm none = comm.split(-5);
    EXPECT_FALSE(none.defined());
    expect_alive(comm);
  });
}

TEST(Split, OfASplit) {
  run(8, [](Comm& comm) {
    Comm half = comm.split(comm.rank() / 4);
    Comm quarter = half.split(half.rank() / 2);
    EXPECT_EQ(quarter.size(), 2);
    EXPECT_EQ(quarter.name(), fmt::format("world/{}/{}", comm.rank() / 4, half.rank() / 2));
    const Tensor sum = all_reduce(quarter, Tensor::full(DType::i64, {1}, comm.rank()));
    EXPECT_EQ(sum.at<int64_t>(0), comm.rank() / 2 * 4 + 1);
    expect_alive(half);
    expect_alive(comm);
  });
}

TEST(Split, ManyTimesGivesDifferentCommunicators) {
  run(3, [](Comm& comm) {
    std::vector<Comm> children;
    for (int i = 0; i < 20; ++i) children.push_back(comm.split(i % 3));
    for (size_t i = children.size(); i-- > 0;) expect_alive(children[i]);
    children[4].abort("only this one");
    comm.barrier();
    EXPECT_THROW(children[4].barrier(), AbortedError);
    for (size_t i = 0; i < children.size(); ++i) {
      if (i != 4) expect_alive(children[i]);
    }
  });
}

TEST(Split, CountsAndRecordsApart) {
  run(2, [](Comm& comm) {
    Comm child = comm.split(0);
    EXPECT_EQ(comm.stats().calls, 1);
    EXPECT_EQ(child.stats().calls, 0);
    expect_alive(child);
    EXPECT_EQ(comm.stats().calls, 1);
    EXPECT_EQ(child.recent_calls().at(0).number, 1);
    EXPECT_EQ(comm.recent_calls().at(0).operation, "Comm::split");
  });
}

TEST(Child, ItsFailureKillsOnlyItself) {
  run(4, [](Comm& comm) {
    Comm half = comm.split(comm.rank() / 2);
    if (comm.rank() == 3) Comm leaves = std::move(half);
    if (comm.rank() == 2) {
      const Thrown thrown = thrown_by([&] { expect_alive(half); });
      EXPECT_EQ(thrown.type, "PeerLostError");
      EXPECT_TRUE(contains(thrown.text, "communicator \"world/1\" (2 ranks): rank 1 left")) << thrown.text;
      EXPECT_THROW(half.barrier(), AbortedError);
    }
    if (comm.rank() < 2) expect_alive(half);
    expect_alive(comm);
    if (comm.rank() < 2) expect_alive(half);
  });
}

TEST(Child, LivesOnWhenItsParentDies) {
  run(3, [](Comm& comm) {
    Comm child = comm.split(0);
    child.barrier();  // all are through the split
    comm.abort("done with it");
    EXPECT_THROW(comm.barrier(), AbortedError);
    expect_alive(child);
  });
}

TEST(Child, ATimeoutInItLeavesTheParentAlive) {
  std::atomic<bool> out{false};
  run(2, [&](Comm& comm) {
    Comm child = comm.split(0);
    child.set_timeout(milliseconds(100));
    if (comm.rank() == 0) {
      EXPECT_EQ(thrown_by([&] { child.barrier(); }).type, "TimeoutError");
      out = true;
    } else {
      wait_until(out, true);
      EXPECT_EQ(thrown_by([&] { child.barrier(); }).type, "AbortedError");
    }
    expect_alive(comm);
  });
}

TEST(Child, ARankThatThrowsEndsItsChildrenToo) {
  const Thrown all = thrown_by([] {
    run(4, [](Comm& comm) {
      Comm half = comm.split(comm.rank() % 2);
      if (comm.rank() == 3) throw std::runtime_error("boom");
      if (comm.rank() != 1) return;
      const Thrown thrown = thrown_by([&] { half.barrier(); });
      EXPECT_EQ(thrown.type, "PeerLostError");
      EXPECT_TRUE(contains(thrown.text, "rank 1: left: ")) << thrown.text;
    });
  });
  EXPECT_EQ(all.text, "rank 3: boom");
}

// It agreed to the split and then ended, so the others wait in the child for one that never came to it.
TEST(Child, AMemberThatEndsBeforeItJoinsHasLeft) {
  for (const bool ends_first : {false, true}) {
    const auto parent = std::make_shared<Group>(3, nullptr);
    const int members[] = {0, 1, 2};
    if (ends_first) parent->left(1);
    const auto child = parent->child(1, members, 0);
    EXPECT_EQ(parent->child(1, members, 2), child);
    if (!ends_first) {
      EXPECT_FALSE(child->board(0).has_left(1));
      parent->left(1);
    }
    EXPECT_TRUE(child->board(0).has_left(1));
    EXPECT_FALSE(child->board(0).has_left(2));
    EXPECT_EQ(child->board(2).farewell(1), "it left the group that this one was made of");
  }
}

TEST(MovedComm, KeepsItsPlace) {
  run(2, [](Comm& comm) {
    Comm child = comm.split(0);
    Comm moved = std::move(child);
    EXPECT_FALSE(child.defined());
    expect_alive(moved);
    child = std::move(moved);
    expect_alive(child);
  });
}

// The child process does everything in one function and reports by its exit code: gtest is the parent's.
int broken_promises_in_the_child(Comm& comm, Comm& dead, Comm& idle, const Tensor& x, Work& work, Work& posted) {
  int broken = 0;
  const auto must_throw = [&](int bit, const std::function<void()>& fn) {
    const Thrown thrown = thrown_by(fn);
    if (thrown.type != "Error" || !contains(thrown.text, "fork")) broken |= 1 << bit;
  };
  must_throw(0, [&] { comm.barrier(); });
  must_throw(1, [&] { all_gather(comm, x); });
  must_throw(2, [&] { send(comm, x, 1); });
  must_throw(3, [&] { start(comm, AllGather{.x = x}); });
  must_throw(4, [&] { comm.abort("no"); });
  must_throw(5, [&] { dead.shrink(); });
  must_throw(6, [&] { work.wait(); });
  must_throw(7, [&] { posted.wait(); });
  // Their destructors must not wait for threads that the child has not.
  { const Work ends = std::move(work); }
  { const Work ends = std::move(posted); }
  { const Comm ends = std::move(comm); }
  { const Comm ends = std::move(dead); }
  { const Comm ends = std::move(idle); }
  return broken;
}

TEST(Fork, ACommOnlyThrowsInTheChildAndTheParentGoesOn) {
  run(2, [](Comm& comm) {
    Comm child = comm.split(0);
    Comm dead = comm.split(0);
    Comm idle = comm.split(0);
    dead.abort("before the fork");
    const Tensor x = Tensor::full(DType::i64, {1}, comm.rank());
    start(idle, AllGather{.x = x}).wait();  // it has a worker now, with nothing to do
    if (comm.rank() == 0) {
      auto work = start(child, AllGather{.x = x});  // waits for rank 1, which waits for the fork
      auto posted = start_recv(child, 1);
      const pid_t pid = fork();
      if (pid == 0) _exit(broken_promises_in_the_child(child, dead, idle, x, work, posted));
      int status = 0;
      EXPECT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 0);
      comm.barrier();
      EXPECT_EQ(work.get().tensor.at<int64_t>(1), 1);
      EXPECT_EQ(posted.get().tensor.at<int64_t>(0), 1);
    } else {
      comm.barrier();
      send(child, x, 0);
      all_gather(child, x);
    }
    expect_alive(child);
    expect_alive(comm);
  });
}

}  // namespace
}  // namespace tessera::test
