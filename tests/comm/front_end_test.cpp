// What a front end in another language builds on: a site of its own, a word that every rank learns, an interrupted wait.
#include <atomic>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

Sizes flags_of_all(Comm& comm, int64_t flags) {
  detail::Description description = AllGather::describe({.x = number(comm.rank())});
  description.flags = flags;
  detail::Outcome outcome;
  detail::execute(comm, {&description, 1}, {&outcome, 1}, Site("train.py", 41));
  EXPECT_EQ(outcome.tensor.elements(), comm.size());
  return outcome.flags;
}

TEST(FrontEnd, EveryRankLearnsTheFlagsOfAll) {
  run(3, [](Comm& comm) {
    // Often enough that calls are replayed, with a change in between.
    for (int i = 0; i < 4; ++i) EXPECT_EQ(flags_of_all(comm, 0), Sizes());
    for (int i = 0; i < 4; ++i) EXPECT_EQ(flags_of_all(comm, comm.rank() == 1 ? 2 : 0), (Sizes{0, 2, 0}));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(flags_of_all(comm, 0), Sizes());
  });
}

TEST(FrontEnd, ErrorsShowTheSiteItMade) {
  const Thrown thrown = thrown_by(
      [] { run(2, [](Comm& comm) { all_gather(comm, number(1), comm.rank(), {}, Site("code/train.py", 41)); }); });
  EXPECT_TRUE(contains(thrown.text, "train.py:41")) << thrown.text;
}

std::atomic<bool> interrupt{false};

TEST(FrontEnd, AWaitCanBeInterrupted) {
  std::vector<Thrown> ranks(2);
  set_wait_hook([] {
    if (interrupt) throw Error("interrupted");
  });
  run(2, [&](Comm& comm) {
    Thrown& mine = ranks[static_cast<size_t>(comm.rank())];
    if (comm.rank() == 0) {
      interrupt = true;
      mine = thrown_by([&] { comm.barrier(); });
      interrupt = false;
    } else {
      std::this_thread::sleep_for(kShort);
      mine = thrown_by([&] { comm.barrier(); });
    }
  });
  set_wait_hook(nullptr);
  EXPECT_EQ(ranks[0].type, "Error") << ranks[0];
  EXPECT_TRUE(contains(ranks[0].text, "rank 0 failed: interrupted")) << ranks[0];
  EXPECT_EQ(ranks[1].type, "AbortedError") << ranks[1];
  EXPECT_TRUE(contains(ranks[1].text, "rank 0 failed: interrupted")) << ranks[1];
}

}  // namespace
}  // namespace tessera::test
