// From an arranged operation to one rank's moves.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "collective/arrange.hpp"
#include "comm/transport.hpp"

namespace tessera {

// Up to here one round, in which every rank reads every term whole, beats two rounds and the wait between them.
inline constexpr int64_t kOneRoundBytes = 8192;

// Moves that follow one another; kept between calls for their capacity.
class Rounds {
 public:
  // Round `number`; a new one where there was none.
  Move& operator[](size_t number);
  std::span<const Move> all() const { return std::span(moves_).first(count_); }
  void clear();

 private:
  std::vector<Move> moves_;
  size_t count_ = 0;
};

// A gather in two rounds, for where owners send: first each rank gets an even stretch of the whole, then all get that from
// it. So the time follows the total, where a rank that has most of it would send it to each of the others.
class SpreadGather {
 public:
  explicit SpreadGather(const Sizes& sizes);
  // Whether it makes up for the second round. The same on every rank.
  bool pays(int64_t row_bytes) const;

  struct Stretch {
    int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };
  Stretch own(int rank) const { return owns_[static_cast<size_t>(rank)]; }
  Stretch even(int rank) const { return evens_[static_cast<size_t>(rank)]; }
  // What one rank sends another in each of the rounds.
  Stretch first(int from, int to) const;
  std::array<Stretch, 2> second(int from, int to) const;

 private:
  std::vector<Stretch> owns_, evens_;
};

// Appends `rank`'s part of the operation to the rounds. first_tensor is the
// number of the operation's x; its outputs follow. `mine` are this rank's
// tensors: what already lies in its place is not moved.
// `owners_send`: as the transport says.
void append_moves(const Arranged& arranged, int rank, int first_tensor, std::span<const Tensor> mine, bool owners_send,
                  Rounds& rounds);

}  // namespace tessera
