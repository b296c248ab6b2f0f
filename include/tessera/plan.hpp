// plan(): the cheapest way from one layout to another, proven under a model of cost that the user can read.
#pragma once

#include <limits>
#include <optional>

#include <tessera/dtype.hpp>
#include <tessera/overlap.hpp>
#include <tessera/topology.hpp>

namespace tessera {

namespace detail {
struct Role;
}

enum class StepKind : uint8_t {
  slice,           // Replicate → Shard or At: local
  embed,           // anything → Partial: the own box among the operation's identity; local
  all_gather,      // Shard → Replicate
  all_to_all,      // Shard → Shard
  reduce_scatter,  // Partial → Shard
  all_reduce,      // Partial → Replicate
  broadcast,       // At → Replicate
  scatter,         // At → Shard
  gather,          // Shard → At
  reduce,          // Partial → At
  direct,          // anything → anything, each box straight to where it is needed; also to another mesh
};
std::string_view name(StepKind kind);

// One step. Whatever its kind, Exchange(before, after, shape) says which boxes go where and what is filled with an
// identity; the kind says how it was priced, and that nothing leaves the groups of ranks that differ on `axes` only (slice
// and embed: no rank). The layouts are resolved.
struct Step {
  StepKind kind = StepKind::slice;
  std::vector<size_t> axes;        // of the mesh, ascending; of a direct exchange on one mesh those whose placement
                                   // changes, between two meshes none
  std::vector<int64_t> from_dims;  // for each of the axes the dimension that it cuts before, and …
  std::vector<int64_t> to_dims;    // … after; -1: none
  Layout before, after;
  double cost_us = 0;
  int64_t bytes = 0;  // that the busiest rank receives or sends, by the schedule that is priced: of a collective a ring
  int64_t peak_bytes =
      0;  // input of the plan, input and output of the step, together, on the rank with most; of a large
          // all_reduce the sums between its halves in place of the input
};

struct PlanOptions {
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // of every step's peak_bytes
  // Admits plans that add up in another order than the one tree (last axis first). Never needed for integers, min and max.
  bool any_order = false;
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};

// A value; copies are cheap. Local throughout. Thread safety: as a const std::vector.
class Plan {
 public:
  // For plans that come from elsewhere, such as a file. Throws ShapeError where the steps do not lead from `from` to `to`,
  // Error where one that is called slice or embed moves something between ranks, or an all_reduce is none.
  Plan(Layout from, Layout to, const Dims& shape, DType dtype, std::vector<Step> steps, const Topology& topology,
       const PlanOptions& options = {}, double scale = 1);

  const Layout& from() const;
  const Layout& to() const;
  const Dims& shape() const;
  DType dtype() const;
  const Topology& topology() const;
  const PlanOptions& options() const;
  const std::vector<Step>& steps() const;  // none: nothing is to be done
  double cost_us() const;
  int64_t peak_bytes() const;   // the largest of the steps', at least the input
  int64_t bytes_moved() const;  // the steps' bytes, added up
  // What the result is multiplied with: 1, but for the gradient of an average.
  double scale() const;

  // Which boxes go where in a step, one after the other: two for an all_reduce of many bytes, whose sums are cut first and
  // gathered then. Worked out once.
  struct Stage {
    std::shared_ptr<const Exchange> exchange;
    std::string text;  // "float32 S0 to S1 on x=4 of [8, 6], step 1 of 2: all_gather S0 to R"
  };
  const std::vector<Stage>& stages(size_t step) const;
  // What of that is one rank's, for redistribute(). Worked out once.
  const detail::Role& role(int rank) const;

  // The plan of the gradient: from the dual of `to` to the dual of `from`, under the same topology and options. Throws
  // Error where a pending operation has no linear adjoint, and what plan() throws.
  Plan adjoint(Convention convention = Convention::global) const;

  const std::string& text() const;  // "float32 S0 to S1 on x=4 of [8, 6]"; worked out once
  std::string explain() const;      // a line a step
  // All of it, in one line, and back: an equal plan, with the same steps, prices and topology. from_json() throws Error,
  // naming the field, for what is no plan, and what the constructor throws.
  std::string to_json() const;
  static Plan from_json(const std::string& text);
  // One page that needs nothing else, for a browser: who holds which part before and after each step, and what PyTorch's
  // default route costs. Throws Error for tensors of more than three dimensions and for more than 64 ranks.
  std::string to_html() const;

 private:
  friend Plan plan_uncached(const Layout& from, const Layout& to, const Dims& shape, DType dtype,
                            const Topology& topology, const PlanOptions& options);
  struct State;
  explicit Plan(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// The cheapest plan. Exact: no sequence of steps costs less, where between source and target stand chunked shards, the
// source's and the target's own ragged cuts, replicas and what is pending, a step takes one axis or several, and a direct
// exchange only leaves the source or enters the target. So on one mesh the way from a to c costs no more than that to b and
// that from b together, where these, one behind the other, keep to the same: b is chunked or replicated, neither way has a
// direct exchange at b beside other steps, and nothing is reduced at b that c has pending (but for integers, min and max).
//
// A collective is a ring along each of its axes, the slow ones with the fewest bytes: a base latency, a latency a hop, and
// the bytes of the busiest rank. An exchange has a base latency, a latency a peer at the slowest axis on which it differs,
// and the bytes of the busiest rank by axis. Axes of one rank cost nothing.
//
// Plans are cached by everything they depend on; the second call takes well under a microsecond. Local, thread-safe.
// Throws ShapeError where a layout does not fit the shape, Error where the topology lacks an axis, where an operation cannot
// reduce the dtype (DTypeError), and where no plan keeps within max_bytes; that one says how much would do.
Plan plan(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
          const PlanOptions& options = {});

// The same without the cache.
Plan plan_uncached(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
                   const PlanOptions& options = {});

namespace detail {
// What the adjoint of a move between these layouts is multiplied with: a term of an average counts one n-th of it.
double adjoint_scale(const Layout& from, const Layout& to);
}  // namespace detail

// What PyTorch 2.13's DTensor does by default: one axis at a time, first what is nested wrongly from the inside out, then
// the rest from left to right; priced as PyTorch does, in the same topology. None where DTensor has no such route: to
// another mesh, to or from At, from a shard to a pending sum, in another order of axes.
struct DTensorRoute {
  struct Hop {
    size_t axis;
    Placement before, after;
    double cost_us;
  };
  std::vector<Hop> hops;
  double cost_us = 0;
};
std::optional<DTensorRoute> dtensor_route(const Layout& from, const Layout& to, const Dims& shape, DType dtype,
                                          const Topology& topology);

}  // namespace tessera
