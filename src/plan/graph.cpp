#include "plan/graph.hpp"

#include <algorithm>
#include <numeric>

#include <tessera/error.hpp>

namespace tessera {
namespace {

bool is_short(DType dtype) { return is_floating(dtype) && size_bytes(dtype) < 4; }

// Whether the order in which terms are combined can change a bit of the result.
bool depends_on_order(ReduceOp op, DType dtype) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::prod || op == ReduceOp::avg;
  return adds && (is_floating(dtype) || is_complex(dtype));
}

}  // namespace

Graph::Graph(const Mesh& mesh, const Layout* from, const Layout* to, const Dims& shape, DType dtype,
             std::vector<Link> links, const Topology& topology, bool any_order)
    : mesh_(mesh),
      shape_(shape),
      lists_(shape, {}, &memory_),
      element_bytes_(static_cast<double>(size_bytes(dtype))),
      base_us_(topology.base_us),
      exchange_base_us_(topology.exchange_base_us),
      copy_(topology.copy) {
  std::vector<int> order(mesh.ndim());
  std::iota(order.begin(), order.end(), 0);
  const double whole = static_cast<double>(volume(shape)) * element_bytes_;
  const auto slower = [&](int a, int b) {
    const Link &x = links[static_cast<size_t>(a)], &y = links[static_cast<size_t>(b)];
    const double tx = x.transfer(whole), ty = y.transfer(whole);
    return tx != ty ? tx < ty : x.latency_us < y.latency_us;
  };
  std::stable_sort(order.begin(), order.end(), slower);
  slowness_.resize(mesh.ndim());
  for (size_t i = 0; i < order.size(); ++i) slowness_[static_cast<size_t>(order[i])] = static_cast<int>(i);
  for (size_t a = 0; a < mesh.ndim(); ++a) {
    if (mesh.size(a) == 1) continue;
    mesh_axes_.push_back(a);
    sizes_.push_back(mesh.size(a));
    links_.push_back(links[a]);
  }
  if (sizes_.size() > kMaxPlanAxes) {
    throw Error(
        fmt::format("the mesh {} has {} axes of more than one rank: plan() takes at most {}. Join axes that always go "
                    "together into one, or give a Plan of your own steps",
                    mesh, sizes_.size(), kMaxPlanAxes));
  }
  by_speed_.resize(sizes_.size());
  std::iota(by_speed_.begin(), by_speed_.end(), uint8_t{0});
  std::sort(by_speed_.begin(), by_speed_.end(),
            [&](uint8_t a, uint8_t b) { return slowness_[mesh_axes_[a]] < slowness_[mesh_axes_[b]]; });
  lists_ = CutLists(shape, sizes_, &memory_);
  source_at_.resize(sizes_.size());
  target_at_.resize(sizes_.size());
  for (size_t d = 0; d < shape.size(); ++d) source_.list[d] = target_.list[d] = static_cast<int16_t>(lists_.uncut(d));
  if (from != nullptr) take(*from, true, source_);
  if (to != nullptr) take(*to, false, target_);
  if (source_op_ && depends_on_order(*source_op_, dtype) && !any_order) {
    // Short floats are rounded once, and an average is divided once: so all axes together.
    order_ = is_short(dtype) || source_op_ == ReduceOp::avg ? Order::at_once : Order::last_first;
  }
}

void Graph::take(const Layout& layout, bool source, Node& node) {
  using Kind = Placement::Kind;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    const Placement& p = layout.placements()[mesh_axes_[a]];
    if (p.kind == Kind::shard) node.code[a] = Code::cut;
    if (p.kind == Kind::at) {
      (source ? source_at_ : target_at_)[a] = p;
      const bool same = !source && source_.code[a] == Code::at_source && source_at_[a] == p;
      node.code[a] = source || same ? Code::at_source : Code::at_target;
      if (!source) at_target_axes_ |= 1u << a;
      if (same) same_at_axes_ |= 1u << a;
    }
    if (p.kind != Kind::partial) continue;
    (source ? source_op_ : target_op_) = p.op;
    const bool carried = !source && source_.code[a] == Code::term && source_op_ == p.op;
    node.code[a] = source || carried ? Code::term : Code::embedded;
    if (source) term_axes_ |= 1u << a;
    if (carried) carried_axes_ |= 1u << a;
    if (!source && !carried) embed_axes_ |= 1u << a;
  }
  term_axes_ &= ~carried_axes_;
  for (const Layout::Cut& cut : layout.cuts()) take_cut(cut, source ? 1 : 2, node);
  set_key(node);
}

void Graph::take_cut(const Layout::Cut& cut, int which, Node& node) {
  std::vector<uint8_t> axes;
  for (const size_t axis : cut.axes) {
    const auto found = std::find(mesh_axes_.begin(), mesh_axes_.end(), axis);
    if (found != mesh_axes_.end()) axes.push_back(static_cast<uint8_t>(found - mesh_axes_.begin()));
  }
  if (axes.empty()) return;
  const auto dim = static_cast<size_t>(cut.dim);
  int list = lists_.chunked(dim, axes);
  if (!cut.offsets.empty() && !std::ranges::equal(cut.offsets, lists_[list].offsets)) {
    const auto known = std::find_if(ragged_.begin(), ragged_.end(), [&](int r) {
      return lists_[r].dim == dim && std::ranges::equal(lists_[r].axes, axes) &&
             std::ranges::equal(lists_[r].offsets, cut.offsets);
    });
    list = known != ragged_.end() ? *known : lists_.add_ragged(dim, which, axes, cut.offsets);
    if (known == ragged_.end()) ragged_.push_back(list);
  }
  node.list[dim] = static_cast<int16_t>(list);
}

// A byte for each axis: what it holds, or which dimension it cuts at which place.
void Graph::set_key(Node& node) const {
  uint64_t key = 0;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    if (node.code[a] == Code::at_target && has(same_at_axes_, a)) node.code[a] = Code::at_source;
    if (node.code[a] == Code::embedded && has(carried_axes_, a)) node.code[a] = Code::term;
    if (node.code[a] != Code::cut) key |= static_cast<uint64_t>(node.code[a]) << 8 * a;
  }
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList& list = lists_[node.list[d]];
    for (size_t i = 0; i < list.depth(); ++i) {
      const size_t place = list.ragged == 0 ? d * kMaxPlanAxes + i
                                            : (kMaxPlanAxes + static_cast<size_t>(list.ragged) - 1) * kMaxDims + d;
      key |= static_cast<uint64_t>(static_cast<size_t>(Code::cut) + place) << 8 * list.axes[i];
    }
  }
  node.key = key;
}

std::vector<size_t> Graph::mesh_axes(uint32_t axes) const {
  std::vector<size_t> list;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    if (has(axes, a)) list.push_back(mesh_axes_[a]);
  }
  return list;
}

Layout Graph::layout_of(const Node& node) const {
  std::vector<Placement> placements(mesh_.ndim());
  std::vector<std::string> order;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    Placement& p = placements[mesh_axes_[a]];
    switch (node.code[a]) {
      case Code::term: p = Partial(*source_op_); break;
      case Code::embedded: p = Partial(*target_op_); break;
      case Code::at_source: p = source_at_[a]; break;
      case Code::at_target: p = target_at_[a]; break;
      case Code::replica:
      case Code::cut: break;
    }
  }
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList& list = lists_[node.list[d]];
    Sizes sizes;
    for (size_t i = 0; list.ragged != 0 && i < list.pieces(); ++i)
      sizes.push_back(list.offsets[i + 1] - list.offsets[i]);
    for (const uint8_t a : list.axes) {
      const auto dim = static_cast<int64_t>(d);
      placements[mesh_axes_[a]] = list.ragged != 0 ? Shard(dim, sizes) : Shard(dim);
      order.push_back(mesh_.axes()[mesh_axes_[a]].name);
    }
  }
  return Layout(mesh_, std::move(placements), order);
}

// What is added up must be added in the one tree: the last axis first.
bool Graph::may_reduce(const Node& node, uint32_t axes) const {
  const uint32_t pending = axes_with(node, sizes_.size(), Code::term) & term_axes_;
  if (order_ == Order::any) return true;
  if (order_ == Order::at_once) return axes == pending;
  // None of those that stay may stand behind one that goes.
  const uint32_t stay = pending & ~axes;
  return stay < (axes & -axes);  // the lowest that goes
}

bool Graph::may_exchange(const Node& before, const Node& after) const {
  const uint32_t had = axes_with(before, sizes_.size(), Code::term), kept = axes_with(after, sizes_.size(), Code::term);
  const uint32_t enters = axes_with(after, sizes_.size(), Code::embedded);
  const uint32_t fixed = may_reenter() ? 0 : carried_axes_;
  if ((kept & ~had & ~(carried_axes_ & ~fixed)) != 0) return false;  // what was reduced does not become a term again
  if ((had & ~kept & fixed) != 0) return false;
  if (enters != 0 && kept != 0 && source_op_ != target_op_) return false;
  const uint32_t reduced = had & ~kept;
  return reduced == 0 || may_reduce(before, reduced);
}

double Graph::largest_box(const Node& node) const {
  double elements = 1;
  for (size_t d = 0; d < shape_.size(); ++d) elements *= lists_[node.list[d]].largest;
  return elements;
}

double Graph::box_at(const Node& node, const Dims& coordinate) const {
  double elements = 1;
  for (size_t a = 0; a < sizes_.size(); ++a) {
    const int64_t here = coordinate[mesh_axes_[a]];
    if (node.code[a] == Code::at_source && source_at_[a].index != here) return 0;
    if (node.code[a] == Code::at_target && target_at_[a].index != here) return 0;
  }
  for (size_t d = 0; d < shape_.size(); ++d) {
    const CutList& list = lists_[node.list[d]];
    size_t number = 0;
    for (const uint8_t a : list.axes) {
      number = number * static_cast<size_t>(sizes_[a]) + static_cast<size_t>(coordinate[mesh_axes_[a]]);
    }
    elements *= list.piece(number);
  }
  return elements;
}

bool Graph::next_place(Dims& coordinate) const {
  for (size_t a = sizes_.size(); a-- > 0;) {
    if (++coordinate[mesh_axes_[a]] < sizes_[a]) return true;
    coordinate[mesh_axes_[a]] = 0;
  }
  return false;
}

bool Graph::is_even_handed(const Node& node) const {
  for (size_t a = 0; a < sizes_.size(); ++a) {
    if (node.code[a] == Code::at_source || node.code[a] == Code::at_target) return false;
  }
  for (size_t d = 0; d < shape_.size(); ++d) {
    if (cuts_raggedly(node, d)) return false;
  }
  return true;
}

}  // namespace tessera
