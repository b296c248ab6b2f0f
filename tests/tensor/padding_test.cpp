#include <tessera/padding.hpp>

#include <algorithm>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

Tensor counted(const Dims& shape, DType dtype = DType::i64) {
  return Tensor::generate(dtype, shape, [](auto at) {
    int64_t value = 0;
    for (const int64_t i : at) value = 10 * value + i + 1;
    return value;
  });
}

// What padding means: inside the old extent the old element, behind it zero.
void expect_padded(const Tensor& padded, const Tensor& t, int64_t dim, int64_t length) {
  Dims shape = t.shape();
  shape[static_cast<size_t>(normalize_dim(dim, shape.size()))] = length;
  ASSERT_EQ(padded.shape(), shape);
  ASSERT_EQ(padded.dtype(), t.dtype());
  const int64_t kept = std::min(length, t.shape(dim));
  EXPECT_TRUE(padded.narrow(dim, 0, kept).equals(t.narrow(dim, 0, kept)));
  const Tensor behind = padded.narrow(dim, kept, length - kept);
  EXPECT_TRUE(behind.equals(Tensor::zeros(t.dtype(), behind.shape())));
}

TEST(PadDimTo, PadsAndCropsAlongEveryDim) {
  const Tensor t = counted({2, 3, 4});
  for (int64_t dim = -3; dim < 3; ++dim) {
    for (int64_t length = 0; length < 7; ++length) expect_padded(pad_dim_to(t, length, dim), t, dim, length);
  }
}

TEST(PadDimTo, IsAlwaysANewTensor) {
  const Tensor t = counted({3});
  const Tensor same = pad_dim_to(t, 3);
  EXPECT_TRUE(same.equals(t));
  EXPECT_NE(same.data(), t.data());
}

TEST(PadDimTo, TakesStridesAndEmptyTensors) {
  const Tensor t = counted({2, 5}).transpose(0, 1);
  expect_padded(pad_dim_to(t, 6), t, 0, 6);
  expect_padded(pad_dim_to(t, 4, 1), t, 1, 4);
  const Tensor none = Tensor::zeros(DType::f16, {0, 2});
  expect_padded(pad_dim_to(none, 3), none, 0, 3);
}

TEST(PadDimTo, RefusesWhatDoesNotFit) {
  const Tensor t = counted({2, 3});
  EXPECT_THROW(pad_dim_to(t, 4, 2), ShapeError);
  EXPECT_THROW(pad_dim_to(t, 4, -3), ShapeError);
  EXPECT_THROW(pad_dim_to(t, -1), ShapeError);
  EXPECT_THROW(pad_dim_to(Tensor::zeros(DType::f32, {}), 1), ShapeError);
}

TEST(PadTensor, PadsBehindAndCropsForANegativeSize) {
  const Tensor t = counted({2, 3});
  for (int64_t dim = -2; dim < 2; ++dim) {
    for (const int64_t pad : {-2, -1, 1, 4}) {
      expect_padded(pad_tensor(t, dim, pad), t, dim, t.shape(dim) + pad);
    }
  }
}

TEST(PadTensor, OfZeroIsTheSameTensor) {
  const Tensor t = counted({2, 3}).transpose(0, 1);
  const Tensor same = pad_tensor(t, 1, 0);
  EXPECT_EQ(same.data(), t.data());
  EXPECT_EQ(same.strides(), t.strides());
}

TEST(PadTensor, RefusesToCropMoreThanThereIs) {
  EXPECT_THROW(pad_tensor(counted({2, 3}), 0, -3), ShapeError);
  EXPECT_THROW(pad_tensor(counted({2, 3}), 2, 1), ShapeError);
  EXPECT_THROW(pad_tensor(counted({2, 3}), 0, std::numeric_limits<int64_t>::max()), ShapeError);
}

TEST(UnpadTensor, IsAViewAndUndoesPadTensor) {
  const Tensor t = counted({3, 4});
  for (int64_t dim = -2; dim < 2; ++dim) {
    const Tensor padded = pad_tensor(t, dim, 2);
    const Tensor back = unpad_tensor(padded, dim, 2);
    EXPECT_TRUE(back.equals(t));
    EXPECT_EQ(back.data(), padded.data());
    EXPECT_EQ(back.strides(), padded.strides());
  }
  EXPECT_EQ(unpad_tensor(t, 1, 0).data(), t.data());
  EXPECT_EQ(unpad_tensor(t, 0, 3).elements(), 0);
  EXPECT_THROW(unpad_tensor(t, 0, 4), ShapeError);
  EXPECT_THROW(unpad_tensor(t, 2, 1), ShapeError);
  EXPECT_THROW(unpad_tensor(t, 0, std::numeric_limits<int64_t>::min()), ShapeError);
}

TEST(FillEmptyTensorToShards, AppendsOneSharedEmptyTensor) {
  std::vector<Tensor> shards{counted({2, 3, 4}, DType::f32), counted({2, 3, 4}, DType::f32)};
  std::vector<Tensor>& same = fill_empty_tensor_to_shards(shards, -2, 3);
  EXPECT_EQ(&same, &shards);
  ASSERT_EQ(shards.size(), 5u);
  for (size_t i = 2; i < 5; ++i) {
    EXPECT_EQ(shards[i].shape(), (Dims{2, 0, 4}));
    EXPECT_EQ(shards[i].dtype(), DType::f32);
    EXPECT_EQ(shards[i].data(), shards[2].data());
    EXPECT_EQ(shards[i].owner(), shards[2].owner());
  }
}

TEST(FillEmptyTensorToShards, OfNoneLeavesTheList) {
  std::vector<Tensor> none;
  EXPECT_TRUE(fill_empty_tensor_to_shards(none, 0, 0).empty());
  EXPECT_THROW(fill_empty_tensor_to_shards(none, 0, 1), ShapeError);
  std::vector<Tensor> shards{counted({2})};
  EXPECT_THROW(fill_empty_tensor_to_shards(shards, 1, 1), ShapeError);
  EXPECT_EQ(fill_empty_tensor_to_shards(shards, 0, 0).size(), 1u);
}

TEST(HasOnlyOneValue, OfNumbers) {
  EXPECT_TRUE(has_only_one_value(Sizes{4}));
  EXPECT_TRUE(has_only_one_value(Sizes{4, 4, 4}));
  EXPECT_FALSE(has_only_one_value(Sizes{4, 4, 3}));
  EXPECT_THROW(has_only_one_value(Sizes{}), ShapeError);
}

TEST(HasOnlyOneValue, OfATensorComparesRowsByValue) {
  EXPECT_TRUE(has_only_one_value(Tensor::full(DType::i32, {5}, 3)));
  EXPECT_FALSE(has_only_one_value(counted({5})));
  // Every row equals the first, whatever is in it.
  const Tensor rows = counted({1, 3}).expand({4, 3});
  EXPECT_TRUE(has_only_one_value(rows));
  const Tensor zeros = Tensor::zeros(DType::f32, {2});
  zeros.at<float>(1) = -0.0f;
  EXPECT_TRUE(has_only_one_value(zeros));
  EXPECT_FALSE(has_only_one_value(Tensor::full(DType::f32, {1}, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(has_only_one_value(Tensor::zeros(DType::f32, {3, 0})));
  EXPECT_THROW(has_only_one_value(Tensor::zeros(DType::f32, {0, 3})), ShapeError);
  EXPECT_THROW(has_only_one_value(Tensor::zeros(DType::f32, {})), ShapeError);
}

}  // namespace
}  // namespace tessera
