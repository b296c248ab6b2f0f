#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tensor.hpp>

#include "support/dlpack_layout.hpp"
#include "tensor/dlpack_abi.hpp"

namespace tessera {
namespace {

static_assert(testing_support::tensor_layout_fits<DLDevice, DLDataType, DLTensor>());
static_assert(testing_support::managed_layout_fits<DLManagedTensor>());
static_assert(testing_support::versioned_layout_fits<DLManagedTensorVersioned>());

// A tensor as another library would hand it over: 2 × 3 int32, whose deleter counts.
template <class Managed>
struct Foreign {
  int32_t data[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  int deleted = 0;
  Managed managed{};

  Foreign() {
    managed.dl_tensor = {data, {1, 0}, 2, {0, 32, 1}, shape, strides, 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 1};
  }
};

template <class Managed>
class DLPack : public testing::Test {
 protected:
  static Managed* exported(const Tensor& t) {
    if constexpr (std::is_same_v<Managed, DLManagedTensor>) return t.to_dlpack();
    else return t.to_dlpack_versioned();
  }
};
using Kinds = testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DLPack, Kinds);

TYPED_TEST(DLPack, GoesRoundForEveryDType) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const Tensor t = Tensor::generate(dtype, {2, 3}, [](auto at) { return at[0] == at[1] ? 1 : 0; });
    auto* managed = TestFixture::exported(t);
    EXPECT_EQ(managed->dl_tensor.data, t.data());
    EXPECT_EQ(managed->dl_tensor.device.device_type, 1);
    EXPECT_EQ(managed->dl_tensor.dtype.bits, 8 * size_bytes(dtype));
    const Tensor back = Tensor::from_dlpack(managed);
    EXPECT_EQ(back.data(), t.data()) << "nothing is copied";
    EXPECT_TRUE(back.equals(t)) << name(dtype);
  }
}

TYPED_TEST(DLPack, KeepsStridesAndShape) {
  const Tensor whole =
      Tensor::generate(DType::f64, {4, 5, 6}, [](auto at) { return at[0] * 100 + at[1] * 10 + at[2]; });
  const Tensor views[] = {whole.transpose(0, 2),
                          whole.narrow(1, 2, 2),
                          whole.select(1, 3),
                          whole.select(0, 0).select(0, 0),
                          whole.narrow(0, 0, 1).expand({7, 5, 6}),
                          whole.select(0, 0).select(0, 0).select(0, 0),
                          whole.narrow(1, 0, 0)};
  for (const Tensor& t : views) {
    const Tensor back = Tensor::from_dlpack(TestFixture::exported(t));
    EXPECT_EQ(back.shape(), t.shape());
    EXPECT_EQ(back.strides(), t.strides());
    EXPECT_TRUE(back.equals(t));
  }
}

TYPED_TEST(DLPack, ExportKeepsTheMemoryUntilDeleted) {
  auto owner = std::make_shared<std::vector<float>>(4, 1.5f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  auto* managed = TestFixture::exported(Tensor::view(owner->data(), DType::f32, {4}, {1}, owner));
  owner.reset();
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(managed->dl_tensor.shape[0], 4);
  EXPECT_EQ(static_cast<float*>(managed->dl_tensor.data)[3], 1.5f);
  managed->deleter(managed);
  EXPECT_TRUE(watch.expired());
}

TYPED_TEST(DLPack, ImportDeletesOnceWithTheLastView) {
  Foreign<TypeParam> foreign;
  Tensor row;
  {
    const Tensor t = Tensor::from_dlpack(&foreign.managed);
    EXPECT_EQ(t.at<int32_t>(1, 2), 5);
    row = t.select(0, 1);
  }
  EXPECT_EQ(foreign.deleted, 0);
  EXPECT_EQ(row.at<int32_t>(0), 3);
  row = Tensor();
  EXPECT_EQ(foreign.deleted, 1);
}

TYPED_TEST(DLPack, ImportTakesANullDeleter) {
  Foreign<TypeParam> foreign;
  foreign.managed.deleter = nullptr;
  const Tensor t = Tensor::from_dlpack(&foreign.managed);
  EXPECT_EQ(t.at<int32_t>(0, 1), 1);
}

TYPED_TEST(DLPack, NullStridesAreRowMajor) {
  Foreign<TypeParam> foreign;
  foreign.managed.dl_tensor.strides = nullptr;
  const Tensor t = Tensor::from_dlpack(&foreign.managed);
  EXPECT_EQ(t.strides(), (Dims{3, 1}));
  EXPECT_EQ(t.at<int32_t>(1, 0), 3);
}

TYPED_TEST(DLPack, ByteOffsetCounts) {
  Foreign<TypeParam> foreign;
  foreign.shape[0] = 1;
  foreign.managed.dl_tensor.byte_offset = 3 * sizeof(int32_t);
  const Tensor t = Tensor::from_dlpack(&foreign.managed);
  EXPECT_EQ(t.at<int32_t>(0, 0), 3);
}

template <class E, class Managed>
void expect_refused(Foreign<Managed>& foreign, const std::string& word) {
  const Managed before = foreign.managed;
  try {
    Tensor::from_dlpack(&foreign.managed);
    ADD_FAILURE() << "not refused: " << word;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  EXPECT_EQ(foreign.deleted, 0) << "it stays its owner's";
  EXPECT_EQ(std::memcmp(&before, &foreign.managed, sizeof(before)), 0);
}

TYPED_TEST(DLPack, RefusesAnotherDevice) {
  Foreign<TypeParam> foreign;
  foreign.managed.dl_tensor.device = {2, 0};
  expect_refused<Error>(foreign, "device 2");
}

TYPED_TEST(DLPack, RefusesTypesItHasNot) {
  for (const DLDataType type : {DLDataType{1, 32, 1}, DLDataType{0, 32, 4}, DLDataType{2, 128, 1}, DLDataType{3, 64, 1},
                                DLDataType{17, 4, 1}}) {
    Foreign<TypeParam> foreign;
    foreign.managed.dl_tensor.dtype = type;
    expect_refused<DTypeError>(foreign, "DLPack's type code");
  }
}

TYPED_TEST(DLPack, RefusesShapesThatMakeNoSense) {
  {
    Foreign<TypeParam> foreign;
    foreign.shape[1] = -3;
    expect_refused<ShapeError>(foreign, "negative");
  }
  {
    Foreign<TypeParam> foreign;
    foreign.managed.dl_tensor.data = nullptr;
    expect_refused<ShapeError>(foreign, "no memory");
  }
  {
    Foreign<TypeParam> foreign;
    foreign.managed.dl_tensor.ndim = 40;
    expect_refused<ShapeError>(foreign, "too deep");
  }
  {
    Foreign<TypeParam> foreign;
    foreign.managed.dl_tensor.ndim = -1;
    expect_refused<ShapeError>(foreign, "dimensions");
  }
}

TEST(DLPackVersioned, ReadOnlyIsReadAndNotWritten) {
  Foreign<DLManagedTensorVersioned> foreign;
  foreign.managed.flags = 1;
  const Tensor tensor = Tensor::from_dlpack(&foreign.managed);
  EXPECT_TRUE(tensor.read_only());
  EXPECT_NO_THROW(tensor.clone());
  EXPECT_THROW(tensor.copy_from(tensor.clone()), ShapeError);
  auto* again = tensor.to_dlpack_versioned();
  EXPECT_EQ(again->flags, 1u);
  again->deleter(again);
}

TEST(DLPackVersioned, RefusesOtherVersions) {
  Foreign<DLManagedTensorVersioned> foreign;
  foreign.managed.flags = 2;  // a copy was made: of no concern here
  EXPECT_NO_THROW(Tensor::from_dlpack(&foreign.managed));
  EXPECT_EQ(foreign.deleted, 1);
  Foreign<DLManagedTensorVersioned> newer;
  newer.managed.version = {2, 0};
  expect_refused<Error>(newer, "version 2.0");
}

TEST(DLPackVersioned, SaysItsVersion) {
  auto* managed = Tensor::zeros(DType::f32, {1}).to_dlpack_versioned();
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  managed->deleter(managed);
}

TEST(DLPackExport, RefusesAnUndefinedTensor) {
  EXPECT_THROW(Tensor().to_dlpack(), ShapeError);
  EXPECT_THROW(Tensor().to_dlpack_versioned(), ShapeError);
}

}  // namespace
}  // namespace tessera
