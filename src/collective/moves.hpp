// From an arranged operation to one rank's moves.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tessera/comm.hpp>

#include "collective/arrange.hpp"
#include "collective/schedule.hpp"
#include "comm/transport.hpp"

namespace tessera {

// Up to here one round, in which every rank reads every term whole, beats two rounds and the wait between them.
inline constexpr int64_t kOneRoundBytes = 8192;

// Moves that follow one another; kept between calls for their capacity.
class Rounds {
 public:
  // Round `number`; a new one where there was none.
  Move& operator[](size_t number);
  // When the last one is appended: notes in which rounds tensors are sent that are sent in no other, and returns all().
  std::span<const Move> finish();
  std::span<const Move> all() const { return std::span(moves_).first(count_); }
  void clear();

 private:
  std::vector<Move> moves_;
  size_t count_ = 0;
};

// How an operation is run between hosts: settled before its moves are worked out, alike on all ranks.
struct Choice {
  std::vector<Schedule> gather;  // of what is gathered, or of the second half of an all_reduce; none: directly
  std::vector<Schedule> sum;     // of what is summed up; of an all_reduce as a whole
  bool in_one_round = false;     // an all_reduce
  Dims scratch;                  // of what such a sum keeps in between, on this rank
  bool has_scratch = false;
  bool sums_in_rounds() const;  // as SumMoves does it
  std::string text() const;     // empty where there was nothing to choose
};

// `network`: what owners send over; null: where readers pull, or nothing has to be moved, all is direct.
Choice choose(const Arranged& arranged, int rank, const Network* network);

// The tensors of an operation, by number: alike on all ranks.
struct Numbers {
  int x = 0;        // its outputs follow
  int scratch = 0;  // where the choice has one
};

// Appends `rank`'s part of the operation to the rounds. `mine` are this rank's
// tensors: what already lies in its place is not moved.
void append_moves(const Arranged& arranged, const Choice& choice, const Network* network, int rank, Numbers numbers,
                  std::span<const Tensor> mine, Rounds& rounds);

// Adds what `rank` moves.
void count(const Move& move, int rank, std::span<const Tensor> mine, Stats& counted);

}  // namespace tessera
