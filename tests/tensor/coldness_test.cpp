#include "tensor/coldness.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// So many that nobody has. Addresses are all that is looked at.
std::vector<const void*> new_blocks(size_t count) {
  static uintptr_t next = uintptr_t{7} << 40;
  std::vector<const void*> blocks;
  for (; blocks.size() < count; next += kMiB) blocks.push_back(reinterpret_cast<const void*>(next));
  return blocks;
}

// Ten of them are more than the distance, seven are less.
int64_t block_bytes() { return static_cast<int64_t>(cold_distance()) / 8; }

TEST(Coldness, ABlockIsColdOnceMuchWasHandedOutSince) {
  const auto blocks = new_blocks(10);
  for (const void* block : blocks) {
    note_block(block, block_bytes());
    EXPECT_FALSE(take_cold(block)) << "it was never handed out before";
  }
  note_block(blocks[9], block_bytes());
  EXPECT_FALSE(take_cold(blocks[9])) << "it was just handed out";
  note_block(blocks[0], block_bytes());
  EXPECT_TRUE(take_cold(blocks[0]));
  EXPECT_FALSE(take_cold(blocks[0])) << "it was written to since";
}

TEST(Coldness, FewBlocksInTurnAreNotCold) {
  const auto blocks = new_blocks(7);
  for (size_t i = 0; i < 40; ++i) {
    note_block(blocks[i % 7], block_bytes());
    EXPECT_FALSE(take_cold(blocks[i % 7]));
  }
}

TEST(Coldness, WhatWasNotHandedOutIsNotCold) {
  const std::vector<std::byte> memory(1000);
  EXPECT_FALSE(take_cold(memory.data()));
  EXPECT_FALSE(take_cold(nullptr));
}

}  // namespace
}  // namespace tessera
