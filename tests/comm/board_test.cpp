// The announcing and waiting protocol by itself.
#include "comm/board.hpp"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "support/failures.hpp"

namespace tessera {

// A way to the private counters, so that a test can begin just before they wrap around, 2^31 steps from the start.
// Explicit instantiation may name private members.
template <class Tag, typename Tag::Member member>
struct Expose {
  friend typename Tag::Member member_of(Tag) { return member; }
};
struct StepsOf {
  using Member = uint32_t Board::*;
  friend Member member_of(StepsOf);
};
struct AnnouncementsOf {
  using Member = uint32_t Board::*;
  friend Member member_of(AnnouncementsOf);
};
struct SlotsOf {
  using Member = Slot* Board::*;
  friend Member member_of(SlotsOf);
};
template struct Expose<StepsOf, &Board::steps_>;
template struct Expose<AnnouncementsOf, &Board::announcements_>;
template struct Expose<SlotsOf, &Board::slots_>;

namespace test {
namespace {

class Shared {
 public:
  explicit Shared(int size)
      : size_(size),
        memory_(std::aligned_alloc(alignof(Slot),
                                   (Board::bytes(size) + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot))) {
    Board::initialise(memory_.get(), size);
  }
  Board board(int rank) { return Board(memory_.get(), rank, size_); }
  BoardHead& head() { return *static_cast<BoardHead*>(memory_.get()); }

  // fn(board) on a thread for each rank.
  void run(const std::function<void(Board&)>& fn) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size_; ++r) {
      threads.emplace_back([&, r] {
        Board mine = board(r);
        fn(mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  int size_;
  std::unique_ptr<void, Free> memory_;
};

Deadline far_away() { return Clock::now() + std::chrono::minutes(5); }

using Records = std::vector<std::span<const std::byte>>;

// What rank r says in round i; the length is another for each.
std::vector<std::byte> said(int rank, int round) {
  std::minstd_rand random(static_cast<unsigned>(rank * 7919 + round * 104729 + 1));
  random.discard(3);
  // Mostly short ones; some take two, three or four steps; some end just where a step does.
  const size_t lengths[] = {0, 8, 100, kRecordBytes - 8, kRecordBytes, kRecordBytes + 8, 2 * kRecordBytes, 5000};
  std::vector<std::byte> bytes(round % 3 == 0 ? lengths[random() % 8] : lengths[random() % 4]);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(rank + round));
  return bytes;
}

// Rank 0 says a version again and again, first beside a long record of rank 1, which takes several announcements: each time
// all of it is there, wherever it lay before.
void announce_versions(Board& board) {
  const std::vector<std::byte> tail(100, std::byte{7}), other(100, std::byte{9});
  const std::vector<std::byte> lengthy(kRecordBytes + 10, std::byte{1});
  Records records;
  int culprit = -1;
  for (const char round : std::string("vvlLvvlLvvv")) {
    const bool version = round == 'v' || round == 'L', long_one = round == 'L';
    const Saying mine = board.rank() == 1 ? Saying(long_one ? lengthy : tail)
                        : version         ? Saying(tail, 8, 5)
                                          : Saying(other);
    ASSERT_EQ(board.announce(mine, 0, records, far_away(), culprit), Waited::reached);
    const auto& expected = version ? tail : other;
    ASSERT_TRUE(std::equal(records[0].begin(), records[0].end(), expected.begin(), expected.end())) << round;
  }
}

void announce_rounds(Board& board, int rounds) {
  Records records;
  for (int round = 0; round < rounds; ++round) {
    int culprit = -1;
    ASSERT_EQ(
        board.announce(Saying(said(board.rank(), round)), static_cast<uint64_t>(round), records, far_away(), culprit),
        Waited::reached);
    ASSERT_EQ(records.size(), static_cast<size_t>(board.size()));
    for (int r = 0; r < board.size(); ++r) {
      const auto expected = said(r, round);
      const auto& got = records[static_cast<size_t>(r)];
      ASSERT_EQ(got.size(), expected.size()) << "rank " << r << ", round " << round;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << "rank " << r << ", round " << round;
    }
    // Moves in between are steps too.
    if (round % 5 == 0) {
      board.step();
      for (int r = 0; r < board.size(); ++r) ASSERT_EQ(board.wait_for(r, far_away()), Waited::reached);
    }
  }
}

TEST(Board, GivesEverybodyEverybodysRecords) {
  for (const int size : {1, 2, 3, 5}) {
    Shared shared(size);
    shared.run([](Board& board) { announce_rounds(board, 300); });
  }
}

TEST(Board, SaysAVersionAgainBesideLongRecords) {
  Shared shared(2);
  shared.run([](Board& board) { announce_versions(board); });
}

TEST(Board, GoesOnWhenItsCountersWrapAround) {
  for (const int size : {1, 2, 4}) {
    Shared shared(size);
    const uint32_t almost = uint32_t{0} - 40;  // twice the steps: even
    for (int r = 0; r < size; ++r) {
      Board board = shared.board(r);
      (board.*member_of(SlotsOf{}))[r].step.store(almost);
    }
    shared.run([&](Board& board) {
      board.*member_of(StepsOf{}) = almost;
      board.*member_of(AnnouncementsOf{}) = uint32_t{0} - 13;
      announce_rounds(board, 100);
    });
  }
}

TEST(Board, TellsWhoDoesNotCome) {
  Shared shared(3);
  Board first = shared.board(0), last = shared.board(2);
  Records records;
  int culprit = -1;
  last.step();
  EXPECT_EQ(first.announce({}, 256 + 7, records, Clock::now() + std::chrono::milliseconds(10), culprit),
            Waited::timed_out);
  EXPECT_EQ(culprit, 1);
  EXPECT_FALSE(first.has_come(1));
  EXPECT_TRUE(first.has_come(2));
  EXPECT_EQ(last.call_of(0), 256u + 7);
  EXPECT_EQ(last.call_of(1), 0u);
}

// Rank 1 has written its record and died before the step: who spins has all it needs, and who comes later does not.
TEST(Board, HearsARecordWhoseStepIsNotMadeYet) {
  Shared shared(2);
  Board first = shared.board(0), second = shared.board(1);
  Slot::Page& page = (second.*member_of(SlotsOf{}))[1].pages[0];
  page.bytes = 3;
  std::memcpy(page.record, "abc", 3);
  page.said.store(2);
  Records records;
  int culprit = -1;
  ASSERT_EQ(first.announce({}, 0, records, far_away(), culprit), Waited::reached);
  ASSERT_EQ(records[1].size(), 3u);
  EXPECT_EQ(std::memcmp(records[1].data(), "abc", 3), 0);
  EXPECT_FALSE(first.has_come(1));
  EXPECT_EQ(first.wait_for(1, far_away()), Waited::reached);  // of that announcement; the next step never comes
  first.declare_dead(1);
  first.step();
  EXPECT_EQ(first.wait_for(1, far_away()), Waited::closed);
  EXPECT_EQ(first.announce({}, 0, records, far_away(), culprit), Waited::closed);
  EXPECT_EQ(culprit, 1);
}

TEST(Board, TellsWhoLeftAndWhatItSaid) {
  Shared shared(2);
  Board first = shared.board(0), second = shared.board(1);
  second.step();
  EXPECT_FALSE(first.has_left(1));
  second.leave("for good");
  EXPECT_TRUE(first.has_left(1));
  EXPECT_EQ(first.farewell(1), "for good");
  // The step that it made still counts; one that it did not make never comes.
  first.step();
  EXPECT_EQ(first.wait_for(1, far_away()), Waited::reached);
  first.step();
  EXPECT_EQ(first.wait_for(1, far_away()), Waited::closed);
  EXPECT_FALSE(first.aborted());
}

TEST(Board, CutsALongFarewell) {
  Shared shared(2);
  Board first = shared.board(0), second = shared.board(1);
  second.leave(std::string(10000, 'x'));
  EXPECT_EQ(first.farewell(1), std::string(255, 'x'));
}

TEST(Board, WakesSleepersWhenARankLeavesOrAborts) {
  for (const bool aborts : {false, true}) {
    Shared shared(4);
    shared.run([&](Board& board) {
      if (board.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others sleep by now, most likely
        if (aborts) board.abort(5, "enough");
        else board.leave("enough");
        return;
      }
      Records records;
      int culprit = -1;
      EXPECT_EQ(board.announce({}, 0, records, far_away(), culprit), Waited::closed);
      EXPECT_EQ(board.aborted(), aborts);
    });
  }
}

TEST(Board, TheFirstVerdictStands) {
  for (int i = 0; i < 300; ++i) {
    Shared shared(4);
    std::array<std::string, 4> texts;
    std::array<uint32_t, 4> kinds{};
    shared.run([&](Board& board) {
      const auto me = static_cast<size_t>(board.rank());
      board.abort(static_cast<uint32_t>(me), "verdict " + std::to_string(me));
      EXPECT_TRUE(board.aborted());
      board.verdict(kinds[me], texts[me]);
    });
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(kinds[r], kinds[0]);
      EXPECT_EQ(texts[r], "verdict " + std::to_string(kinds[0]));
    }
  }
}

TEST(Board, SaysThatItIsDamagedWhereAVerdictIsNobodys) {
  Shared shared(2);
  shared.head().verdict.store(77);
  uint32_t kind = 0;
  std::string text;
  shared.board(1).verdict(kind, text);
  EXPECT_TRUE(contains(text, "damaged")) << text;
}

TEST(Board, AVerdictIsThereWholeOrNotAtAll) {
  for (int i = 0; i < 300; ++i) {
    Shared shared(3);
    const auto text_of = [](int rank) { return std::string(kVerdictBytes / 2, static_cast<char>('a' + rank)); };
    shared.run([&](Board& board) {
      if (board.rank() > 0) return board.abort(1, text_of(board.rank()));
      while (!board.aborted()) cpu_relax();
      uint32_t kind = 0;
      std::string first, again;
      board.verdict(kind, first);
      board.abort(2, "too late");
      board.verdict(kind, again);
      EXPECT_TRUE(first == text_of(1) || first == text_of(2));
      EXPECT_EQ(again, first);
    });
  }
}

TEST(Board, TwoThreadsOfARankMayAbort) {
  for (int i = 0; i < 300; ++i) {
    Shared shared(2);
    Board board = shared.board(0);
    std::thread other([&] { board.abort(1, "one"); });
    board.abort(1, "two");
    uint32_t kind = 0;
    std::string text;
    board.verdict(kind, text);
    EXPECT_TRUE(text == "one" || text == "two") << text;
    other.join();
  }
}

// Rank 1 dies when its verdict is published and no slot is closed yet. Rank 2 sleeps for rank 0, which lives and does not
// come: it must hear of the verdict all the same.
TEST(Board, ADeathBehindAVerdictClosesEverySlot) {
  Shared shared(3);
  Board last = shared.board(2);
  last.step();
  std::thread sleeper([&] { EXPECT_EQ(last.wait_for(0, far_away()), Waited::closed); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  shared.head().verdict.store(1 + 1);
  shared.board(2).declare_dead(1);
  sleeper.join();
}

TEST(Board, CutsALongVerdict) {
  Shared shared(1);
  Board board = shared.board(0);
  board.abort(3, std::string(100000, 'x'));
  uint32_t kind = 0;
  std::string text;
  board.verdict(kind, text);
  EXPECT_EQ(kind, 3u);
  EXPECT_EQ(text, std::string(kVerdictBytes - 1, 'x'));
}

TEST(Board, NobodyClaimsAfterAVerdict) {
  Shared shared(2);
  Board first = shared.board(0), second = shared.board(1);
  EXPECT_TRUE(first.claim());
  first.drop_claim();
  second.abort(1, "over");
  EXPECT_FALSE(first.claim());
  EXPECT_FALSE(second.claim());
  second.abort(1, "again");  // would wait for ever for a claim that was left behind
}

// The reader copies out of memory that its owner gives up after the abort: either it sees the verdict, or the owner waits.
// The memory is plain, so that ThreadSanitizer and AddressSanitizer see it where neither does.
TEST(Board, AClaimAndAnAbortNeverMiss) {
  const int rounds = 3000 * soak();
  int read = 0;
  for (int i = 0; i < rounds; ++i) {
    Shared shared(3);
    auto memory = std::make_unique<int>(1);
    const int* theirs = memory.get();
    shared.run([&](Board& board) {
      std::minstd_rand random(static_cast<unsigned>(i * 3 + board.rank() + 1));
      for (unsigned spins = random() % 400; spins > 0; --spins) cpu_relax();
      if (board.rank() == 0) {
        board.abort(1, "over");
        memory.reset();
      } else if (board.claim()) {
        EXPECT_EQ(*theirs, 1);
        if (board.rank() == 1) ++read;
        board.drop_claim();
      }
    });
  }
  RecordProperty("claims_before_the_abort", read);
}

// Both ways of looking end: with what they wait for, at the look that sees it, or without it.
TEST(Looks, EndWithWhatTheyWaitForOrWithoutIt) {
  for (const int ranks : {1, 1 << 20}) {
    const Looks looks(ranks);
    int seen = 0;
    EXPECT_TRUE(looks.until([&] { return ++seen == 5; })) << ranks;
    EXPECT_EQ(seen, 5);
    EXPECT_FALSE(looks.until([&] { return ++seen < 0; })) << ranks;
    EXPECT_GT(seen, 10);
  }
}

}  // namespace
}  // namespace test
}  // namespace tessera
