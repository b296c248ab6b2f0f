// The ways to cut each dimension that a search meets, each worked out once.
#pragma once

#include <array>
#include <memory_resource>
#include <span>
#include <vector>

#include <tessera/layout.hpp>

#include "layout/cutting.hpp"

namespace tessera {

// Axes that have more than one rank. The layouts that a search meets grow with their factorial: of five axes it takes
// half a second, of six ten.
inline constexpr size_t kMaxPlanAxes = 5;

// A dimension cut by a sequence of axes. All of them are a tree: the list without its last axis is its parent.
struct CutList {
  explicit CutList(std::pmr::memory_resource* memory)
      : axes(memory), offsets(memory), places(memory), groups(memory), distinct(memory) {}

  size_t dim = 0;
  int ragged = 0;  // 1: the source's own cut, 2: the target's
  std::pmr::vector<uint8_t> axes;
  int parent = -1;                           // of ragged ones the dimension uncut
  std::array<int, kMaxPlanAxes> child = {};  // by axis; 0: not met yet
  std::pmr::vector<int64_t> offsets;         // of its pieces
  std::pmr::vector<int32_t> places;          // a coordinate on each of the axes, for each piece
  double largest = 0;                        // piece
  size_t fullest = 0;                        // its number, the first where several are as large
  bool even = true;                          // all pieces are as large

  size_t depth() const { return axes.size(); }
  size_t pieces() const { return offsets.size() - 1; }
  double piece(size_t number) const { return static_cast<double>(offsets[number + 1] - offsets[number]); }

  // What the groups along the last `tail` axes hold together and the least that one of them holds, of those groups that
  // may be the slowest: no other holds more and has a smaller part.
  struct Group {
    double whole, least;
  };
  std::pmr::vector<std::pmr::vector<Group>> groups;  // by tail; empty: not worked out yet
  std::pmr::vector<std::pmr::vector<size_t>>
      distinct;  // by tail: a number for each length of the part that the tail cuts
};

class CutLists {
 public:
  // All of them lie in that memory, which must not need to be given back piece by piece.
  CutLists(const Dims& shape, std::vector<int64_t> axis_sizes, std::pmr::memory_resource* memory);

  int uncut(size_t dim) const { return static_cast<int>(dim); }
  int add_ragged(size_t dim, int which, std::span<const uint8_t> axes, std::span<const int64_t> offsets);
  int chunked(size_t dim, std::span<const uint8_t> axes);
  int extended(int list, uint8_t axis);  // cut again
  int without(int list, size_t tail) const;

  const CutList& operator[](int list) const { return *lists_[static_cast<size_t>(list)]; }
  size_t width(int list, size_t tail) const;  // pieces of each group along the last `tail` axes
  const std::pmr::vector<CutList::Group>& groups(int list, size_t tail);
  const std::pmr::vector<size_t>& distinct(int list, size_t tail);

 private:
  CutList& add();
  int last() const { return static_cast<int>(lists_.size()) - 1; }
  void finish(CutList& list) const;

  std::vector<int64_t> sizes_;
  std::pmr::vector<CutList*> lists_;
};

}  // namespace tessera
