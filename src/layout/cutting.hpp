// How one dimension is cut, in closed form: no table grows with the number of pieces.
#pragma once

#include <tessera/layout.hpp>

namespace tessera {

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// The pieces tile 0 to extent in the order of their numbers: row-major over the axes of the cut, outermost first. The cut
// outlives it.
class Cutting {
 public:
  explicit Cutting(int64_t extent) : extent_(extent) {}  // one piece
  Cutting(int64_t extent, const Mesh& mesh, const Layout::Cut& cut);

  int64_t pieces() const { return pieces_; }
  Interval piece(int64_t number) const;
  // From the first to behind the last of those that share something with an interval that is not empty. Empty ones may
  // lie between them.
  Interval meeting(Interval interval) const;
  // The number of the piece at a coordinate of the mesh, and the coordinates of a piece.
  int64_t number_at(const Dims& coordinate) const;
  void set_coordinate(int64_t number, Dims& coordinate) const;

 private:
  int64_t extent_;
  int64_t pieces_ = 1;
  const Layout::Cut* cut_ = nullptr;
  Dims levels_;  // sizes of the cut's axes
};

}  // namespace tessera
