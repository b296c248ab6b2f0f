// What the pieces of two cuts of one dimension share, added up by how far the places of their ranks agree.
#pragma once

#include <array>
#include <memory_resource>
#include <vector>

#include "plan/cut_list.hpp"

namespace tessera {

// Of a rank that has a piece of the list `own`: the pieces of `other` that it meets. Entries stand by that piece, then by the
// rank's place on those axes that cut the dimension in `other` alone. An entry has two numbers for each set of axes on
// which the ranks of the pieces agree with it: how many pieces, and how much they share.
class ShareTable {
 public:
  std::array<size_t, kMaxPlanAxes> stride = {};     // of entries, by axis; 0: it makes no difference
  std::array<uint8_t, kMaxPlanAxes + 1> slot = {};  // where the numbers of a level stand in an entry

  struct Scratch {  // reused from table to table for its memory
    std::vector<size_t> key;
    std::vector<double> sums;
  };
  // Level i is where ranks agree on the i slowest axes, and on `agreed`. The lists, sizes and scratch outlive it; its own
  // memory need not be given back piece by piece.
  ShareTable(const CutList& own, const CutList& other, uint32_t agreed, const std::vector<int64_t>& sizes,
             const std::vector<uint8_t>& slow_first, Scratch& scratch, std::pmr::memory_resource* memory);

  bool is_constant() const { return is_constant_; }
  // Works out the entries of all pieces, or of the largest.
  void want_all();
  void want_fullest();
  const double* entries() const { return values_; }

 private:
  void work_out(size_t first_piece, size_t behind_piece);
  // For pieces that agree on nothing, on all axes, on some.
  void add_all(size_t column, size_t first_piece, size_t behind_piece);
  void add_own(size_t column, size_t first_piece, size_t behind_piece);
  void add_some(uint32_t set, size_t column, size_t first_piece, size_t behind_piece);
  template <class Fn>
  void for_each_meeting(size_t first_piece, size_t behind_piece, Fn&& fn) const;
  int64_t shared(size_t piece, size_t others) const;  // not above 0: nothing
  size_t here(size_t piece) const;

  const CutList &own_, &other_;
  const std::vector<int64_t>& sizes_;
  std::array<uint32_t, kMaxPlanAxes + 1> sets_ = {};
  size_t set_count_ = 0, width_ = 0;
  std::array<size_t, kMaxPlanAxes> weight_ = {};  // of an axis in the number of the other's piece
  std::pmr::vector<size_t> there_;                // what a place on the other's axes alone adds to that number
  Scratch& scratch_;
  double* values_ = nullptr;
  bool has_all_ = false, has_fullest_ = false;
  bool is_constant_ = false;
};

}  // namespace tessera
