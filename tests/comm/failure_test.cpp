// A rank that throws, leaves or does not come: the others learn who, where and when, and none of them waits for ever.
#include <atomic>
#include <stdexcept>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

// Long enough that a rank of a loaded machine comes in time, where it tries to.
// Rank 1 does `ending`; the others wait for it in a call.
struct Ended {
  Thrown run;
  std::vector<Thrown> ranks;
};
Ended end_rank_1(const std::function<void()>& ending) {
  Ended ended;
  ended.ranks.resize(3);
  // Not before both are in the call: who comes after the verdict gets an AbortedError.
  std::atomic<int> in_call{0};
  const auto probe = [&](Moment moment, int, int64_t call) {
    if (moment == Moment::before_announce && call == 2) ++in_call;
  };
  ended.run = thrown_by([&] {
    run(3,
        [&](Comm& comm) {
          comm.barrier();
          if (comm.rank() != 1) {
            ended.ranks[static_cast<size_t>(comm.rank())] = thrown_by([&] { expect_alive(comm); });
            return;
          }
          wait_until(in_call, 2);
          ending();
        },
        {.probe = probe});
  });
  EXPECT_EQ(ended.ranks[0], ended.ranks[2]);
  EXPECT_EQ(ended.ranks[0].type, "PeerLostError");
  const std::string& text = ended.ranks[0].text;
  EXPECT_TRUE(contains(text, "call #2 of communicator \"world\" (3 ranks): rank 1 left while others were waiting"))
      << text;
  EXPECT_TRUE(contains(text, "rank 0: in call #2, all_gather")) << text;
  EXPECT_TRUE(contains(text, "shrink() makes a new one")) << text;
  return ended;
}

TEST(RankThrows, ReachesTheCallerWithTheRanksNumber) {
  const Ended ended = end_rank_1([] { throw std::runtime_error("boom\nand more"); });
  EXPECT_EQ(ended.run.type, "RankError");
  EXPECT_EQ(ended.run.text, "rank 1: boom\nand more");
  EXPECT_TRUE(contains(ended.ranks[0].text, "rank 1: left: it threw: boom\n")) << ended.ranks[0].text;
}

TEST(RankThrows, NestsTheOriginal) {
  struct Own : std::logic_error {
    using std::logic_error::logic_error;
    int detail = 42;
  };
  try {
    run(2, [](Comm& comm) {
      if (comm.rank() == 1) throw Own("mine");
      comm.barrier();
    });
    FAIL() << "run() returned";
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank(), 1);
    try {
      std::rethrow_if_nested(error);
      FAIL() << "nothing is nested";
    } catch (const Own& own) {
      EXPECT_EQ(own.detail, 42);
    }
  }
}

TEST(RankThrows, WhatIsNoStdException) {
  const Ended ended = end_rank_1([] { throw 42; });
  EXPECT_EQ(ended.run.type, "RankError");
  EXPECT_EQ(ended.run.text, "rank 1: an exception that is no std::exception");
}

TEST(RankThrows, OneOfTesserasErrors) {
  const Ended ended = end_rank_1([] { throw DTypeError("mine"); });
  EXPECT_EQ(ended.run.type, "DTypeError");
  EXPECT_EQ(ended.run.text, "rank 1: mine");
}

TEST(RankThrows, ACauseIsNotHiddenByWhatFollowsFromIt) {
  // The others leave with PeerLostError while rank 1's own comes last, out of a destructor-like delay.
  std::atomic<int> out{0};
  const Thrown all = thrown_by([&] {
    run(3, [&](Comm& comm) {
      if (comm.rank() == 1) {
        comm.abort("giving up");
        wait_until(out, 2);
        throw std::runtime_error("the cause");
      }
      const Thrown mine = thrown_by([&] { comm.barrier(); });
      EXPECT_EQ(mine.type, "AbortedError");
      ++out;
      comm.barrier();
    });
  });
  EXPECT_EQ(all.type, "RankError");
  EXPECT_EQ(all.text, "rank 1: the cause");
}

TEST(RankThrows, ErrorsOfAllRanksAreThrownAsTheyAre) {
  const Thrown all = thrown_by([] {
    run(3, [](Comm& comm) { all_gather(comm, Tensor::full(DType::f32, {1, comm.rank() == 2 ? 2 : 1}, 0)); });
  });
  EXPECT_EQ(all.type, "MismatchError");
  EXPECT_TRUE(all.text.starts_with("call #1 of communicator")) << all.text;
}

TEST(RankLeaves, EarlyAndTheOthersSayWho) {
  const Ended ended = end_rank_1([] {});
  EXPECT_EQ(ended.run.type, "nothing");
  EXPECT_TRUE(contains(ended.ranks[0].text, "rank 1: left: its function returned")) << ended.ranks[0].text;
}

TEST(RankLeaves, SeveralAreAllNamed) {
  const auto thrown = thrown_by_ranks(5, [](Comm& comm) {
    Comm child = comm.split(7);
    const bool leaves = comm.rank() == 1 || comm.rank() >= 3;
    if (leaves) Comm gone = std::move(child);
    comm.barrier();
    const Thrown mine = thrown_by([&] {
      if (comm.rank() == 0) child.barrier();
    });
    comm.barrier();  // rank 2 stays as long
    if (mine.type == "PeerLostError") throw PeerLostError(mine.text);
  });
  EXPECT_EQ(thrown[0].type, "PeerLostError");
  EXPECT_TRUE(contains(thrown[0].text, "call #1 of communicator \"world/7\" (5 ranks): ranks 1,3,4 left"))
      << thrown[0].text;
  EXPECT_TRUE(contains(thrown[0].text, "rank 4: left: its Comm was destroyed")) << thrown[0].text;
}

TEST(RankLeaves, AfterItsLastCallHarmsNobody) {
  for (int i = 0; i < 50; ++i) {
    run(4, [](Comm& comm) { expect_alive(comm); });
  }
}

TEST(RankIsLate, TheOthersGetOneTimeoutErrorAndItGetsAnAbortedError) {
  std::atomic<int> out{0};
  std::vector<Thrown> later(4);
  const auto thrown = thrown_by_ranks(4, [&](Comm& comm) {
    comm.barrier();
    comm.barrier();
    comm.set_timeout(kShort);
    if (comm.rank() == 2) wait_until(out, 3);
    const Thrown first = thrown_by([&] { expect_alive(comm); });
    ++out;
    later[static_cast<size_t>(comm.rank())] = thrown_by([&] { comm.barrier(); });
    if (first.type == "TimeoutError") throw TimeoutError(first.text);
    if (first.type == "AbortedError") throw AbortedError(first.text);
  });
  EXPECT_EQ(thrown[0], thrown[1]);
  EXPECT_EQ(thrown[0], thrown[3]);
  EXPECT_EQ(thrown[0].type, "TimeoutError");
  const std::string& text = thrown[0].text;
  EXPECT_TRUE(contains(text, "call #3 of communicator \"world\" (4 ranks): rank 2 did not come within 0.4 s\n"))
      << text;
  EXPECT_TRUE(contains(text, "rank 2: last seen in call #2, barrier")) << text;
  for (const char* where :
       {"rank 0: in call #3, all_gather", "rank 1: in call #3, all_gather", "rank 3: in call #3, all_gather"}) {
    EXPECT_TRUE(contains(text, where)) << text;
  }
  EXPECT_TRUE(contains(text, "set_timeout() waits longer")) << text;
  EXPECT_TRUE(contains(text, "#1 barrier at failure_test.cpp:")) << text;

  EXPECT_EQ(thrown[2].type, "AbortedError");
  EXPECT_TRUE(contains(thrown[2].text, "communicator \"world\" is dead")) << thrown[2].text;
  EXPECT_TRUE(contains(thrown[2].text, text)) << "the verdict is told again";
  for (const Thrown& each : later) {
    EXPECT_EQ(each.type, "AbortedError");
    EXPECT_TRUE(contains(each.text, text)) << each.text;
  }
}

TEST(RankIsLate, WhoHasMadeNoCallYetIsNamedSo) {
  std::atomic<int> out{0};
  const auto thrown = thrown_by_ranks(3,
                                      [&](Comm& comm) {
                                        if (comm.rank() == 1) {
                                          wait_until(out, 2);
                                          return;
                                        }
                                        const Thrown mine = thrown_by([&] { comm.barrier(); });
                                        ++out;
                                        throw TimeoutError(mine.text);
                                      },
                                      {.timeout = kShort});
  EXPECT_EQ(thrown[0], thrown[2]);
  EXPECT_TRUE(contains(thrown[0].text, "rank 1: has made no collective call yet")) << thrown[0].text;
}

// A barrier moves nothing, so the late rank finds everything ready for it; it must learn of the verdict all the same.
TEST(RankIsLate, WithinItsCallItGetsTheVerdictToo) {
  for (const bool splits : {false, true}) {
    std::atomic<int> out{0};
    const auto probe = [&](Moment moment, int rank, int64_t call) {
      if (moment == Moment::before_announce && rank == 1 && call == 2) wait_until(out, 2);
    };
    const auto thrown = thrown_by_ranks(3,
                                        [&](Comm& comm) {
                                          comm.barrier();
                                          comm.set_timeout(kShort);
                                          const Thrown mine = thrown_by([&] {
                                            if (splits) comm.split(0);
                                            else comm.barrier();
                                          });
                                          ++out;
                                          if (mine.type == "TimeoutError") throw TimeoutError(mine.text);
                                        },
                                        {.probe = probe});
    EXPECT_EQ(same_for_all(thrown).type, "TimeoutError");
  }
}

TEST(Abort, FromAnotherThreadFreesRanksThatWait) {
  std::atomic<int> out{0};
  std::vector<Thrown> later(3);
  const auto thrown = thrown_by_ranks(3, [&](Comm& comm) {
    if (comm.rank() == 2) {
      std::thread([&] { comm.abort("the operator said so"); }).join();
      wait_until(out, 2);
      return;
    }
    const Thrown mine = thrown_by([&] { comm.barrier(); });
    ++out;
    later[static_cast<size_t>(comm.rank())] = thrown_by([&] { comm.barrier(); });
    if (mine.type == "AbortedError") throw AbortedError(mine.text);
  });
  for (const int r : {0, 1}) {
    EXPECT_EQ(thrown[static_cast<size_t>(r)].type, "AbortedError");
    EXPECT_TRUE(contains(thrown[static_cast<size_t>(r)].text,
                         "communicator \"world\" was aborted by rank 2: the operator said so"));
    EXPECT_EQ(later[static_cast<size_t>(r)].type, "AbortedError");
  }
}

// The rank itself waits in a call, and somebody else's thread ends it.
TEST(Abort, OfARankThatWaits) {
  std::atomic<int> out{0};
  const auto thrown = thrown_by_ranks(2, [&](Comm& comm) {
    if (comm.rank() == 1) {
      wait_until(out, 1);
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(20));
      comm.abort("enough");
    });
    const Thrown mine = thrown_by([&] { comm.barrier(); });
    other.join();
    ++out;
    EXPECT_EQ(mine.type, "AbortedError");
    EXPECT_TRUE(contains(mine.text, "enough")) << mine.text;
  });
  EXPECT_EQ(thrown[0].type, "nothing");
}

TEST(Abort, TheFirstReasonStands) {
  const auto thrown = thrown_by_ranks(3, [](Comm& comm) {
    comm.abort(fmt::format("reason of rank {}", comm.rank()));
    comm.abort("a second thought");
    comm.barrier();
  });
  const Thrown all = same_for_all(thrown);
  EXPECT_EQ(all.type, "AbortedError");
  EXPECT_TRUE(contains(all.text, "reason of rank ")) << all.text;
  EXPECT_FALSE(contains(all.text, "a second thought")) << all.text;
}

TEST(Abort, AVeryLongReasonIsCutAndTheSameForAll) {
  const auto thrown = thrown_by_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) comm.abort(std::string(100000, 'x'));
    comm.barrier();
  });
  EXPECT_TRUE(contains(thrown[0].text, std::string(8000, 'x')));
  EXPECT_TRUE(contains(thrown[1].text, std::string(8000, 'x')));
}

TEST(NestedRuns, AreIndependent) {
  run(2, [](Comm& outer) {
    run(3, [](Comm& inner) {
      run(2, [](Comm& innermost) { expect_alive(innermost); });
      expect_alive(inner);
    });
    const Thrown inside = thrown_by([] {
      run(2, [](Comm& inner) {
        if (inner.rank() == 1) throw std::runtime_error("inside");
        inner.barrier();
      });
    });
    EXPECT_EQ(inside.text, "rank 1: inside");
    expect_alive(outer);
  });
}

TEST(Run, RefusesWhatCannotBe) {
  EXPECT_THROW(run(0, [](Comm&) {}), Error);
  EXPECT_THROW(run(-1, [](Comm&) {}), Error);
  EXPECT_THROW(run(2, [](Comm&) {}, {.timeout = milliseconds(0)}), Error);
}

}  // namespace
}  // namespace tessera::test
