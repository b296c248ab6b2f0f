// What a front end in another language builds on: a site of its own, a word that every rank learns, an interrupted wait.
#include <functional>

#include <tessera/detail/forward.hpp>
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

Thrown said_of_forwards(const std::vector<int64_t>& calls_ago) {
  std::vector<Thrown> ranks(calls_ago.size());
  run(static_cast<int>(ranks.size()), [&](Comm& comm) {
    const auto r = static_cast<size_t>(comm.rank());
    ranks[r] = thrown_by([&] { flags_of_all(comm, detail::Forward{.calls_ago = calls_ago[r]}.as_flags()); });
    expect_alive(comm);
  });
  return same_for_all(ranks);
}

TEST(FrontEnd, RanksThatKnowWhoseGradientItIsMustAgree) {
  EXPECT_EQ(said_of_forwards({0, 3, 3}).type, "nothing");
  EXPECT_EQ(said_of_forwards({3, 0, 3}).type, "nothing");
  for (const std::vector<int64_t>& differing : {std::vector<int64_t>{3, 4, 3}, {0, 3, 4}, {3, 0, 4}, {0, 0, 3, 3, 4}}) {
    const Thrown thrown = said_of_forwards(differing);
    EXPECT_EQ(thrown.type, "MismatchError") << differing.size();
    EXPECT_TRUE(contains(thrown.text, "3 calls ago") && contains(thrown.text, "4 calls ago")) << thrown.text;
  }
}

TEST(FrontEnd, ErrorsShowTheSiteItMade) {
  const Thrown thrown = thrown_by(
      [] { run(2, [](Comm& comm) { all_gather(comm, number(1), comm.rank(), {}, Site("code/train.py", 41)); }); });
  EXPECT_TRUE(contains(thrown.text, "train.py:41")) << thrown.text;
}

template <class E>
Thrown refused_by_rank_1(const std::string& op) {
  std::vector<Thrown> ranks(3);
  run(3, [&](Comm& comm) {
    for (int i = 0; i < 3; ++i) all_gather(comm, number(1));  // so that the next is replayed
    ranks[static_cast<size_t>(comm.rank())] = thrown_by([&] {
      if (comm.rank() != 1) all_gather(comm, number(1));
      else detail::refuse(comm, detail::find_op(op), std::make_exception_ptr(E("dim is 'a'")), Site("train.py", 41));
    });
    expect_alive(comm);
  });
  return same_for_all(ranks);
}

TEST(FrontEnd, WhatItFindsWrongIsToldToEveryRank) {
  const Thrown type = refused_by_rank_1<ArgumentTypeError>("all_gather");
  EXPECT_EQ(type.type, "ArgumentTypeError");
  EXPECT_TRUE(contains(type.text, "rank  1: all_gather: dim is 'a'   train.py:41")) << type.text;
  const Thrown value = refused_by_rank_1<ArgumentError>("redistribute");
  EXPECT_EQ(value.type, "ArgumentError");
  EXPECT_TRUE(contains(value.text, "rank  1: redistribute: dim is 'a'")) << value.text;
  EXPECT_THROW(detail::find_op("split"), Error);
}

thread_local bool interrupt = false;

// Rank 0 waits for what nobody else does, and its front end ends that. Rank 1 comes later.
void expect_interrupted(const std::function<void(Comm&)>& waiting) {
  std::vector<Thrown> ranks(2);
  set_wait_hook([] {
    if (interrupt) throw Error("interrupted");
  });
  run(2, [&](Comm& comm) {
    interrupt = comm.rank() == 0;
    if (comm.rank() == 1) std::this_thread::sleep_for(kShort);
    ranks[static_cast<size_t>(comm.rank())] = thrown_by([&] { comm.rank() == 0 ? waiting(comm) : comm.barrier(); });
  });
  set_wait_hook(nullptr);
  EXPECT_EQ(ranks[0].type, "Error") << ranks[0];
  EXPECT_TRUE(contains(ranks[0].text, "interrupted")) << ranks[0];
  EXPECT_EQ(ranks[1].type, "AbortedError") << ranks[1];
  EXPECT_TRUE(contains(ranks[1].text, "rank 0 failed: interrupted")) << ranks[1];
}

TEST(FrontEnd, AWaitCanBeInterrupted) {
  expect_interrupted([](Comm& comm) { comm.barrier(); });
}

TEST(FrontEnd, AMessageCanBeInterrupted) {
  expect_interrupted([](Comm& comm) { send(comm, number(1), 1); });
  expect_interrupted([](Comm& comm) { recv(comm, 1); });
  expect_interrupted([](Comm& comm) { recv(comm, kAnySource, 7); });
  expect_interrupted([](Comm& comm) { start_send(comm, number(1), 1).wait(); });
  expect_interrupted([](Comm& comm) { start_recv(comm, 1).get(); });
}

TEST(FrontEnd, ShrinkingCanBeInterrupted) {
  set_wait_hook([] {
    if (interrupt) throw Error("interrupted");
  });
  run(3, [&](Comm& comm) {
    comm.abort("so that it can shrink");
    interrupt = comm.rank() == 0;
    if (comm.rank() != 0) std::this_thread::sleep_for(kShort);
    const Thrown thrown = thrown_by([&] { EXPECT_EQ(comm.shrink().size(), 2); });
    EXPECT_EQ(thrown.type, comm.rank() == 0 ? "Error" : "nothing") << thrown;
  });
  set_wait_hook(nullptr);
}

}  // namespace
}  // namespace tessera::test
