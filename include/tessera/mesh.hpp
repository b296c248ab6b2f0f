// Mesh: an n-dimensional array of ranks with named axes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/dims.hpp>
#include <tessera/site.hpp>

namespace tessera {

class Comm;
namespace detail {
class MeshComms;
}

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// A value: copies share their contents and are cheap. It names ranks and talks to none, so a plan needs no communicator.
// Axes number from 0, left to right; ranks lie row-major, the last axis fastest. Local throughout. Thread safety: as a
// const std::vector.
class Mesh {
 public:
  Mesh();  // no axis, and rank 0 alone
  // The ranks 0 to n - 1, or those given, row-major. Throws ShapeError: an axis with no name, a name twice, a name that
  // reads as a placement, a size below 1, more than kMaxDims axes, a wrong number of ranks, a negative rank or one twice.
  Mesh(std::vector<MeshAxis> axes);
  Mesh(std::vector<MeshAxis> axes, std::vector<int> ranks);
  // The same with communicators along its axes. Collective over `comm`, whose ranks it names; ranks of `comm` outside the
  // mesh call it too, and have no communicator then. Cost: a Comm::split() for each axis.
  static Mesh over(Comm& comm, std::vector<MeshAxis> axes, std::vector<int> ranks = {},
                   const Site& site = Site::current());
  // "dp=2,tp=4", and other ranks than 0 to n - 1 behind an @: "tp=4@8-11", "tp=4@0,2,4,6". Throws ShapeError.
  static Mesh parse(std::string_view text);

  const std::vector<MeshAxis>& axes() const;
  size_t ndim() const { return axes().size(); }
  int64_t size() const;  // how many ranks
  int64_t size(size_t axis) const { return axes()[axis].size; }
  size_t axis(std::string_view name) const;  // its number; throws ShapeError, naming those there are
  std::vector<int> ranks() const;            // row-major

  // Where a rank is; none: it is not in the mesh. Constant time.
  std::optional<Dims> coordinate(int rank) const;
  bool contains(int rank) const { return coordinate(rank).has_value(); }
  // The rank at a coordinate. Throws ShapeError where there is none. Constant time.
  int rank_at(const Dims& coordinate) const;
  // The number of a coordinate in row-major order, and back.
  int64_t index_of(const Dims& coordinate) const;
  Dims coordinate_of(int64_t index) const;

  // The ranks that differ from `rank` on these axes only, as a mesh of those axes in the order given. Throws ShapeError
  // for an unknown axis, one named twice, or a rank outside.
  Mesh submesh(const std::vector<std::string>& axes, int rank) const;

  // comm("dp"): of the ranks that differ from this one on that axis only, in its order; undefined on a rank outside.
  // comm("dp", "tp"): on several axes, row-major in the order given; collective over the mesh's communicator the first
  // time. Throws Error where the mesh was not made over a communicator, ShapeError for an unknown axis.
  template <class... Names>
  Comm& comm(std::string_view axis, const Names&... more) const {
    return comm_along({std::string(axis), std::string(more)...});
  }
  Comm& comm_along(const std::vector<std::string>& axes, const Site& site = Site::current()) const;

  // Made over a communicator whose rank here is not in it: this one takes no part.
  bool is_outside() const { return outside_; }
  // The same ranks and axes, for planning only.
  Mesh without_comms() const {
    Mesh mesh = *this;
    mesh.comms_ = nullptr;
    return mesh;
  }

  // The same axes, by name, size and order, of the same ranks.
  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  struct State;
  std::shared_ptr<const State> state_;
  std::shared_ptr<detail::MeshComms> comms_;  // null: it is for planning
  bool outside_ = false;
};

// As parse() reads it.
std::string to_string(const Mesh& mesh);
size_t hash_of(const Mesh& mesh);

}  // namespace tessera

template <>
struct std::hash<tessera::Mesh> {
  size_t operator()(const tessera::Mesh& mesh) const { return tessera::hash_of(mesh); }
};

template <>
struct fmt::formatter<tessera::Mesh> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const tessera::Mesh& mesh, Context& context) const {
    return fmt::formatter<std::string_view>::format(tessera::to_string(mesh), context);
  }
};
