#include "tensor/coldness.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Addresses are all that is looked at.
const void* block(uintptr_t number) { return reinterpret_cast<const void*>((uintptr_t{7} << 40) + number * kMiB); }

// Ten of them are more than the distance, seven are less.
int64_t block_bytes() { return static_cast<int64_t>(cold_distance()) / 8; }

TEST(Coldness, ABlockIsColdOnceMuchWasHandedOutSince) {
  for (uintptr_t i = 0; i < 10; ++i) {
    note_block(block(i), block_bytes());
    EXPECT_FALSE(take_cold(block(i))) << "it was never handed out before";
  }
  note_block(block(9), block_bytes());
  EXPECT_FALSE(take_cold(block(9))) << "it was just handed out";
  note_block(block(0), block_bytes());
  EXPECT_TRUE(take_cold(block(0)));
  EXPECT_FALSE(take_cold(block(0))) << "it was written to since";
}

TEST(Coldness, FewBlocksInTurnAreNotCold) {
  for (uintptr_t i = 0; i < 40; ++i) {
    note_block(block(100 + i % 7), block_bytes());
    EXPECT_FALSE(take_cold(block(100 + i % 7)));
  }
}

TEST(Coldness, WhatWasNotHandedOutIsNotCold) {
  const std::vector<std::byte> memory(1000);
  EXPECT_FALSE(take_cold(memory.data()));
  EXPECT_FALSE(take_cold(nullptr));
}

}  // namespace
}  // namespace tessera
