#include "tensor/coldness.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Addresses are all that is looked at.
const void* block(uintptr_t number) { return reinterpret_cast<const void*>((uintptr_t{7} << 40) + number * kMiB); }

TEST(Coldness, ABlockIsColdOnceEightMiBWereHandedOutSince) {
  for (uintptr_t i = 0; i < 16; ++i) {
    note_block(block(i), kMiB);
    EXPECT_FALSE(take_cold(block(i))) << "it was never handed out before";
  }
  note_block(block(15), kMiB);
  EXPECT_FALSE(take_cold(block(15))) << "it was just handed out";
  note_block(block(0), kMiB);
  EXPECT_TRUE(take_cold(block(0)));
  EXPECT_FALSE(take_cold(block(0))) << "it was written to since";
}

TEST(Coldness, FewBlocksInTurnAreNotCold) {
  for (uintptr_t i = 0; i < 40; ++i) {
    note_block(block(100 + i % 7), kMiB);
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
