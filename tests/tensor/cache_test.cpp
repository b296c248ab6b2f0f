#include "tensor/cache.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kLeast = int64_t{2} << 20;

TEST(Cache, TheLargestIsNoSmallerThanAnyThatTheKernelNames) {
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    std::string text;  // such as 32768K
    if (!(file >> text) || text.back() != 'K') continue;
    EXPECT_GE(last_level_cache_bytes(), std::atoll(text.c_str()) << 10) << text;
  }
}

// So that results that a program reads next are in the cache, and sums leave room for their terms.
TEST(Cache, SumsGoAroundItBeforeCopiesAndNeitherIfSmall) {
  EXPECT_GE(sum_stream_bytes(), kLeast);
  EXPECT_GE(copy_stream_bytes(), sum_stream_bytes());
  EXPECT_LE(copy_stream_bytes(), std::max(kLeast, last_level_cache_bytes()));
  EXPECT_LT(kNearBytes, sum_stream_bytes());
}

}  // namespace
}  // namespace tessera
