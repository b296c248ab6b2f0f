// The graph that plan() searches: layouts of one tensor on one mesh, and the steps between them with their prices.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include <tessera/plan.hpp>

#include "plan/cut_list.hpp"
#include "plan/group_exchange.hpp"

namespace tessera {

// What an axis of a node holds. `term`: of the source's pending operation, or of one that stays pending. `embedded`: of the
// target's, entered by an embed. `at_source`, `at_target`: At with the source's or the target's index.
enum class Code : uint8_t { replica, term, embedded, at_source, at_target, cut };

// A layout, small enough to copy. Axes are those with more than one rank.
struct Node {
  std::array<Code, kMaxPlanAxes> code = {};
  std::array<int16_t, kMaxDims> list = {};  // by dimension
  uint64_t key = 0;                         // tells nodes apart
};

struct Edge {
  StepKind kind = StepKind::slice;
  uint32_t axes = 0;  // a bit each
  double us = 0;
  double bytes = 0;
};

// An all-to-all: the innermost `tail` axes of one dimension come to cut another, or the same in another way.
struct Reshard {
  size_t from_dim = 0, tail = 0, to_dim = 0;
  uint32_t axes = 0;
};

class Graph {
 public:
  // `from` or `to` is null where it is on another mesh. They are resolved, and the mesh is theirs.
  Graph(const Mesh& mesh, const Layout* from, const Layout* to, const Dims& shape, DType dtype, std::vector<Link> links,
        const Topology& topology, bool any_order);

  const Node& source() const { return source_; }
  const Node& target() const { return target_; }
  Layout layout_of(const Node& node) const;
  const Mesh& mesh() const { return mesh_; }
  std::vector<size_t> mesh_axes(uint32_t axes) const;

  // Calls fn(const Node& next, const Edge& edge) for every step that leads on. An all-to-all takes long to price: for each
  // it calls offer(const Node& next, const Reshard& move) instead.
  template <class Fn, class Offer>
  void for_each_step(const Node& node, Fn&& fn, Offer&& offer);
  Edge exchange_move(const Node& before, const Node& after, const Reshard& move);
  double latency_of(const Reshard& move) const;
  // Every layout that a direct exchange from the source may lead to.
  template <class Fn>
  void for_each_node(Fn&& fn);

  // Of a direct exchange, which may reduce those pending axes.
  bool may_reduce(const Node& node, uint32_t axes) const;
  bool may_exchange(const Node& before, const Node& after) const;

  // Elements that a rank holds: of the place with most; of one place. 0 beside an At.
  double largest_box(const Node& node) const;
  double box_at(const Node& node, const Dims& coordinate) const;
  bool next_place(Dims& coordinate) const;      // in the mesh; false behind the last
  bool is_even_handed(const Node& node) const;  // no rank has more than the one at 0, 0, …
  // Whether what stays pending may be reduced and become pending again: where no bit of a sum depends on its order.
  bool may_reenter() const { return order_ == Order::any && carried_axes_ != 0; }
  uint32_t reducible_axes() const { return term_axes_ | (may_reenter() ? carried_axes_ : 0); }
  bool embeds_average() const { return target_op_ == ReduceOp::avg; }
  int64_t at_index(const Node& node, size_t axis) const {
    return (node.code[axis] == Code::at_source ? source_at_ : target_at_)[axis].index;
  }
  double element_bytes() const { return element_bytes_; }
  const Link& link(size_t axis) const { return links_[axis]; }
  size_t axes() const { return sizes_.size(); }
  size_t mesh_axis(size_t axis) const { return mesh_axes_[axis]; }
  int64_t size(size_t axis) const { return sizes_[axis]; }
  const std::vector<uint8_t>& by_speed() const { return by_speed_; }  // axes, the fastest first
  std::pmr::memory_resource* memory() { return &memory_; }            // for what lives as long as this
  CutLists& lists() { return lists_; }
  const CutLists& lists() const { return lists_; }
  size_t ndim() const { return shape_.size(); }

 private:
  void take(const Layout& layout, bool source, Node& node);
  void take_cut(const Layout::Cut& cut, int which, Node& node);
  void set_key(Node& node) const;
  bool cuts_raggedly(const Node& node, size_t dim) const { return lists_[node.list[dim]].ragged != 0; }

  // Steps by what they do to a set of axes.
  template <class Fn>
  void for_each_tail_set(const Node& node, Fn&& fn) const;
  template <class Fn>
  void for_each_cut(Node node, uint32_t axes, Fn&& fn);
  template <class Fn>
  void distribute(Node node, uint32_t axes, std::array<uint8_t, kMaxDims>& added, Fn&& fn);
  void remove_tails(Node& node, const std::array<uint8_t, kMaxDims>& tails, Code code) const;
  template <class Fn>
  void gathers(const Node& node, Fn&& fn);
  template <class Fn>
  void cuts(const Node& node, Fn&& fn);
  template <class Fn>
  void reductions(const Node& node, Fn&& fn);
  template <class Offer>
  void exchanges(const Node& node, Offer&& offer);
  template <class Fn>
  void embeds(const Node& node, Fn&& fn);

  static constexpr size_t kFirstBytes = 32 << 10;  // most searches need no more

  enum class Ring { gather, scatter, both };  // which reduces what it scatters
  double rings_us(uint32_t axes, double bytes, Ring ring) const;
  double chain_us(uint32_t axes, double bytes, bool reduces) const;
  double copy_us(const Node& after) const;
  double group_bytes(const Node& whole, const Node& parts);
  double root_bytes(const Node& whole, const Node& parts);

  std::pmr::monotonic_buffer_resource memory_{kFirstBytes};
  Mesh mesh_;
  Dims shape_;
  std::vector<size_t> mesh_axes_;  // those with more than one rank
  std::vector<int64_t> sizes_;
  std::vector<Link> links_;
  std::vector<int> slowness_;      // by axis of the mesh: 0 is the fastest
  std::vector<uint8_t> by_speed_;  // fastest first
  CutLists lists_;
  std::vector<int> ragged_;  // lists of the source's and the target's own ragged cuts
  std::vector<Placement> source_at_, target_at_;
  Node source_, target_;
  uint32_t term_axes_ = 0;     // of the source, that are to be reduced
  uint32_t carried_axes_ = 0;  // that stay pending
  uint32_t embed_axes_ = 0;    // that become pending
  uint32_t at_target_axes_ = 0;
  uint32_t same_at_axes_ = 0;  // whose At is the source's too
  std::optional<ReduceOp> source_op_, target_op_;
  enum class Order : uint8_t { any, last_first, at_once } order_ = Order::any;
  std::pmr::map<std::tuple<int, int, size_t, double>, Edge> exchanges_{
      &memory_};  // priced so far: lists before and after, how many axes move, and what is the same
  GroupExchange groups_;
  std::vector<uint8_t> slow_first_;  // of the all-to-all at hand
  double element_bytes_;
  double base_us_, exchange_base_us_;
  Curve copy_;
};

}  // namespace tessera

#include "plan/graph-inl.hpp"
