#include "tensor/copy.hpp"

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <rapidcheck.h>

namespace tessera {
namespace {

constexpr int64_t kStreamedCopy = int64_t{1} << 40;
constexpr int64_t kGuard = 128;

DType dtype_of_size(int64_t bytes) {
  switch (bytes) {
    case 1: return DType::u8;
    case 2: return DType::i16;
    case 4: return DType::f32;
    case 8: return DType::i64;
    default: return DType::c128;
  }
}

// Strides for a shape, and the memory they need around element [0, 0, …], in elements.
struct Strides {
  Dims strides;
  int64_t below = 0, above = 1;
};

// order: the dimensions from the innermost outwards; gap: how far apart neighbours lie, at least 1 (0: all in one
// place); a negative one runs backwards.
Strides strides_of(const Dims& shape, const std::vector<size_t>& order, const std::vector<int64_t>& gap) {
  Strides result{Dims::filled(shape.size(), 0)};
  int64_t reach = 1;
  for (size_t d : order) {
    result.strides[d] = gap[d] * reach;
    const int64_t span = std::abs(result.strides[d]) * std::max<int64_t>(shape[d] - 1, 0);
    (gap[d] < 0 ? result.below : result.above) += span;
    reach += span;
  }
  return result;
}

// Random bytes with room for a view and guards around it.
class Arena {
 public:
  Arena(const Strides& strides, int64_t element_bytes, int64_t shift, unsigned seed)
      : first_(kGuard + shift + strides.below * element_bytes),
        bytes_(static_cast<size_t>(first_ + strides.above * element_bytes + kGuard)) {
    std::minstd_rand random(seed);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  std::byte* data() { return bytes_.data() + first_; }
  friend bool operator==(const Arena& a, const Arena& b) { return a.bytes_ == b.bytes_; }

 private:
  int64_t first_;
  std::vector<std::byte> bytes_;
};

void naive_copy(const View& dst, const std::byte* src, const Dims& src_strides) {
  const int64_t size = size_bytes(dst.dtype);
  Dims at = Dims::filled(dst.shape.size(), 0);
  for (int64_t left = dst.elements(); left > 0; --left) {
    int64_t to = 0, from = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      to += at[d] * dst.strides[d];
      from += at[d] * src_strides[d];
    }
    std::memcpy(dst.data + to * size, src + from * size, static_cast<size_t>(size));
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < dst.shape[d]) break;
      at[d] = 0;
    }
  }
}

// Whether copy_box() changes exactly the bytes that it should.
bool copies(const Dims& shape, int64_t size, const Strides& to, const Strides& from, int64_t to_shift,
            int64_t from_shift, int64_t total_bytes) {
  const DType dtype = dtype_of_size(size);
  Arena source(from, size, from_shift, 1), result(to, size, to_shift, 2), expected(to, size, to_shift, 2);
  copy_box({result.data(), dtype, shape, to.strides}, {source.data(), dtype, shape, from.strides}, total_bytes);
  naive_copy({expected.data(), dtype, shape, to.strides}, source.data(), from.strides);
  return result == expected;
}

Strides random_strides(const Dims& shape, bool may_repeat) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
  std::vector<int64_t> gaps;
  for (size_t d = 0; d < shape.size(); ++d) {
    gaps.push_back(
        *rc::gen::weightedElement<int64_t>({{12, 1}, {2, 2}, {1, 3}, {2, -1}, {1, -2}, {1, may_repeat ? 0 : 1}}));
  }
  return strides_of(shape, order, gaps);
}

Dims random_shape() {
  const auto ndim = *rc::gen::inRange<size_t>(0, 6);
  const int64_t limit = ndim <= 1 ? 600 : ndim == 2 ? 70 : ndim == 3 ? 20 : 7;
  Dims shape;
  for (size_t d = 0; d < ndim; ++d) {
    shape.push_back(*rc::gen::weightedOneOf<int64_t>({{1, rc::gen::inRange<int64_t>(0, 2)},
                                                      {3, rc::gen::inRange<int64_t>(1, 8)},
                                                      {4, rc::gen::inRange<int64_t>(1, limit)}}));
  }
  return shape;
}

TEST(Copy, AnyStridesAndAlignment) {
  EXPECT_TRUE(rc::check("copy_box() agrees with a loop over the elements", [] {
    const Dims shape = random_shape();
    const Strides to = random_strides(shape, false), from = random_strides(shape, true);
    const auto to_shift = *rc::gen::inRange<int64_t>(0, 64), from_shift = *rc::gen::inRange<int64_t>(0, 64);
    for (int64_t size : {1, 2, 4, 8, 16}) {
      RC_ASSERT(copies(shape, size, to, from, to_shift, from_shift, 0));
      RC_ASSERT(copies(shape, size, to, from, to_shift, from_shift, kStreamedCopy));
    }
  }));
}

TEST(Copy, RowsOfEveryLength) {
  for (int64_t row = 1; row < 600; row += row < 300 ? 1 : 37) {
    const Dims shape{5, row};
    const Strides padded = strides_of(shape, {1, 0}, {2, 1}), dense = strides_of(shape, {1, 0}, {1, 1});
    for (int64_t total : {int64_t{0}, kStreamedCopy}) {
      ASSERT_TRUE(copies(shape, 1, dense, padded, row % 64, 3, total)) << row;
      ASSERT_TRUE(copies(shape, 1, padded, dense, 0, row % 7, total)) << row;
      ASSERT_TRUE(copies({row}, 1, {Dims{1}, 0, row}, {Dims{1}, 0, row}, row % 13, 5, total)) << row;
    }
  }
}

TEST(Copy, TransposesOfEveryWidthOnEveryInstructionSet) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (int64_t size : {1, 2, 4, 8, 16}) {
      for (int64_t rows : {1, 2, 3, 4, 7, 15, 16, 17, 33, 64, 65, 130}) {
        for (int64_t columns : {1, 3, 4, 16, 31, 64, 67, 300}) {
          const Dims shape{rows, columns};
          const Strides to = strides_of(shape, {1, 0}, {1, 1}), from = strides_of(shape, {0, 1}, {1, 1});
          const int64_t shift = rows % 2 == 0 ? 0 : 5;
          ASSERT_TRUE(copies(shape, size, to, from, shift, columns % 3, 0)) << rows << " x " << columns;
          ASSERT_TRUE(copies(shape, size, to, from, shift, columns % 3, kStreamedCopy)) << rows << " x " << columns;
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST(Copy, TransposesAmongOtherDimensions) {
  const Dims shape{3, 20, 2, 33};
  for (int64_t size : {1, 2, 4, 8, 16}) {
    const Strides to = strides_of(shape, {3, 2, 1, 0}, {1, 1, 1, 1});
    for (const std::vector<size_t>& order :
         std::vector<std::vector<size_t>>{{1, 0, 2, 3}, {0, 3, 1, 2}, {2, 1, 3, 0}}) {
      EXPECT_TRUE(copies(shape, size, to, strides_of(shape, order, {1, 1, 1, 1}), 0, 1, 0));
      EXPECT_TRUE(copies(shape, size, to, strides_of(shape, order, {1, 1, 2, -1}), 0, 0, kStreamedCopy));
    }
  }
}

TEST(Copy, OneElementAndNone) {
  for (int64_t size : {1, 2, 4, 8, 16}) {
    EXPECT_TRUE(copies({}, size, {}, {}, 1, 2, 0));
    EXPECT_TRUE(copies({}, size, {}, {}, 1, 2, kStreamedCopy));
    EXPECT_TRUE(copies({0}, size, {Dims{1}}, {Dims{1}}, 1, 2, 0));
    EXPECT_TRUE(copies({5, 0, 3}, size, {Dims{3, 3, 1}}, {Dims{3, 3, 1}}, 1, 2, kStreamedCopy));
  }
}

}  // namespace
}  // namespace tessera
