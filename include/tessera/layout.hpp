// Layout: which box of a global tensor each rank of a mesh holds, and whether that is the value or a term of a pending
// reduction.
#pragma once

#include <tessera/dims.hpp>
#include <tessera/mesh.hpp>
#include <tessera/reduction.hpp>

namespace tessera {

// What the coordinates along one mesh axis hold.
struct Placement {
  enum class Kind : uint8_t { shard, replicate, partial, at };
  Kind kind = Kind::replicate;
  int64_t dim = 0;              // shard; -1 is the last
  Sizes sizes = {};             // shard: ragged; empty: as torch.chunk cuts
  ReduceOp op = ReduceOp::sum;  // partial
  int64_t index = 0;            // at

  friend bool operator==(const Placement&, const Placement&) = default;
};
// The chunk of `dim` that torch.chunk gives each coordinate: pieces of ceil(extent / n), the last ones smaller or empty.
// Where several axes cut one dimension, each cuts again what the axes before it left.
Placement Shard(int64_t dim);
// sizes[i] of `dim` for coordinate i, zero included. Where several axes cut one dimension raggedly, each has the same list:
// one size for each of their pieces, row-major over them.
Placement Shard(int64_t dim, Sizes sizes);
Placement Replicate();                           // the whole, everywhere
Placement Partial(ReduceOp op = ReduceOp::sum);  // a term of a pending reduction, everywhere
Placement At(int64_t index);                     // the whole at one coordinate, nothing elsewhere

// Whose loss is differentiated. local: the sum of what every rank computes. global: what is replicated counts once.
enum class Convention : uint8_t { local, global };

// A value; copies are cheap. Every rank's part is one box. Local throughout. Thread safety: as a const std::vector.
class Layout {
 public:
  // How one dimension is cut: by which axes, outermost first, and into which sizes.
  struct Cut {
    int64_t dim = 0;
    std::vector<size_t> axes;
    Sizes sizes;                   // one for each piece, row-major over the axes; empty: as torch.chunk cuts
    std::vector<int64_t> offsets;  // of the sizes: where each piece begins, and where the last ends
    friend bool operator==(const Cut&, const Cut&) = default;
  };

  Layout();  // everything on rank 0
  // One placement for each axis. `order` names axes that cut one dimension, outermost first; by default they cut from left
  // to right. Throws ShapeError: a wrong number of placements, an index or sizes that do not fit the mesh, an order that
  // names an axis which cuts nothing or leaves one out, two different pending operations.
  Layout(Mesh mesh, std::vector<Placement> placements, const std::vector<std::string>& order = {});
  // "S0,R", "S1[3,0,5]", "P(sum),At(0)"; an order or a ragged cut by several axes behind an @: "S0@tp,dp",
  // "S0[1,2,4,1]@dp,tp". What has an @ takes the axes it names; the others take what is left, from left to right.
  static Layout parse(const Mesh& mesh, std::string_view text);

  const Mesh& mesh() const;  // without its communicators, which belong to one rank; layouts and plans are shared
  const std::vector<Placement>& placements() const;
  const std::vector<Cut>& cuts() const;  // one for each dimension that is cut; a negative one as it was written
  std::vector<size_t> axes(Placement::Kind kind) const;
  std::optional<ReduceOp> pending() const;  // none: nothing is pending
  bool is_replicated() const;               // on every axis

  // The same with dimensions counted from the front. Throws ShapeError where it does not fit a tensor of that shape: a
  // dimension out of range, sizes that do not add up to it.
  Layout resolved(const Dims& shape) const;
  // The part of one place of the mesh, which may be empty; none where At gives it nothing. The layout is resolved for that
  // shape, or is checked again. Cost: of the axes.
  std::optional<Box> box(const Dims& shape, const Dims& coordinate) const;
  std::optional<Box> box(const Dims& shape, int rank) const;  // none for a rank outside, too
  // Whether At gives that place anything.
  bool holds(const Dims& coordinate) const;

  // The layout of the gradient. local: Replicate and Partial(sum) change places. global: both become Replicate.
  // Partial(avg) is as Partial(sum) (Plan::adjoint() scales). Throws Error for operations with no linear adjoint.
  Layout dual(Convention convention = Convention::local) const;

  // The same mesh and the same placements in the same order; S0 and S0[2,2] differ even where they give the same boxes.
  friend bool operator==(const Layout& a, const Layout& b);

 private:
  struct State;
  explicit Layout(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// As parse() reads them.
std::string to_string(const Placement& placement);
std::string to_string(const Layout& layout);
Placement parse_placement(std::string_view text);
size_t hash_of(const Layout& layout);

}  // namespace tessera

template <>
struct std::hash<tessera::Layout> {
  size_t operator()(const tessera::Layout& layout) const { return tessera::hash_of(layout); }
};

template <>
struct fmt::formatter<tessera::Placement> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const tessera::Placement& placement, Context& context) const {
    return fmt::formatter<std::string_view>::format(tessera::to_string(placement), context);
  }
};

template <>
struct fmt::formatter<tessera::Layout> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const tessera::Layout& layout, Context& context) const {
    return fmt::formatter<std::string_view>::format(tessera::to_string(layout), context);
  }
};
