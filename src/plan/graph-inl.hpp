// The steps of a Graph, by what they do to a set of axes. Templates, because a search calls them for every node.
#pragma once

#include <bit>

namespace tessera {

inline bool has(uint32_t set, size_t axis) { return (set >> axis & 1) != 0; }

template <class Fn>
void for_each_subset(uint32_t set, Fn&& fn) {
  for (uint32_t part = set; part != 0; part = (part - 1) & set) fn(part);
}

inline uint32_t axes_with(const Node& node, size_t count, Code code) {
  uint32_t set = 0;
  for (size_t a = 0; a < count; ++a) set |= node.code[a] == code ? 1u << a : 0;
  return set;
}

// Every choice of innermost axes, some for each dimension, together at least one: fn(tails, axes). A ragged cut goes whole.
template <class Fn>
void Graph::for_each_tail_set(const Node& node, Fn&& fn) const {
  std::array<uint8_t, kMaxDims> tails = {};
  const auto recurse = [&](auto& self, size_t d, uint32_t axes) -> void {
    if (d == ndim()) {
      if (axes != 0) fn(tails, axes);
      return;
    }
    const CutList& list = lists_[node.list[d]];
    for (size_t tail = 0; tail <= list.depth(); ++tail) {
      if (list.ragged != 0 && tail != 0 && tail != list.depth()) continue;
      uint32_t taken = axes;
      for (size_t i = list.depth() - tail; i < list.depth(); ++i) taken |= 1u << list.axes[i];
      tails[d] = static_cast<uint8_t>(tail);
      self(self, d + 1, taken);
    }
    tails[d] = 0;
  };
  recurse(recurse, 0, 0);
}

// Every way in which those axes, all of them, cut what the node leaves whole.
template <class Fn>
void Graph::for_each_cut(Node node, uint32_t axes, Fn&& fn) {
  const auto with_ragged = [&](auto& self, size_t next, const Node& so_far, uint32_t left) -> void {
    if (next == ragged_.size()) {
      std::array<uint8_t, kMaxDims> added = {};
      return distribute(so_far, left, added, fn);
    }
    self(self, next + 1, so_far, left);
    const CutList& list = lists_[ragged_[next]];
    uint32_t needed = 0;
    for (const uint8_t a : list.axes) needed |= 1u << a;
    if ((needed & left) != needed || so_far.list[list.dim] != lists_.uncut(list.dim)) return;
    Node cut = so_far;
    cut.list[list.dim] = static_cast<int16_t>(ragged_[next]);
    for (const uint8_t a : list.axes) cut.code[a] = Code::cut;
    self(self, next + 1, cut, left & ~needed);
  };
  with_ragged(with_ragged, 0, node, axes);
}

// The same with chunks alone. added: how many of a list's last axes were added here; a new one may come between them, so
// that every order is met once.
template <class Fn>
void Graph::distribute(Node node, uint32_t axes, std::array<uint8_t, kMaxDims>& added, Fn&& fn) {
  if (axes == 0) {
    set_key(node);
    return fn(node);
  }
  const auto axis = static_cast<uint8_t>(std::countr_zero(axes));
  node.code[axis] = Code::cut;
  for (size_t d = 0; d < ndim(); ++d) {
    if (cuts_raggedly(node, d)) continue;
    const int16_t before = node.list[d];
    for (size_t behind = 0; behind <= added[d]; ++behind) {
      int list = lists_.extended(lists_.without(before, behind), axis);
      const size_t depth = lists_[before].depth();
      for (size_t i = depth - behind; i < depth; ++i) list = lists_.extended(list, lists_[before].axes[i]);
      node.list[d] = static_cast<int16_t>(list);
      ++added[d];
      distribute(node, axes & (axes - 1), added, fn);
      --added[d];
    }
    node.list[d] = before;
  }
}

inline void Graph::remove_tails(Node& node, const std::array<uint8_t, kMaxDims>& tails, Code code) const {
  for (size_t d = 0; d < ndim(); ++d) {
    const CutList& list = lists_[node.list[d]];
    for (size_t i = list.depth() - tails[d]; i < list.depth(); ++i) node.code[list.axes[i]] = code;
    node.list[d] = static_cast<int16_t>(lists_.without(node.list[d], tails[d]));
  }
  set_key(node);
}

template <class Fn>
void Graph::gathers(const Node& node, Fn&& fn) {
  for_each_tail_set(node, [&](const auto& tails, uint32_t axes) {
    Node next = node;
    remove_tails(next, tails, Code::replica);
    const double bytes = group_bytes(next, node);
    fn(next, Edge{StepKind::all_gather, axes, rings_us(axes, bytes, Ring::gather), bytes});
    if ((axes & ~at_target_axes_) != 0) return;
    next = node;
    remove_tails(next, tails, Code::at_target);
    const double received = root_bytes(next, node);
    fn(next, Edge{StepKind::gather, axes, rings_us(axes, received, Ring::gather), received});
  });
}

template <class Fn>
void Graph::cuts(const Node& node, Fn&& fn) {
  for_each_subset(axes_with(node, axes(), Code::replica), [&](uint32_t part) {
    for_each_cut(node, part, [&](const Node& next) { fn(next, Edge{StepKind::slice, part, 0, 0}); });
    if ((part & ~at_target_axes_) != 0) return;
    Node next = node;
    for (size_t a = 0; a < axes(); ++a) next.code[a] = has(part, a) ? Code::at_target : next.code[a];
    set_key(next);
    fn(next, Edge{StepKind::slice, part, 0, 0});
  });
  for_each_subset(axes_with(node, axes(), Code::at_source), [&](uint32_t part) {
    Node whole = node;
    for (size_t a = 0; a < axes(); ++a) whole.code[a] = has(part, a) ? Code::replica : whole.code[a];
    set_key(whole);
    const double sent = largest_box(node) * element_bytes_;
    fn(whole, Edge{StepKind::broadcast, part, chain_us(part, sent, false), sent});
    for_each_cut(node, part, [&](const Node& next) {
      const double bytes = root_bytes(node, next);
      fn(next, Edge{StepKind::scatter, part, rings_us(part, bytes, Ring::gather), bytes});
    });
  });
}

template <class Fn>
void Graph::reductions(const Node& node, Fn&& fn) {
  const uint32_t pending = axes_with(node, axes(), Code::term) & reducible_axes();
  for_each_subset(pending, [&](uint32_t part) {
    if (!may_reduce(node, part)) return;
    const auto with = [&](Code code) {
      Node next = node;
      for (size_t a = 0; a < axes(); ++a) next.code[a] = has(part, a) ? code : next.code[a];
      set_key(next);
      return next;
    };
    const double whole = largest_box(node) * element_bytes_;
    double ranks = 1;
    for (size_t a = 0; a < axes(); ++a) ranks *= has(part, a) ? static_cast<double>(sizes_[a]) : 1;
    const double share = whole * (ranks - 1) / ranks;
    fn(with(Code::replica), Edge{StepKind::all_reduce, part, rings_us(part, share, Ring::both), 2 * share});
    if ((part & ~at_target_axes_) == 0) {
      fn(with(Code::at_target), Edge{StepKind::reduce, part, chain_us(part, whole, true), whole});
    }
    for_each_cut(node, part, [&](const Node& next) {
      const double bytes = group_bytes(node, next);
      fn(next, Edge{StepKind::reduce_scatter, part, rings_us(part, bytes, Ring::scatter), bytes});
    });
  });
}

// The innermost axes of one dimension cut another one, or the same in another way.
template <class Offer>
void Graph::exchanges(const Node& node, Offer&& offer) {
  for (size_t a = 0; a < ndim(); ++a) {
    const CutList& list = lists_[node.list[a]];
    const size_t depth = list.depth();
    for (size_t tail = list.ragged != 0 ? depth : 1; tail <= depth && depth > 0; ++tail) {
      std::array<uint8_t, kMaxDims> tails = {};
      tails[a] = static_cast<uint8_t>(tail);
      uint32_t moved = 0;
      for (size_t i = depth - tail; i < depth; ++i) moved |= 1u << lists_[node.list[a]].axes[i];
      Node open = node;
      remove_tails(open, tails, Code::replica);
      for_each_cut(open, moved, [&](const Node& next) {
        size_t touched = 0, b = a;
        for (size_t d = 0; d < ndim(); ++d) {
          if (next.list[d] == open.list[d]) continue;
          ++touched;
          b = d;
        }
        // Axes that go to several dimensions at once are a direct exchange.
        if (touched == 1 && next.key != node.key) offer(next, Reshard{a, tail, b, moved});
      });
    }
  }
}

template <class Fn>
void Graph::embeds(const Node& node, Fn&& fn) {
  const uint32_t may_enter = (embed_axes_ | (may_reenter() ? carried_axes_ : 0)) & ~axes_with(node, axes(), Code::term);
  if (may_enter == 0) return;
  if (source_op_ != target_op_ && axes_with(node, axes(), Code::term) != 0) return;
  const auto become_pending = [&](Node next, uint32_t part) {
    for (size_t a = 0; a < axes(); ++a) next.code[a] = has(part, a) ? Code::embedded : next.code[a];
    set_key(next);
    fn(next, Edge{StepKind::embed, part, copy_us(next), 0});
  };
  const uint32_t replicas = axes_with(node, axes(), Code::replica) & may_enter;
  if (target_op_ == ReduceOp::avg) {  // which has no identity to fill with
    for_each_subset(replicas, [&](uint32_t part) { become_pending(node, part); });
    return;
  }
  const uint32_t whole = replicas | (axes_with(node, axes(), Code::at_source) & may_enter);
  for_each_subset(whole, [&](uint32_t part) { become_pending(node, part); });
  for_each_tail_set(node, [&](const auto& tails, uint32_t part) {
    if ((part & ~may_enter) != 0) return;
    Node next = node;
    remove_tails(next, tails, Code::embedded);
    become_pending(next, part);
    for_each_subset(whole, [&](uint32_t more) { become_pending(next, part | more); });
  });
}

template <class Fn, class Offer>
void Graph::for_each_step(const Node& node, Fn&& fn, Offer&& offer) {
  gathers(node, fn);
  cuts(node, fn);
  reductions(node, fn);
  exchanges(node, offer);
  embeds(node, fn);
}

template <class Fn>
void Graph::for_each_node(Fn&& fn) {
  Node blank;
  for (size_t d = 0; d < ndim(); ++d) blank.list[d] = static_cast<int16_t>(lists_.uncut(d));
  const auto choose = [&](auto& self, size_t a, Node node, uint32_t cut) -> void {
    if (a == axes()) return for_each_cut(node, cut, fn);
    self(self, a + 1, node, cut);
    if (ndim() > 0) self(self, a + 1, node, cut | 1u << a);
    const auto with = [&](Code code) {
      Node next = node;
      next.code[a] = code;
      self(self, a + 1, next, cut);
    };
    if (has(term_axes_ | carried_axes_, a)) with(Code::term);
    if (has(embed_axes_, a)) with(Code::embedded);
    if (has(at_target_axes_, a)) with(target_.code[a]);
    if (source_.code[a] == Code::at_source && !has(same_at_axes_, a)) with(Code::at_source);
  };
  choose(choose, 0, blank, 0);
}

}  // namespace tessera
