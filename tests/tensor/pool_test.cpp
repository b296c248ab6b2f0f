#include <tessera/pool.hpp>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/tensor.hpp>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Other tests of this process may hold tensors, so figures are compared with those before.
class Pool : public testing::Test {
 protected:
  void SetUp() override { pool::trim(); }
  void TearDown() override { pool::trim(); }
};

void expect_within_limit() {
  const pool::Usage u = pool::usage();
  EXPECT_LE(u.live_bytes + u.cached_bytes, 2 * u.peak_bytes);
  EXPECT_GE(u.peak_bytes, u.live_bytes);
}

TEST_F(Pool, RecyclesABlock) {
  void* first = pool::allocate(kMiB).get();
  const int64_t fresh = pool::usage().fresh_blocks;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pool::allocate(kMiB).get(), first);
  EXPECT_EQ(pool::usage().fresh_blocks, fresh);
}

TEST_F(Pool, RecyclesForAboutTheSameSize) {
  void* first = pool::allocate(kMiB).get();
  EXPECT_EQ(pool::allocate(kMiB - kMiB / 10).get(), first);
  EXPECT_NE(pool::allocate(kMiB / 2).get(), first) << "a block twice as large would be a waste";
}

TEST_F(Pool, GivesOneBlockToOneOwner) {
  const auto a = pool::allocate(kMiB), b = pool::allocate(kMiB);
  EXPECT_NE(a.get(), b.get());
}

TEST_F(Pool, ServesTensors) {
  const auto* data = Tensor::empty(DType::f32, {256, 1024}).data();
  EXPECT_EQ(Tensor::empty(DType::i16, {1024, 512}).data(), data);
}

TEST_F(Pool, AlignsEveryBlock) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{100}, 64 * int64_t{1024}, kMiB, 5 * kMiB + 1}) {
    const auto block = pool::allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0u) << bytes;
    std::memset(block.get(), 1, static_cast<size_t>(bytes));
  }
  // What asks for huge pages starts at one.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pool::allocate(8 * kMiB).get()) % (2 * kMiB), 0u);
}

TEST_F(Pool, CountsWhatIsLiveAndKept) {
  const pool::Usage before = pool::usage();
  auto block = pool::allocate(4 * kMiB);
  EXPECT_EQ(pool::usage().live_bytes, before.live_bytes + 4 * kMiB);
  block.reset();
  EXPECT_EQ(pool::usage().live_bytes, before.live_bytes);
  EXPECT_EQ(pool::usage().cached_bytes, before.cached_bytes + 4 * kMiB);
  EXPECT_EQ(pool::usage().peak_bytes, before.live_bytes + 4 * kMiB);
}

TEST_F(Pool, KeepsAtMostTwiceThePeak) {
  // Ever larger blocks: none fits the next, and what is kept must not add up.
  for (int64_t mib = 1; mib <= 48; mib += mib / 2 + 1) {
    pool::allocate(mib * kMiB);
    expect_within_limit();
  }
  std::vector<std::shared_ptr<void>> held;
  for (int i = 0; i < 8; ++i) {
    held.push_back(pool::allocate((i % 3 + 1) * kMiB));
    expect_within_limit();
  }
  while (!held.empty()) {
    held.pop_back();
    expect_within_limit();
  }
}

TEST_F(Pool, TrimGivesBackWhatIsNotInUse) {
  const auto live = pool::allocate(kMiB);
  std::memset(live.get(), 7, static_cast<size_t>(kMiB));
  pool::allocate(3 * kMiB);
  EXPECT_GT(pool::usage().cached_bytes, 0);
  pool::trim();
  EXPECT_EQ(pool::usage().cached_bytes, 0);
  EXPECT_EQ(pool::usage().peak_bytes, pool::usage().live_bytes);
  EXPECT_EQ(static_cast<unsigned char*>(live.get())[kMiB - 1], 7);
}

TEST_F(Pool, SaysHowMuchItCouldNotGet) {
  const pool::Usage before = pool::usage();
  for (const int64_t bytes : {int64_t{1} << 60, std::numeric_limits<int64_t>::max()}) {
    try {
      pool::allocate(bytes);
      ADD_FAILURE() << "the system has no such memory";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cannot allocate"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(pool::usage().live_bytes, before.live_bytes);
  EXPECT_EQ(pool::usage().peak_bytes, before.peak_bytes) << "what was never in use must not raise the limit";
  EXPECT_THROW(Tensor::empty(DType::u8, {int64_t{1} << 60}), Error);
}

TEST_F(Pool, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const int64_t bytes = 64 * 1024 * ((t + i) % 5 + 1);
        const auto block = pool::allocate(bytes);
        auto* bytes_of = static_cast<unsigned char*>(block.get());
        bytes_of[0] = bytes_of[bytes - 1] = static_cast<unsigned char>(t);
        std::this_thread::yield();
        EXPECT_EQ(bytes_of[0], t);
        EXPECT_EQ(bytes_of[bytes - 1], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_within_limit();
}

}  // namespace
}  // namespace tessera
