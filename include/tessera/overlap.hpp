// What two layouts of one tensor share, as one rank sees it: who sends which box to whom when a tensor goes from one to the
// other at once, with no step in between.
#pragma once

#include <tessera/layout.hpp>

namespace tessera {

// A box, in global coordinates and not empty, that goes from one rank to another, or stays.
struct Overlap {
  int rank = 0;      // the peer: of what is received the sender, of what is sent the receiver
  int64_t term = 0;  // of a pending reduction: which one of its terms(), row-major over the axes that are reduced
  Box box;
  friend bool operator==(const Overlap&, const Overlap&) = default;
};

// The direct move between two layouts, on one mesh or two, whose ranks may be the same, others, or some of both.
//
// What a rank receives and what it sends are mirror images, and a pair of ranks shares at most one box. Of replicas a rank
// takes itself; else, on one mesh, the one at its own coordinate where all coordinates need the same; else they take turns.
// Of what is pending it takes everybody's term; but an axis of one mesh on which the same operation is pending before and
// after stays as it is. Where an axis becomes pending, parts become terms: on one mesh a shard, or an At, stays as it is
// among the operation's identity (-0.0 for sum, 1 for prod, …); else the first coordinate along the axis gets the
// value and the others have the identity. An average has none: there every coordinate gets the value.
//
// Local, with no communication. Thread safety: as a const object.
class Exchange {
 public:
  // Throws ShapeError where a layout does not fit the shape.
  Exchange(const Layout& from, const Layout& to, const Dims& shape);

  const Dims& shape() const;
  const Layout& from() const;  // resolved for the shape
  const Layout& to() const;
  int64_t terms() const;  // of each box; 1: nothing is reduced
  // The axes of the source that are reduced, in the order of the mesh.
  const std::vector<size_t>& reduced_axes() const;

  // In the order of the source's pieces, row-major, and for each in the order of terms. What stays on the rank is among
  // both. Cost: of the rank's own neighbours, whatever the size of the mesh (empty pieces between them count).
  std::vector<Overlap> receives(int rank) const;
  // In the order of ranks.
  std::vector<Overlap> sends(int rank) const;
  // Whether what the rank receives leaves some of its part of the target, which is then the identity of the operation
  // that becomes pending.
  bool embeds(int rank) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tessera
