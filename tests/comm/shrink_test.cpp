// After a failure the survivors make a new communicator.
#include <atomic>
#include <stdexcept>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

// With timeouts of minutes: a test that waits for a rank that left would not come out.
TEST(Shrink, DoesNotWaitForRanksThatLeft) {
  const Thrown all = thrown_by([] {
    run(4, [](Comm& comm) {
      comm.barrier();
      if (comm.rank() == 1) throw std::runtime_error("gone");
      expect_lost(comm);
      Comm rest = comm.shrink();
      EXPECT_EQ(rest.size(), 3);
      EXPECT_EQ(rest.rank(), comm.rank() == 0 ? 0 : comm.rank() - 1);
      EXPECT_EQ(rest.name(), "world'");
      EXPECT_EQ(rest.timeout(), comm.timeout());
      expect_alive(rest);
      const Tensor sum = all_reduce(rest, Tensor::full(DType::i64, {3}, comm.rank()));
      EXPECT_EQ(sum.at<int64_t>(0), 0 + 2 + 3);
      const auto got = all_to_all_v(rest, Tensor::full(DType::i64, {3}, rest.rank()), {1, 1, 1});
      for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(got.tensor.at<int64_t>(r), r);
      // The old one stays dead.
      EXPECT_EQ(thrown_by([&] { comm.barrier(); }).type, "AbortedError");
    });
  });
  EXPECT_EQ(all.text, "rank 1: gone");
}

TEST(Shrink, ExcludesARankThatComesTooLate) {
  std::atomic<int> shrunk{0};
  run(4, [&](Comm& comm) {
    comm.barrier();
    comm.set_timeout(kShort);
    if (comm.rank() == 2) {
      wait_until(shrunk, 3);
      const Thrown call = thrown_by([&] { comm.barrier(); });
      EXPECT_EQ(call.type, "AbortedError") << call.text;
      const Thrown late = thrown_by([&] { comm.shrink(); });
      EXPECT_EQ(late.type, "AbortedError");
      EXPECT_TRUE(contains(late.text, "rank 2 came too late")) << late.text;
      return;
    }
    EXPECT_EQ(thrown_by([&] { comm.barrier(); }).type, "TimeoutError");
    Comm rest = comm.shrink();
    ++shrunk;
    rest.set_timeout(std::chrono::minutes(5));
    ASSERT_EQ(rest.size(), 3);
    EXPECT_EQ(rest.rank(), comm.rank() == 3 ? 2 : comm.rank());
    expect_alive(rest);
  });
}

TEST(Shrink, TakesARankThatComesWithinTheTimeout) {
  std::atomic<int> out{0};
  run(3, [&](Comm& comm) {
    comm.barrier();
    comm.set_timeout(kShort);
    if (comm.rank() == 1) wait_until(out, 2);
    EXPECT_NE(thrown_by([&] { comm.barrier(); }).type, "nothing");
    ++out;
    comm.set_timeout(std::chrono::minutes(5));
    Comm rest = comm.shrink();
    ASSERT_EQ(rest.size(), 3);
    EXPECT_EQ(rest.rank(), comm.rank());
    expect_alive(rest);
  });
}

TEST(Shrink, CanBeDoneAgain) {
  run(4, [](Comm& world) {
    world.barrier();
    Comm comm = world.split(0);
    while (comm.size() > 1) {
      // The last rank goes each time.
      if (comm.rank() == comm.size() - 1) return;
      expect_lost(comm);
      Comm rest = comm.shrink();
      ASSERT_EQ(rest.size(), comm.size() - 1);
      comm = std::move(rest);
      expect_alive(comm);
    }
  });
}

TEST(Shrink, AfterAnAbortByAll) {
  run(3, [](Comm& comm) {
    comm.abort("anew");
    Comm rest = comm.shrink();
    EXPECT_EQ(rest.size(), 3);
    expect_alive(rest);
    Comm odd = rest.split(rest.rank() % 2);
    expect_alive(odd);
  });
}

TEST(Shrink, OfALivingCommunicatorIsAnError) {
  run(2, [](Comm& comm) {
    const Thrown thrown = thrown_by([&] { comm.shrink(); });
    EXPECT_EQ(thrown.type, "Error");
    EXPECT_TRUE(contains(thrown.text, "shrink(): communicator \"world\" is alive")) << thrown.text;
    expect_alive(comm);
  });
}

TEST(Shrink, ToOneRank) {
  const Thrown all = thrown_by([] {
    run(3, [](Comm& comm) {
      if (comm.rank() != 1) throw std::runtime_error("gone");
      expect_lost(comm);
      Comm alone = comm.shrink();
      EXPECT_EQ(alone.size(), 1);
      expect_alive(alone);
    });
  });
  EXPECT_EQ(all.type, "RankError");
}

}  // namespace
}  // namespace tessera::test
