#include <tessera/dims.hpp>

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <tessera/error.hpp>

#include "support/refusal.hpp"

namespace tessera {
namespace {

TEST(Dims, KeepsWhatItIsGiven) {
  Dims dims{4, 5};
  dims.insert(1, 7);
  dims.push_back(9);
  EXPECT_EQ(dims, (Dims{4, 7, 5, 9}));
  dims.erase(0);
  EXPECT_EQ(dims, (Dims{7, 5, 9}));
  EXPECT_EQ(dims.back(), 9);
  EXPECT_EQ(fmt::format("{}", dims), "[7, 5, 9]");
  EXPECT_EQ(Dims::filled(2, 3), (Dims{3, 3}));
  EXPECT_FALSE(dims == (Dims{7, 5}));
}

TEST(Dims, RefusesTooMany) {
  EXPECT_NO_THROW(Dims::filled(kMaxDims, 1));
  EXPECT_EQ(testing_support::refusal<ShapeError>([] { Dims::filled(kMaxDims + 1, 1); }),
            "a tensor of 13 dimensions is too deep: tessera takes at most 12");
  EXPECT_THROW(Dims(Sizes(20, 1)), ShapeError);
}

TEST(Volume, MultipliesExtents) {
  EXPECT_EQ(volume(Dims{}), 1);
  EXPECT_EQ(volume(Dims{3, 4, 5}), 60);
  EXPECT_EQ(volume(Dims{3, 0, 5}), 0);
  EXPECT_EQ(volume(Dims{int64_t{1} << 31, int64_t{1} << 31}), int64_t{1} << 62);
}

TEST(Volume, RefusesNegativeAndTooLarge) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(testing_support::refusal<ShapeError>([] {
              volume(Dims{3, -1});
            }),
            "the shape [3, -1] has a negative extent");
  EXPECT_EQ(testing_support::refusal<ShapeError>([] {
              volume(Dims{0, -1});
            }),
            "the shape [0, -1] has a negative extent");
  EXPECT_EQ(testing_support::refusal<ShapeError>([&] {
              volume(Dims{huge, huge});
            }),
            "the shape [1099511627776, 1099511627776] has more than 2^63 - 1 elements");
  EXPECT_EQ(volume(Dims{huge, huge, 0}), 0);
  EXPECT_EQ(volume(Dims{0, huge, huge}), 0);
  EXPECT_EQ(volume(Dims{std::numeric_limits<int64_t>::max()}), std::numeric_limits<int64_t>::max());
}

TEST(RowMajor, StridesOfAllShapes) {
  EXPECT_EQ(row_major({}), Dims{});
  EXPECT_EQ(row_major({7}), Dims{1});
  EXPECT_EQ(row_major({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(row_major({2, 0, 4}), (Dims{4, 4, 1}));
}

TEST(NormalizeDim, CountsFromBothEnds) {
  EXPECT_EQ(normalize_dim(0, 3), 0);
  EXPECT_EQ(normalize_dim(-1, 3), 2);
  EXPECT_EQ(normalize_dim(-3, 3), 0);
}

TEST(NormalizeDim, SaysWhatWouldDo) {
  EXPECT_EQ(testing_support::refusal<ShapeError>([] { normalize_dim(7, 2); }),
            "dim 7 is out of range for a tensor of 2 dimensions: use -2 to 1");
  EXPECT_EQ(testing_support::refusal<ShapeError>([] { normalize_dim(-2, 1, "gather_dim"); }),
            "gather_dim -2 is out of range for a tensor of 1 dimension: use -1 to 0");
  EXPECT_EQ(testing_support::refusal<ShapeError>([] { normalize_dim(0, 0); }),
            "dim 0 is out of range: a tensor of 0 dimensions has none to name");
}

TEST(Box, IntersectsAndMoves) {
  const Box a{{0, 2}, {4, 6}};
  const Box b{{2, 0}, {8, 5}};
  EXPECT_EQ(intersect(a, b), (Box{{2, 2}, {2, 3}}));
  EXPECT_EQ(intersect(a, b), intersect(b, a));
  EXPECT_EQ(intersect(a, b).elements(), 6);
  EXPECT_EQ(intersect(a, b).relative_to({2, 1}), (Box{{0, 1}, {2, 3}}));
  EXPECT_TRUE(intersect(a, Box{{4, 0}, {3, 9}}).empty());
  EXPECT_TRUE(intersect(a, Box{{9, 9}, {1, 1}}).empty());
  EXPECT_EQ(intersect(a, Box{{9, 9}, {1, 1}}).elements(), 0);
  EXPECT_EQ(intersect(a, Box::whole({4, 8})), a);
  EXPECT_EQ(Box::whole({}).elements(), 1);
}

}  // namespace
}  // namespace tessera
