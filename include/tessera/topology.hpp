// Topology: what moving bytes costs on each axis of a mesh. Data, to be read, checked and replaced.
#pragma once

#include <string>
#include <vector>

#include <tessera/mesh.hpp>

namespace tessera {

// Microseconds for a number of bytes: straight lines from (0, 0) through the knots, and on with the last slope.
struct Curve {
  struct Knot {
    double bytes = 0, us = 0;
    friend bool operator==(const Knot&, const Knot&) = default;
  };
  std::vector<Knot> knots;  // bytes ascend and are above 0; none: it costs nothing

  static Curve at(double bytes_per_second);
  double operator()(double bytes) const;
  friend bool operator==(const Curve&, const Curve&) = default;
};

// The way to the other ranks along one axis.
struct Link {
  double latency_us = 0;  // for each hop of a ring, and for each peer of an exchange
  Curve transfer;         // of the bytes through the busiest rank
  Curve reduce;           // what combining them costs besides
  friend bool operator==(const Link&, const Link&) = default;
};

struct Topology {
  struct Axis {
    std::string name;
    Link link;
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  double base_us = 0;             // of each collective
  double exchange_base_us = 0;    // of each all-to-all, and of each direct exchange
  Curve copy;                     // what a rank copies of its own: slice, embed
  std::vector<Axis> axes;         // of the source's mesh
  std::vector<Axis> target_axes;  // of the target's where it is another one; none: as `axes`
  Link between;                   // from a rank of one mesh to a rank of another

  // PyTorch's model of NVLink and Ethernet: 87.7 GiB/s and 0.6 µs a hop, 0.22 of that and 2.7 µs for an axis that leaves a
  // host, 6.6 µs a collective, 1 µs more for an all-to-all.
  static Topology dtensor(const Mesh& mesh, int64_t devices_per_host = 8);
  static Topology dtensor(const Mesh& from, const Mesh& to, int64_t devices_per_host);

  // The links of a mesh's axes, in its order. Throws Error, naming the axis, where one is missing.
  std::vector<Link> links(const Mesh& mesh, bool target = false) const;
  // Throws Error, naming the field, for what is no time: negative or not a number, knots that do not ascend.
  void check() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};
size_t hash_of(const Topology& topology);

}  // namespace tessera
