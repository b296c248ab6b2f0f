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
  Curve exchange = {};    // in an all-to-all and a direct exchange, in place of `transfer`; none: as that
  Curve scatter = {};  // the same where terms are combined: in a reduce-scatter, and in that half of an all-reduce too
  Curve all_reduce = {};  // of both halves of an all-reduce; none: `scatter` and `reduce`, then `transfer`

  const Curve& of_exchange() const { return exchange.knots.empty() ? transfer : exchange; }
  const Curve& of_scatter() const { return scatter.knots.empty() ? transfer : scatter; }
  friend bool operator==(const Link&, const Link&) = default;
};

struct Topology {
  struct Axis {
    std::string name;  // "*": of every axis that has no entry of its own name
    Link link;
    int64_t ranks = 0;  // of an axis of that size; 0: of any
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  double base_us = 0;             // of each collective
  double exchange_base_us = 0;    // of each all-to-all, and of each direct exchange
  Curve copy;                     // of what a rank copies of its own: an embed. A slice is a view, and free
  std::vector<Axis> axes;         // of the source's mesh
  std::vector<Axis> target_axes;  // of the target's where it is another one; none: as `axes`
  Link between;                   // from a rank of one mesh to a rank of another

  // PyTorch's model of NVLink and Ethernet: 87.7 GiB/s and 0.6 µs a hop, 0.22 of that and 2.7 µs for an axis that leaves a
  // host, 6.6 µs a collective, 1 µs more for an all-to-all.
  static Topology dtensor(const Mesh& mesh, int64_t devices_per_host = 8);
  static Topology dtensor(const Mesh& from, const Mesh& to, int64_t devices_per_host);

  // What `tessera calibrate` measured on this machine: the file $TESSERA_TOPOLOGY where that is set, else
  // $XDG_CONFIG_HOME/tessera/topology.json, else ~/.config/tessera/topology.json. It fits any mesh, because it has a link
  // called "*". Reads the file each time. Throws Error: there is none (it names the paths and the command), or it is none.
  static Topology calibrated();

  // As docs/planning.md has it; both ways without loss. Throws Error, naming the field, for what is no topology.
  static Topology from_json(const std::string& text);
  std::string to_json() const;

  // The links of a mesh's axes, in its order: by name, else by "*"; among several the one of as many ranks, else the one of
  // any, else the one whose number of ranks is nearest by ratio. Throws Error, naming the axis, where none is.
  std::vector<Link> links(const Mesh& mesh, bool target = false) const;
  // Throws Error, naming the field, for what is no time: negative or not a number, knots that do not ascend; and for what is
  // no number of ranks.
  void check() const;

  friend bool operator==(const Topology&, const Topology&) = default;
};
size_t hash_of(const Topology& topology);

}  // namespace tessera
