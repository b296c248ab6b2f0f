#include "comm/agreements.hpp"

#include <gtest/gtest.h>

namespace tessera::detail {
namespace {

Place place(uint64_t line, uint64_t form = 1) { return {Place::mix(12345, line), form}; }

TEST(Agreements, TheLinesOfALoopKeepTheirPlaces) {
  Agreements agreements(2);
  for (uint64_t line = 1; line <= 20; ++line) agreements.at(place(line)).number = static_cast<int64_t>(line);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t line = 1; line <= 20; ++line) {
      EXPECT_EQ(agreements.at(place(line)).number, static_cast<int64_t>(line));
    }
  }
}

TEST(Agreements, ALineHasAPlaceForEachOfFourShapes) {
  Agreements agreements(2);
  for (uint64_t form = 1; form <= 4; ++form) agreements.at(place(7, form)).number = static_cast<int64_t>(form);
  for (uint64_t form = 1; form <= 4; ++form)
    EXPECT_EQ(agreements.at(place(7, form)).number, static_cast<int64_t>(form));
}

TEST(Agreements, AShapeThatIsEverAnotherLeavesOtherLinesAlone) {
  Agreements agreements(2);
  for (uint64_t line = 1; line <= 8; ++line) agreements.at(place(line)).number = static_cast<int64_t>(line);
  for (uint64_t form = 2; form < 1000; ++form) {
    agreements.at(place(99, form)).number = -1;
    for (uint64_t line = 1; line <= 8; ++line) EXPECT_EQ(agreements.at(place(line)).number, static_cast<int64_t>(line));
  }
}

TEST(Agreements, OfManyRanksOneIsKeptForEachSet) {
  Agreements agreements(2000);
  agreements.at(place(7, 1)).number = 1;
  agreements.at(place(7, 2)).number = 2;
  EXPECT_EQ(agreements.at(place(7, 1)).number, 2) << "the one place, to be settled again";
}

}  // namespace
}  // namespace tessera::detail
