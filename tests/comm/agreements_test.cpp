#include "comm/agreements.hpp"

#include <gtest/gtest.h>

namespace tessera::detail {
namespace {

Place place(uint64_t line, uint64_t form = 1) { return {Place::mix(12345, line), form}; }

// A call from there.
Agreement& used(Agreements& agreements, const Place& at) {
  Agreement& agreement = agreements.at(at);
  agreements.use(agreement);
  return agreement;
}

TEST(Agreements, TheLinesOfALoopKeepTheirPlaces) {
  Agreements agreements(2);
  for (uint64_t line = 1; line <= 20; ++line) used(agreements, place(line)).number = static_cast<int64_t>(line);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t line = 1; line <= 20; ++line) {
      EXPECT_EQ(used(agreements, place(line)).number, static_cast<int64_t>(line));
    }
  }
}

TEST(Agreements, ALineHasAPlaceForEachOfFourShapes) {
  Agreements agreements(2);
  for (uint64_t form = 1; form <= 4; ++form) used(agreements, place(7, form)).number = static_cast<int64_t>(form);
  for (uint64_t form = 1; form <= 4; ++form)
    EXPECT_EQ(used(agreements, place(7, form)).number, static_cast<int64_t>(form));
}

TEST(Agreements, WhoTakesAPlaceOverKnowsNothingOfWhoHadIt) {
  for (const int ranks : {2, 2000}) {
    Agreements agreements(ranks);
    const uint64_t kept = ranks == 2 ? 4 : 1;
    for (uint64_t form = 1; form <= kept; ++form) used(agreements, place(7, form)).settled = true;
    EXPECT_FALSE(used(agreements, place(7, 9)).settled);
    for (uint64_t form = 2; form <= kept; ++form) EXPECT_TRUE(used(agreements, place(7, form)).settled) << form;
    EXPECT_FALSE(used(agreements, place(7, 1)).settled) << "it was driven out";
  }
}

TEST(Agreements, AShapeThatIsEverAnotherLeavesOtherLinesAlone) {
  Agreements agreements(2);
  for (uint64_t line = 1; line <= 8; ++line) used(agreements, place(line)).number = static_cast<int64_t>(line);
  for (uint64_t form = 2; form < 1000; ++form) {
    used(agreements, place(99, form)).number = -1;
    for (uint64_t line = 1; line <= 8; ++line)
      EXPECT_EQ(used(agreements, place(line)).number, static_cast<int64_t>(line));
  }
}

TEST(Agreements, OfManyRanksOneIsKeptForEachSet) {
  Agreements agreements(2000);
  used(agreements, place(7, 1)).number = 1;
  used(agreements, place(7, 2)).number = 2;
  EXPECT_EQ(used(agreements, place(7, 1)).number, 2) << "the one place, to be settled again";
}

TEST(Agreements, WhatFollowsInALoopIsKnown) {
  Agreements agreements(2);
  EXPECT_EQ(agreements.likely(), nullptr);
  for (int round = 0; round < 4; ++round) {
    for (uint64_t line = 1; line <= 3; ++line) {
      Agreement* const likely = agreements.likely();
      const Agreement* const one = &used(agreements, place(line));
      EXPECT_TRUE(round < 2 || likely == one) << "round " << round << " line " << line;
    }
  }
}

}  // namespace
}  // namespace tessera::detail
