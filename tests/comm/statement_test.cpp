// Records as words and back, and what damage can do to them.
#include "comm/statement.hpp"

#include <cstring>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "comm/agreement.hpp"
#include "support/failures.hpp"

namespace tessera::test {
namespace {

using rc::gen::arbitrary;
using rc::gen::inRange;

std::vector<int64_t> words_of(const Record& record) {
  std::vector<int64_t> words;
  encode(record, words);
  return words;
}

Announced any_tensor() {
  Announced tensor;
  tensor.dtype = static_cast<DType>(*inRange(0, kDTypeCount));
  const auto ndim = static_cast<size_t>(*inRange(0, kMaxDims + 1));
  tensor.shape = Dims::filled(ndim, 0);
  tensor.strides = Dims::filled(ndim, 0);
  for (int64_t& extent : tensor.shape) extent = *arbitrary<int64_t>();
  for (int64_t& stride : tensor.strides) stride = *arbitrary<int64_t>();
  for (uint64_t& word : tensor.where.words) word = *arbitrary<uint64_t>();
  return tensor;
}

Statement any_statement() {
  Statement s;
  s.op = static_cast<OpCode>(*inRange(0, static_cast<int>(OpCode::recv) + 1));
  s.dim = *arbitrary<int64_t>();
  s.split_dim = *arbitrary<int64_t>();
  s.root = *arbitrary<int64_t>();
  s.reduction = {static_cast<ReduceOp>(*inRange(0, static_cast<int>(ReduceOp::premul_sum) + 1)), *arbitrary<double>()};
  s.scale = *arbitrary<double>();
  for (int64_t& value : s.extra) value = *arbitrary<int64_t>();
  s.has_x = *arbitrary<bool>();
  const int outs = *inRange(0, 4);
  for (int i = 0; i < outs + (s.has_x ? 1 : 0); ++i) s.tensors.push_back(any_tensor());
  for (int i = 0; i < outs; ++i) s.in_place.push_back(*arbitrary<int64_t>());
  s.sizes = *arbitrary<Sizes>();
  s.recv_sizes = *arbitrary<Sizes>();
  return s;
}

Record any_record() {
  Record record;
  record.call = *arbitrary<int64_t>();
  record.problem = static_cast<ErrorKind>(*inRange(0, static_cast<int>(ErrorKind::other) + 1));
  record.problem_text = *arbitrary<std::string>();
  record.file = *arbitrary<std::string>();
  record.line = *arbitrary<int64_t>();
  for (int i = *inRange(0, 4); i > 0; --i) record.statements.push_back(any_statement());
  return record;
}

void expect_same(const Record& a, const Record& b) {
  RC_ASSERT(a.call == b.call);
  RC_ASSERT(a.problem == b.problem);
  RC_ASSERT(a.problem_text == b.problem_text);
  RC_ASSERT(a.site() == b.site());
  RC_ASSERT(a.statements.size() == b.statements.size());
  for (size_t i = 0; i < a.statements.size(); ++i) {
    const Statement &x = a.statements[i], &y = b.statements[i];
    RC_ASSERT(x.op == y.op);
    RC_ASSERT(x.dim == y.dim && x.split_dim == y.split_dim && x.root == y.root);
    RC_ASSERT(x.has_x == y.has_x);
    RC_ASSERT(x.sizes == y.sizes);
    RC_ASSERT(x.recv_sizes == y.recv_sizes);
    RC_ASSERT(x.in_place == y.in_place);
    RC_ASSERT(x.tensors.size() == y.tensors.size());
    for (size_t t = 0; t < x.tensors.size(); ++t) {
      RC_ASSERT(x.tensors[t].dtype == y.tensors[t].dtype);
      RC_ASSERT(x.tensors[t].shape == y.tensors[t].shape);
      RC_ASSERT(x.tensors[t].strides == y.tensors[t].strides);
    }
  }
  RC_ASSERT(words_of(a) == words_of(b));  // the rest, and doubles by their bits
}

TEST(Statement, ComesBackAsItWas) {
  EXPECT_TRUE(rc::check("decode is the inverse of encode, whatever the target held before", [] {
    const Record record = any_record();
    Record decoded = any_record();
    const auto words = words_of(record);
    decode(std::as_bytes(std::span(words)), decoded);
    expect_same(record, decoded);
  }));
}

// An exact copy on the heap, so that AddressSanitizer sees one byte too many.
Thrown decode_copy(std::span<const std::byte> bytes, Record& record) {
  const std::unique_ptr<std::byte[]> exact(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), exact.get());
  return thrown_by([&] { decode({exact.get(), bytes.size()}, record); });
}

Record typical() {
  const auto tensor = [](const Dims& shape) { return Announced{DType::f32, shape, row_major(shape), {{0x1234, 0}}}; };
  Record record;
  record.call = 17;
  record.file = "train.cpp";
  record.line = 41;
  Statement gather;
  gather.op = OpCode::all_gather;
  gather.has_x = true;
  gather.tensors = {tensor({3, 128}), tensor({12, 128})};
  gather.in_place = {INT64_MIN};
  gather.sizes = {3, 3, 3, 3};
  Statement exchange;
  exchange.op = OpCode::all_to_all_v;
  exchange.has_x = true;
  exchange.tensors = {tensor({4})};
  exchange.sizes = {1, 1, 1, 1};
  exchange.recv_sizes = {1, 1, 1, 1};
  Statement broadcast;
  broadcast.op = OpCode::broadcast;
  record.statements = {gather, exchange, broadcast};
  return record;
}

TEST(Statement, CutShortIsAnError) {
  Record record = typical();
  record.problem_text = "a text that is no multiple of eight bytes";
  const auto words = words_of(record);
  const auto bytes = std::as_bytes(std::span(words));
  Record decoded;
  for (size_t length = 0; length < bytes.size(); ++length) {
    const Thrown thrown = decode_copy(bytes.first(length), decoded);
    ASSERT_EQ(thrown.type, "Error") << length << " of " << bytes.size() << " bytes";
    ASSERT_EQ(thrown.text, "a peer's record makes no sense: it is damaged");
  }
  EXPECT_EQ(decode_copy(bytes, decoded).type, "nothing");
}

TEST(Statement, OfNoiseIsAnErrorOrARecord) {
  std::mt19937_64 random(20240601);
  Record decoded;
  for (int i = 0; i < 20000 * soak(); ++i) {
    std::vector<int64_t> words(random() % 60);
    for (int64_t& word : words)
      word = random() % 2 == 0 ? static_cast<int64_t>(random()) : static_cast<int64_t>(random() % 9);
    const Thrown thrown = decode_copy(std::as_bytes(std::span(words)), decoded);
    ASSERT_TRUE(thrown.type == "Error" || thrown.type == "nothing") << thrown;
  }
}

// A damaged record is held against a sound one, as a rank does with its own: an error or not, but nothing worse.
TEST(Statement, DamagedIsAnErrorOrARecord) {
  std::mt19937_64 random(7);
  const Record sound = typical();
  const auto words = words_of(sound);
  const int64_t tempting[] = {
      0, 1, 2, 11, 12, 13, 14, 255, -1, INT64_MAX, INT64_MIN, int64_t{1} << 32, int64_t{1} << 61};
  const std::string comm = "dp";
  int decoded_all = 0;
  for (int i = 0; i < 100000 * soak(); ++i) {
    auto damaged = words;
    for (int hits = 1 + static_cast<int>(random() % 3); hits > 0; --hits) {
      int64_t& word = damaged[random() % damaged.size()];
      if (random() % 2 == 0) word = tempting[random() % std::size(tempting)];
      else word ^= int64_t{1} << (random() % 63);
    }
    auto bytes = std::as_bytes(std::span(damaged));
    if (random() % 4 == 0) bytes = bytes.first(random() % bytes.size());
    Record record;
    const Thrown thrown = decode_copy(bytes, record);
    ASSERT_TRUE(thrown.type == "Error" || thrown.type == "nothing") << thrown;
    if (thrown.type != "nothing") continue;
    ++decoded_all;
    const Thrown compared = thrown_by([&] { check_agreement({17, comm, 2}, {sound, record}); });
    ASSERT_NE(compared.type, "std::exception") << compared;
  }
  EXPECT_GT(decoded_all, 0);
}

TEST(RankList, NamesRanksBriefly) {
  EXPECT_EQ(rank_list({0}), "0");
  EXPECT_EQ(rank_list({0, 1}), "0,1");
  EXPECT_EQ(rank_list({0, 1, 2}), "0-2");
  EXPECT_EQ(rank_list({0, 2, 3, 4, 6, 7}), "0,2-4,6,7");
  EXPECT_EQ(rank_list({}), "");
}

}  // namespace
}  // namespace tessera::test
