#include <tessera/tensor.hpp>

#include <complex>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

template <class E, class Fn>
std::string message(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

// 100 × row + column and so on: an element shows its place.
double place(std::span<const int64_t> at) {
  double value = 0;
  for (const int64_t i : at) value = 100 * value + static_cast<double>(i);
  return value;
}
Tensor placed(const Dims& shape, DType dtype = DType::f64) { return Tensor::generate(dtype, shape, place); }

TEST(Tensor, UndefinedIsNothing) {
  const Tensor t{};
  EXPECT_FALSE(t.defined());
  EXPECT_EQ(t.data(), nullptr);
  EXPECT_EQ(to_string(t), "undefined");
  EXPECT_TRUE(t.equals(Tensor()));
  EXPECT_FALSE(t.equals(Tensor::zeros(DType::f32, {})));
  EXPECT_THROW(t.span<float>(), ShapeError);
  EXPECT_THROW(t.at<float>(), ShapeError);
}

TEST(Tensor, UndefinedCannotBeCopiedOrFilled) {
  const Tensor none{}, some = Tensor::zeros(DType::f32, {});
  EXPECT_THROW(none.clone(), ShapeError);
  EXPECT_THROW(none.copy_from(some), ShapeError);
  EXPECT_THROW(some.copy_from(none), ShapeError);
  EXPECT_THROW(none.fill([](auto) { return 1; }), ShapeError);
}

TEST(Tensor, NewOnesAreRowMajor) {
  const Tensor t = Tensor::zeros(DType::i32, {2, 3, 4});
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.dtype(), DType::i32);
  EXPECT_EQ(t.ndim(), 3);
  EXPECT_EQ(t.shape(), (Dims{2, 3, 4}));
  EXPECT_EQ(t.shape(-1), 4);
  EXPECT_EQ(t.strides(), (Dims{12, 4, 1}));
  EXPECT_EQ(t.elements(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 64, 0u);
  for (const int32_t value : t.span<int32_t>()) EXPECT_EQ(value, 0);
  EXPECT_THROW(t.shape(3), ShapeError);
}

TEST(Tensor, IsAHandle) {
  const Tensor a = Tensor::zeros(DType::f32, {3});
  const Tensor b = a;
  b.at<float>(1) = 5;
  EXPECT_EQ(a.at<float>(1), 5);
  EXPECT_EQ(a.data(), b.data());
  EXPECT_NE(a.clone().data(), a.data());
}

TEST(Tensor, ViewsTheCallersMemory) {
  std::vector<float> memory(6);
  std::iota(memory.begin(), memory.end(), 0.0f);
  const Tensor t = Tensor::view(std::span(memory), {2, 3});
  EXPECT_EQ(t.data(), reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(t.dtype(), DType::f32);
  t.at<float>(1, 2) = 9;
  EXPECT_EQ(memory[5], 9);
  const std::vector<int64_t> constant{1, 2};
  EXPECT_EQ(Tensor::view(std::span(constant), {2}).at<int64_t>(1), 2);
  EXPECT_EQ(message<ShapeError>([&] {
              Tensor::view(std::span(memory), {2, 2});
            }),
            "shape [2, 2] has 4 elements, the memory 6");
}

TEST(Tensor, ViewsAnyStrides) {
  std::vector<int16_t> memory(20);
  std::iota(memory.begin(), memory.end(), int16_t{0});
  const Tensor columns = Tensor::view(memory.data(), DType::i16, {4, 5}, {1, 4});
  EXPECT_EQ(columns.at<int16_t>(3, 2), 11);
  EXPECT_FALSE(columns.is_contiguous());
  const Tensor backwards = Tensor::view(memory.data() + 19, DType::i16, {20}, {-1});
  EXPECT_EQ(backwards.at<int16_t>(0), 19);
  EXPECT_EQ(backwards.clone().span<int16_t>()[19], 0);
}

TEST(Tensor, ViewsAnyAlignment) {
  std::vector<std::byte> memory(1 + 3 * sizeof(double));
  const Tensor t = Tensor::view(memory.data() + 1, DType::f64, {3}, {1});
  t.fill(place);
  EXPECT_TRUE(t.equals(placed({3})));
  EXPECT_EQ(to_string(t), "float64 [3] {0, 1, 2}");
}

TEST(Tensor, RefusesViewsThatMakeNoSense) {
  float memory = 0;
  EXPECT_THROW(Tensor::view(&memory, DType::f32, {1, 1}, {1}), ShapeError);
  EXPECT_THROW(Tensor::view(nullptr, DType::f32, {1}, {1}), ShapeError);
  EXPECT_THROW(Tensor::view(&memory, DType::f32, {-1}, {1}), ShapeError);
  EXPECT_THROW(Tensor::view(&memory, DType::f32, {3}, {kLargest / 2}), ShapeError);
  EXPECT_THROW(Tensor::view(&memory, DType::f32, {2}, {std::numeric_limits<int64_t>::min()}), ShapeError);
  EXPECT_NO_THROW(Tensor::view(nullptr, DType::f32, {0, 5}, {5, 1}));
}

TEST(Tensor, KeepsItsOwner) {
  auto owner = std::make_shared<std::vector<int32_t>>(6, 7);
  const std::weak_ptr<std::vector<int32_t>> watch = owner;
  Tensor t = Tensor::view(owner->data(), DType::i32, {2, 3}, {3, 1}, owner);
  owner.reset();
  Tensor row = t.narrow(0, 1, 1).select(0, 0).unsqueeze(0).transpose(0, 1);
  t = Tensor();
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(row.at<int32_t>(2, 0), 7);
  row = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Tensor, AccessIsChecked) {
  const Tensor t = placed({2, 3});
  EXPECT_EQ(t.at<double>(1, 2), 102);
  EXPECT_EQ(message<DTypeError>([&] { t.at<float>(0, 0); }), "the tensor holds float64, not float32");
  EXPECT_EQ(message<ShapeError>([&] { t.at<double>(0); }), "1 indices [0] for a tensor of shape [2, 3]");
  EXPECT_EQ(message<ShapeError>([&] { t.at<double>(0, 3); }), "index [0, 3] lies outside of shape [2, 3]");
  EXPECT_THROW(t.at<double>(-1, 0), ShapeError);
  EXPECT_THROW(t.span<int64_t>(), DTypeError);
  EXPECT_NE(message<ShapeError>([&] { t.transpose(0, 1).span<double>(); }).find("clone() it first"), std::string::npos);
}

TEST(Tensor, FillsByGlobalCoordinates) {
  const Tensor part = Tensor::generate(DType::i64, {2, 3}, place, {5, 1});
  EXPECT_EQ(part.at<int64_t>(0, 0), 501);
  EXPECT_EQ(part.at<int64_t>(1, 2), 603);
  // It is the same box of the whole, whatever strides it has.
  const Tensor whole = placed({8, 6}, DType::i64);
  EXPECT_TRUE(whole.box({{5, 1}, {2, 3}}).equals(part));
  const Tensor turned = Tensor::zeros(DType::i64, {3, 2}).transpose(0, 1);
  turned.fill(place, {5, 1});
  EXPECT_TRUE(turned.equals(part));
}

TEST(Tensor, FillRefusesAnOriginOfOtherLength) {
  const Tensor t = Tensor::zeros(DType::i64, {2, 3});
  EXPECT_THROW(t.fill(place, {5}), ShapeError);
  EXPECT_THROW(t.fill(place, {5, 1, 0}), ShapeError);
}

class EveryDType : public testing::TestWithParam<int> {
 protected:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

TEST_P(EveryDType, FillsAndReadsBack) {
  const Tensor t = Tensor::generate(dtype(), {2, 2}, [](auto at) { return at[0] == at[1] ? 1 : 0; });
  visit(dtype(), [&]<class T>(std::type_identity<T>) {
    EXPECT_TRUE(t.at<T>(0, 0) == cast_to<T>(1));
    EXPECT_TRUE(t.at<T>(0, 1) == cast_to<T>(0));
    EXPECT_EQ(t.span<T>().size(), 4u);
    EXPECT_EQ(t.bytes(), static_cast<int64_t>(4 * sizeof(T)));
  });
  EXPECT_TRUE(t.transpose(0, 1).equals(t));
  EXPECT_FALSE(t.equals(Tensor::zeros(dtype(), {2, 2})));
}

INSTANTIATE_TEST_SUITE_P(Tensor, EveryDType, testing::Range(0, kDTypeCount));

TEST(Tensor, ZeroDimensional) {
  const Tensor t = Tensor::full(DType::f32, {}, 2.5f);
  EXPECT_EQ(t.ndim(), 0);
  EXPECT_EQ(t.elements(), 1);
  EXPECT_EQ(t.at<float>(), 2.5f);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_TRUE(t.clone().equals(t));
  EXPECT_EQ(t.unsqueeze(0).shape(), (Dims{1}));
  EXPECT_EQ(t.expand({2, 2}).at<float>(1, 1), 2.5f);
  EXPECT_EQ(to_string(t), "float32 [] 2.5");
  EXPECT_THROW(t.narrow(0, 0, 1), ShapeError);
  EXPECT_THROW(t.select(0, 0), ShapeError);
}

TEST(Tensor, ZeroSized) {
  const Tensor t = Tensor::generate(DType::f32, {3, 0, 2}, place);
  EXPECT_EQ(t.elements(), 0);
  EXPECT_EQ(t.bytes(), 0);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_TRUE(t.span<float>().empty());
  EXPECT_TRUE(t.clone().equals(t));
  EXPECT_FALSE(t.equals(Tensor::zeros(DType::f32, {3, 0, 3})));
  EXPECT_EQ(t.narrow(1, 0, 0).shape(), t.shape());
  EXPECT_EQ(t.reshape({0, 7}).shape(), (Dims{0, 7}));
  EXPECT_EQ(to_string(t), "float32 [3, 0, 2] {{}, {}, {}}");
  const Tensor borrowed = Tensor::view(nullptr, DType::f32, {3, 0}, {1, 1});
  EXPECT_EQ(to_string(borrowed), "float32 [3, 0] {{}, {}, {}}");
  EXPECT_TRUE(borrowed.clone().equals(borrowed));
}

TEST(Tensor, RefusesShapesThatOverflow) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THROW(Tensor::empty(DType::u8, {huge, huge}), ShapeError);
  EXPECT_EQ(message<ShapeError>([] { Tensor::empty(DType::f64, {kLargest}); }),
            "a float64 tensor of shape [9223372036854775807] has more than 2^63 - 1 bytes");
  EXPECT_THROW(Tensor::empty(DType::f32, {-1}), ShapeError);
  EXPECT_THROW(Tensor::empty(DType::f32, Dims::filled(13, 1)), ShapeError);
  EXPECT_THROW(Tensor::zeros(DType::f32, {2}).expand({huge, huge, 2}), ShapeError);
}

TEST(Tensor, Narrow) {
  const Tensor t = placed({4, 3});
  const Tensor middle = t.narrow(0, 1, 2);
  EXPECT_EQ(middle.shape(), (Dims{2, 3}));
  EXPECT_EQ(middle.at<double>(0, 0), 100);
  EXPECT_EQ(middle.data(), t.data() + 3 * sizeof(double));
  EXPECT_EQ(t.narrow(-1, 2, 1).at<double>(3, 0), 302);
  EXPECT_EQ(t.narrow(0, 4, 0).elements(), 0);
  EXPECT_EQ(message<ShapeError>([&] { t.narrow(0, 3, 2); }),
            "2 elements from 3 on do not lie within dim 0 of shape [4, 3]");
  EXPECT_THROW(t.narrow(0, -1, 1), ShapeError);
  EXPECT_THROW(t.narrow(0, 0, -1), ShapeError);
  EXPECT_THROW(t.narrow(0, kLargest, kLargest), ShapeError);
  EXPECT_THROW(t.narrow(2, 0, 1), ShapeError);
}

TEST(Tensor, SelectTransposeUnsqueeze) {
  const Tensor t = placed({2, 3, 4});
  EXPECT_EQ(t.select(1, 2).shape(), (Dims{2, 4}));
  EXPECT_EQ(t.select(1, 2).at<double>(1, 3), 10203);
  EXPECT_THROW(t.select(1, 3), ShapeError);
  EXPECT_EQ(t.transpose(0, -1).shape(), (Dims{4, 3, 2}));
  EXPECT_EQ(t.transpose(0, -1).at<double>(3, 2, 1), 10203);
  EXPECT_THROW(t.transpose(0, 3), ShapeError);
  for (const int64_t dim : {0, 1, 2, 3, -1}) {
    const Tensor u = t.unsqueeze(dim);
    EXPECT_EQ(u.ndim(), 4);
    EXPECT_EQ(u.shape(dim), 1);
    EXPECT_TRUE(u.is_contiguous());
    EXPECT_TRUE(u.select(dim, 0).equals(t));
  }
  EXPECT_THROW(t.unsqueeze(4), ShapeError);
}

TEST(Tensor, Expand) {
  const Tensor row = placed({1, 3});
  const Tensor t = row.expand({4, 2, 3});
  EXPECT_EQ(t.strides(), (Dims{0, 0, 1}));
  EXPECT_EQ(t.at<double>(3, 1, 2), 2);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.clone().elements(), 24);
  EXPECT_EQ(row.expand({0, 3}).elements(), 0);
  EXPECT_EQ(message<ShapeError>([&] { row.expand({4, 4}); }), "shape [1, 3] does not expand to [4, 4]");
  EXPECT_THROW(row.expand({3}), ShapeError);
  EXPECT_THROW(row.expand({-1, 3}), ShapeError);
}

TEST(Tensor, Reshape) {
  const Tensor t = placed({2, 6});
  EXPECT_EQ(t.reshape({3, 4}).at<double>(2, 3), 105);
  EXPECT_EQ(t.reshape({3, 4}).data(), t.data());
  EXPECT_EQ(t.narrow(0, 0, 1).reshape({6}).at<double>(5), 5);
  EXPECT_THROW(t.reshape({5}), ShapeError);
  EXPECT_THROW(t.transpose(0, 1).reshape({12}), ShapeError);
}

TEST(Tensor, Box) {
  const Tensor t = placed({4, 5, 6});
  const Tensor b = t.box({{1, 2, 3}, {2, 1, 3}});
  EXPECT_EQ(b.shape(), (Dims{2, 1, 3}));
  EXPECT_EQ(b.at<double>(1, 0, 2), 20205);
  EXPECT_THROW(t.box({{0, 0}, {1, 1}}), ShapeError);
  EXPECT_THROW(t.box({{0, 0, 4}, {1, 1, 3}}), ShapeError);
  EXPECT_THROW(t.box({{0, 0}, {1, 1, 1}}), ShapeError);
}

TEST(Tensor, CopyFrom) {
  const Tensor source = placed({3, 4}).transpose(0, 1);
  const Tensor target = Tensor::zeros(DType::f64, {4, 6}).narrow(1, 2, 3);
  target.copy_from(source);
  EXPECT_TRUE(target.equals(source));
  EXPECT_EQ(target.at<double>(3, 2), 203);
  EXPECT_EQ(message<DTypeError>([&] {
              target.copy_from(Tensor::zeros(DType::f32, {4, 3}));
            }),
            "cannot copy float32 to float64");
  EXPECT_EQ(message<ShapeError>([&] {
              target.copy_from(Tensor::zeros(DType::f64, {3, 4}));
            }),
            "cannot copy shape [3, 4] to [4, 3]");
}

TEST(Tensor, EqualsComparesBytes) {
  const Tensor nan = Tensor::full(DType::f32, {2}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(nan.equals(nan.clone()));
  EXPECT_FALSE(Tensor::full(DType::f32, {1}, 0.0f).equals(Tensor::full(DType::f32, {1}, -0.0f)));
  EXPECT_FALSE(Tensor::zeros(DType::i32, {2}).equals(Tensor::zeros(DType::f32, {2})));
  EXPECT_FALSE(Tensor::zeros(DType::i32, {2}).equals(Tensor::zeros(DType::i32, {2, 1})));
}

TEST(Tensor, Prints) {
  EXPECT_EQ(fmt::format("{}", placed({2, 3}, DType::f32)), "float32 [2, 3] {{0, 1, 2}, {100, 101, 102}}");
  EXPECT_EQ(to_string(placed({100}, DType::i64)), "int64 [100] {0, 1, 2, …, 97, 98, 99}");
  EXPECT_EQ(to_string(placed({8}, DType::i8)), "int8 [8] {0, 1, 2, 3, 4, 5, 6, 7}");
  EXPECT_EQ(to_string(Tensor::full(DType::boolean, {2}, true)), "bool [2] {true, true}");
  EXPECT_EQ(to_string(Tensor::full(DType::c64, {}, std::complex<float>(1, -2))), "complex64 [] 1-2i");
  EXPECT_EQ(to_string(Tensor::full(DType::f8e5m2, {}, 0.5f)), "float8_e5m2 [] 0.5");
  EXPECT_EQ(fmt::format("{:>20}|", Tensor::full(DType::u8, {1}, 7)), "       uint8 [1] {7}|");
}

}  // namespace
}  // namespace tessera
