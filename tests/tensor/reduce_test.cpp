#include "tensor/reduce.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "support/definition.hpp"
#include "tensor/cache.hpp"

namespace tessera {
namespace {

constexpr int64_t kStreamedSum = int64_t{1} << 40;
using testing_support::Accumulator;
using testing_support::kReduceOps;
using testing_support::reducible;
using testing_support::tree;

// The definition, of element i of the terms. A bool is true where its byte is not 0.
template <class T>
T defined_result(Reduction reduction, std::span<const std::byte* const> terms, int64_t i) {
  std::array<T, 64> values{};
  for (size_t k = 0; k < terms.size(); ++k) {
    const std::byte* at = terms[k] + i * static_cast<int64_t>(sizeof(T));
    if constexpr (std::is_same_v<T, bool>) values[k] = *at != std::byte{0};
    else std::memcpy(&values[k], at, sizeof(T));
  }
  return testing_support::defined_result<T>(reduction, std::span<const T>(values.data(), terms.size()));
}

template <class T>
bool same_bits(T a, T b) {
  if constexpr (is_short_float<T>) {
    if (std::isnan(float(a)) && std::isnan(float(b))) return true;
  } else if constexpr (is_complex_type<T>) {
    return same_bits(a.real(), b.real()) && same_bits(a.imag(), b.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) && std::isnan(b)) return true;
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Terms -----------------------------------------------------------------------------------------------------------------

// Mostly small numbers, so that sums stay interesting, with zeros of both signs, infinities, NaN, and what is tiny.
template <class T>
T random_real(std::minstd_rand& random) {
  const unsigned kind = static_cast<unsigned>(random()) % 48;
  if (kind == 0) return std::numeric_limits<T>::quiet_NaN();
  if (kind == 1) return -std::numeric_limits<T>::infinity();
  if (kind <= 6) return T(0);
  if (kind <= 11) return -T(0);
  if (kind == 12) return T(1.0e-7);
  if (kind == 13) return T(300);
  return std::uniform_real_distribution<T>(-2, 2)(random);
}

std::vector<std::byte> random_terms(DType dtype, int64_t elements, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(elements * size_bytes(dtype)));
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      if constexpr (std::is_integral_v<T>) {
        const uint64_t value = uint64_t{random()} * random() * random();
        std::memcpy(&bytes[at], &value, sizeof(T));
        if (dtype == DType::boolean && value % 2 == 0) bytes[at] = std::byte{0};
      } else if constexpr (is_complex_type<T>) {
        using Part = typename T::value_type;
        const T value(random_real<Part>(random), random_real<Part>(random));
        std::memcpy(&bytes[at], &value, sizeof(T));
      } else {
        const T value = cast_to<T>(random_real<Accumulator<T>>(random));
        std::memcpy(&bytes[at], &value, sizeof(T));
      }
    }
  });
  return bytes;
}

// Runs fn once on every instruction set of this machine.
template <class Fn>
void on_every_target(Fn fn) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);
    fn(hwy::TargetName(target));
  }
  hwy::GetChosenTarget().DeInit();
}

// The terms' bytes as a sum gives them that was prepared without knowing where they lie, run twice.
std::vector<std::byte> prepared(const std::vector<std::byte>& room, View dst, std::vector<ConstView> terms,
                                Reduction reduction) {
  std::vector<std::byte> out = room;
  const int64_t offset = dst.data - room.data();
  std::vector<const std::byte*> data;
  for (ConstView& term : terms) data.push_back(std::exchange(term.data, nullptr));
  dst.data = nullptr;
  PreparedSum sum(dst, terms, reduction);
  for (int i = 0; i < 2; ++i) sum.run(out.data() + offset, data.data());
  return out;
}

class Reduce : public testing::TestWithParam<DType> {};

TEST_P(Reduce, IsTheTreeOfItsDefinitionOnEveryInstructionSet) {
  constexpr int64_t kMost = 5000;
  const DType dtype = GetParam();
  const int64_t size = size_bytes(dtype);
  const std::vector<std::byte> pool = random_terms(dtype, 33 * kMost, 7);
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for (ReduceOp op : kReduceOps) {
      if (!reducible(op, dtype)) continue;
      const Reduction reduction(op, 0.3);
      for (size_t n : {1, 2, 3, 4, 5, 7, 8, 9, 33}) {
        std::vector<const std::byte*> data;
        for (size_t k = 0; k < n; ++k) data.push_back(pool.data() + static_cast<int64_t>(k) * kMost * size);
        std::vector<T> expected(kMost);
        for (int64_t i = 0; i < kMost; ++i) expected[static_cast<size_t>(i)] = defined_result<T>(reduction, data, i);
        const auto check = [&](int64_t length, int64_t total_bytes, const char* target) {
          std::vector<std::byte> out(static_cast<size_t>((length + 1) * size), std::byte{0xab});
          std::vector<ConstView> terms;
          for (const std::byte* at : data) terms.push_back({at, dtype, {length}, {1}});
          const std::vector<std::byte> again = prepared(out, {out.data(), dtype, {length}, {1}}, terms, reduction);
          reduce_boxes({out.data(), dtype, {length}, {1}}, terms, reduction, total_bytes);
          ASSERT_EQ(again.back(), std::byte{0xab});
          for (int64_t i = 0; i < length; ++i) {
            T result;
            std::memcpy(&result, &again[static_cast<size_t>(i * size)], sizeof(T));
            ASSERT_TRUE(same_bits(result, T(expected[static_cast<size_t>(i)])))
                << name(op) << " of " << n << " terms, prepared";
            std::memcpy(&result, &out[static_cast<size_t>(i * size)], sizeof(T));
            ASSERT_TRUE(same_bits(result, T(expected[static_cast<size_t>(i)])))
                << name(op) << " of " << n << " terms on " << target << ", element " << i << " of " << length;
          }
          ASSERT_EQ(out[static_cast<size_t>(length * size)], std::byte{0xab});
        };
        on_every_target([&](const char* target) {
          for (int64_t length = 0; length <= 70; ++length) check(length, 0, target);
          check(1000, kNearBytes, target);
          check(1000, kStreamedSum, target);
          check(kMost, 0, target);
        });
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// Every operand of a shape in its own strides, in memory of its own.
struct Operand {
  Operand(DType dtype, const Dims& shape, const Dims& operand_strides, int64_t first, int64_t extent, unsigned seed)
      : bytes(random_terms(dtype, extent, seed)),
        view{bytes.data() + first * size_bytes(dtype), dtype, shape, operand_strides} {}

  std::vector<std::byte> bytes;
  View view;
};

const std::byte* element(const View& view, const Dims& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) offset += at[d] * view.strides[d];
  return view.data + offset * size_bytes(view.dtype);
}

template <class T>
void expect_defined(const View& result, const std::vector<View>& terms, Reduction reduction) {
  Dims at = Dims::filled(result.shape.size(), 0);
  for (int64_t left = result.elements(); left > 0; --left) {
    std::vector<const std::byte*> elements;
    for (const View& term : terms) elements.push_back(element(term, at));
    T value;
    std::memcpy(&value, element(result, at), sizeof(T));
    ASSERT_TRUE(same_bits(value, defined_result<T>(reduction, elements, 0))) << fmt::format("at {}", at);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < result.shape[d]) break;
      at[d] = 0;
    }
  }
}

TEST_P(Reduce, StridedOperands) {
  const DType dtype = GetParam();
  for (const Dims& shape : {Dims{37, 70}, Dims{3, 5}, Dims{2, 1500}, Dims{300, 9}}) {
    const int64_t rows = shape[0], columns = shape[1], room = 3 * rows * columns + 3 * columns;
    const Dims row_major_strides{columns, 1}, padded{columns + 3, 1}, transposed{1, rows}, sparse{3 * columns, 3};
    std::vector<Operand> operands;
    operands.emplace_back(dtype, shape, row_major_strides, 0, room, 1);
    operands.emplace_back(dtype, shape, transposed, 1, room, 2);
    operands.emplace_back(dtype, shape, padded, 0, room, 3);
    operands.emplace_back(dtype, shape, Dims{-columns, -1}, rows * columns, room, 4);
    operands.emplace_back(dtype, shape, Dims{0, 1}, 2, room, 5);
    operands.emplace_back(dtype, shape, sparse, 0, room, 6);
    std::vector<View> terms;
    for (const Operand& operand : operands) terms.push_back(operand.view);
    const std::vector<ConstView> const_terms(terms.begin(), terms.end());
    for (const Dims& strides : {row_major_strides, padded, transposed, sparse}) {
      for (int64_t total_bytes : {int64_t{0}, kNearBytes, kStreamedSum}) {
        Operand out(dtype, shape, strides, 0, room, 9);
        const std::vector<std::byte> again = prepared(out.bytes, out.view, const_terms, ReduceOp::sum);
        reduce_boxes(out.view, const_terms, ReduceOp::sum, total_bytes);
        EXPECT_EQ(again, out.bytes);
        for (int64_t next_bytes : {sum_stream_bytes(), kStreamedSum}) {
          Operand next(dtype, shape, strides, 0, room, 9);
          reduce_boxes(next.view, const_terms, ReduceOp::sum, next_bytes, {}, true);
          EXPECT_EQ(next.bytes, out.bytes);
        }
        visit(dtype, [&]<class T>(std::type_identity<T>) { expect_defined<T>(out.view, terms, ReduceOp::sum); });
      }
    }
  }
}

TEST_P(Reduce, IntoOneOfItsTermsUnaligned) {
  const DType dtype = GetParam();
  for (const Dims& strides : {Dims{50, 1}, Dims{60, 1}, Dims{1, 60}}) {
    for (size_t n : {1, 2, 3, 5, 11}) {
      for (size_t target : {size_t{0}, n / 2, n - 1}) {
        for (int64_t total_bytes : {int64_t{0}, kNearBytes, kStreamedSum}) {
          std::vector<std::vector<std::byte>> memory, before;
          std::vector<View> terms;
          for (size_t k = 0; k < n; ++k) {
            std::vector<std::byte> bytes(1, std::byte{});
            const std::vector<std::byte> values = random_terms(dtype, 60 * 60, static_cast<unsigned>(k + 1));
            bytes.insert(bytes.end(), values.begin(), values.end());
            memory.push_back(bytes);
          }
          before = memory;
          std::vector<ConstView> const_terms;
          for (size_t k = 0; k < n; ++k) {
            const_terms.push_back({memory[k].data() + 1, dtype, {50, 50}, strides});
            terms.push_back({before[k].data() + 1, dtype, {50, 50}, strides});
          }
          const View dst{memory[target].data() + 1, dtype, {50, 50}, strides};
          reduce_boxes(dst, const_terms, ReduceOp::sum, total_bytes);
          visit(dtype, [&]<class T>(std::type_identity<T>) { expect_defined<T>(dst, terms, ReduceOp::sum); });
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Reduce,
                         testing::Values(DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2,
                                         DType::i64, DType::i32, DType::i16, DType::i8, DType::u8, DType::boolean,
                                         DType::c64, DType::c128),
                         [](const auto& test) { return std::string(name(test.param)); });

// Some cases by hand ----------------------------------------------------------------------------------------------------

template <class T>
std::vector<T> reduced(Reduction reduction, const std::vector<std::vector<T>>& terms) {
  std::vector<T> out(terms[0].size());
  const Dims shape{static_cast<int64_t>(out.size())};
  std::vector<ConstView> views;
  for (const auto& term : terms) {
    views.push_back({reinterpret_cast<const std::byte*>(term.data()), dtype_of<T>(), shape, {1}});
  }
  reduce_boxes({reinterpret_cast<std::byte*>(out.data()), dtype_of<T>(), shape, {1}}, views, reduction);
  return out;
}

TEST(ReduceByHand, IntegersWrap) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduced<int64_t>(ReduceOp::sum, {{kMax}, {1}}), std::vector<int64_t>{-kMax - 1});
  EXPECT_EQ(reduced<int64_t>(ReduceOp::prod, {{kMax}, {kMax}}), std::vector<int64_t>{1});
  EXPECT_EQ(reduced<int8_t>(ReduceOp::sum, {{127}, {127}, {3}}), std::vector<int8_t>{1});
  EXPECT_EQ(reduced<uint8_t>(ReduceOp::prod, {{255}, {255}}), std::vector<uint8_t>{1});
  EXPECT_EQ(reduced<int16_t>(ReduceOp::prod, {{-32768}, {-1}}), std::vector<int16_t>{-32768});
}

TEST(ReduceByHand, ShortFloatsRoundOnce) {
  // In float16 alone 2048 + 1 would stay 2048, twice.
  const auto sum = reduced<Half>(ReduceOp::sum, {{Half(2048)}, {Half(1)}, {Half(1)}});
  EXPECT_EQ(float(sum[0]), 2050.0f);
  const auto average = reduced<Half>(ReduceOp::avg, {{Half(60000)}, {Half(60000)}});
  EXPECT_EQ(float(average[0]), 60000.0f);
}

TEST(ReduceByHand, MinAndMaxPassNanOnWhereverItIs) {
  const float nan = std::nanf("");
  for (size_t length : {1u, 5u, 16u, 37u}) {
    std::vector<float> one(length, 1.0f), two(length, 2.0f), gone(length, nan);
    for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (float value : reduced<float>(op, {gone, one, two})) EXPECT_TRUE(std::isnan(value));
      for (float value : reduced<float>(op, {one, gone, two})) EXPECT_TRUE(std::isnan(value));
      for (float value : reduced<float>(op, {one, two, gone})) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(ReduceByHand, AmongEqualZerosTheFirstStays) {
  for (size_t length : {1u, 3u, 16u, 35u}) {
    const std::vector<float> plus(length, 0.0f), minus(length, -0.0f);
    for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (float value : reduced<float>(op, {plus, minus})) EXPECT_FALSE(std::signbit(value));
      for (float value : reduced<float>(op, {minus, plus})) EXPECT_TRUE(std::signbit(value));
    }
  }
}

TEST(ReduceByHand, AnyByteButZeroIsTrue) {
  const std::vector<uint8_t> a{0, 2, 0, 255}, b{0, 0, 4, 1};
  const auto reduce_bools = [&](ReduceOp op) {
    std::vector<uint8_t> out(4);
    const ConstView terms[] = {{reinterpret_cast<const std::byte*>(a.data()), DType::boolean, {4}, {1}},
                               {reinterpret_cast<const std::byte*>(b.data()), DType::boolean, {4}, {1}}};
    reduce_boxes({reinterpret_cast<std::byte*>(out.data()), DType::boolean, {4}, {1}}, terms, op);
    return out;
  };
  EXPECT_EQ(reduce_bools(ReduceOp::sum), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(reduce_bools(ReduceOp::prod), (std::vector<uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(reduce_bools(ReduceOp::bit_xor), (std::vector<uint8_t>{0, 1, 1, 0}));
}

TEST(ReduceByHand, AThousandTerms) {
  std::vector<std::vector<float>> terms;
  std::minstd_rand random(3);
  for (int k = 0; k < 1000; ++k) terms.push_back({std::uniform_real_distribution<float>(-1, 1)(random), 1.0f});
  std::vector<float> column;
  for (const auto& term : terms) column.push_back(term[0]);
  const auto sum = reduced<float>(ReduceOp::sum, terms);
  EXPECT_EQ(sum[0], tree<float>(ReduceOp::sum, column));
  EXPECT_EQ(sum[1], 1000.0f);
  EXPECT_EQ(reduced<float>(ReduceOp::avg, terms)[1], 1.0f);
}

TEST(ReduceByHand, WhatIsCombinedFirstChangesNoBit) {
  std::vector<std::vector<float>> terms;
  std::minstd_rand random(5);
  for (int k = 0; k < 7; ++k) {
    terms.emplace_back(100);
    for (float& value : terms.back()) value = std::uniform_real_distribution<float>(-1, 1)(random);
  }
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    const auto parts = in_parts(op, DType::f32, 7);
    ASSERT_TRUE(parts);
    const auto a = reduced<float>(parts->first, {terms.begin(), terms.begin() + 4});
    const auto b = reduced<float>(parts->first, {terms.begin() + 4, terms.end()});
    EXPECT_EQ(reduced<float>(parts->last, {a, b}), reduced<float>(op, terms)) << name(op);
  }
  EXPECT_FALSE(in_parts({ReduceOp::premul_sum, 2}, DType::f32, 7));
  EXPECT_FALSE(in_parts(ReduceOp::sum, DType::bf16, 7));
}

TEST(ReduceByHand, ZeroDimensions) {
  const double a = 1.5, b = 2.25;
  double out = 0;
  const ConstView terms[] = {{reinterpret_cast<const std::byte*>(&a), DType::f64, {}, {}},
                             {reinterpret_cast<const std::byte*>(&b), DType::f64, {}, {}}};
  reduce_boxes({reinterpret_cast<std::byte*>(&out), DType::f64, {}, {}}, terms, ReduceOp::sum);
  EXPECT_EQ(out, 3.75);
}

}  // namespace
}  // namespace tessera
