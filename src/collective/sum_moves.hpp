// The moves of a sum between hosts that takes more rounds than one of single terms.
#pragma once

#include <optional>
#include <span>

#include "collective/folding.hpp"
#include "collective/mover.hpp"
#include "collective/moves.hpp"
#include "tensor/reduce.hpp"

namespace tessera {

// The first dimension that has something for everyone, else the longest.
size_t dim_to_cut(const Dims& shape, int ranks);

// What is summed up for whom: sizes along a dimension.
struct Summing {
  size_t dim = 0;
  Sizes sizes;
};
// The same for each of so many, or one more. The shape has a dimension.
Summing evenly(const Dims& shape, int parts);
std::optional<Summing> summing_of(const Arranged& arranged);

class SumMoves {
 public:
  // Of a schedule in logarithmic rounds, or of blocks, of what is combined in parts. Keeps references.
  SumMoves(const Arranged& arranged, const Schedule& schedule, const Hosts& hosts, int rank);

  Dims scratch() const;
  // Appends the rounds after which this rank has what it is to have. Where that is spread first: its even stretch, of an
  // all_reduce in the result, else at the beginning of the scratch. Returns how many they are.
  size_t append(Numbers numbers, std::span<const Tensor> mine, Rounds& rounds) const;

 private:
  // How a sum is cut for its way: along a dimension, and for whom.
  struct Cut {
    Folding::For whom;
    size_t dim;
    Sizes sizes;
  };
  static Cut cut_of(const Arranged& a, const Schedule& schedule, const Hosts& hosts);
  bool folds() const { return schedule_.block > 1; }
  bool is_for_all() const { return a_.op == OpCode::all_reduce; }
  int block() const { return rank_ / schedule_.block; }
  Box rows(Stretch stretch, int64_t shift = 0) const;
  // What stands before all else in a rank's scratch.
  int64_t rows_before(int rank) const;
  std::vector<int> kept_classes() const;
  // Where the sum of a piece goes on this rank.
  Receive sum_of(size_t piece, size_t terms, Numbers numbers) const;
  void fold(Numbers numbers, Mover round) const;
  void exchange(Numbers numbers, Mover round) const;
  void pair_up(int number, Numbers numbers, Mover round) const;
  void share(Numbers numbers, Mover round) const;

  const Arranged& a_;
  const Schedule& schedule_;
  const Hosts& hosts_;
  const int rank_, host_;
  const Cut cut_;
  const Folding folding_;
  const SumRounds pairs_;  // of blocks
  const InParts parts_;
};

}  // namespace tessera
