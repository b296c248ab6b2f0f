// From an arranged operation to one rank's moves.
#pragma once

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

// Appends `rank`'s part of the operation to the rounds. first_tensor is the
// number of the operation's x; its outputs follow. `mine` are this rank's
// tensors: what already lies in its place is not moved.
void append_moves(const Arranged& arranged, int rank, int first_tensor, std::span<const Tensor> mine, Rounds& rounds);

}  // namespace tessera
