// What a rank gives and gets in one round, put down as its transport wants it.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "collective/arrange.hpp"
#include "comm/transport.hpp"
#include "tensor/strided.hpp"

namespace tessera {

// One end of a move: a tensor that is the rank's box of the layout, or the
// whole of which that box is a window.
struct End {
  int tensor;
  bool whole;
  bool read_next = false;  // what is written there, by others in the next round

  Box local(const Box& global, const AxisLayout& layout, int rank) const {
    return whole ? global : global.relative_to(layout.box(rank).offset);
  }
};

class Mover {
 public:
  Mover(int rank, std::span<const Tensor> mine, Move& move) : rank_(rank), mine_(mine), move_(move) {}

  void between(const AxisLayout& from, const AxisLayout& to, End source, End target, Reduction reduction,
               bool as_parts = false) {
    size_t terms = 0;
    const size_t first = move_.receives.size();
    move_.shares_wishes = move_.shares_wishes || to.is_replicated();
    for_each_source(from, to, rank_, [&](int peer, const Box& box) {
      const Term term{peer, source.tensor, source.local(box, from, peer)};
      if (!from.is_partial()) {
        const Box place = as_parts ? Box::whole(box.extent) : target.local(box, to, rank_);
        copy(as_parts ? target.tensor + peer : target.tensor, place, term, reduction);
      } else if (terms++ == 0) {
        receive(target.tensor, target.local(box, to, rank_), term, reduction);
        move_.receives.back().read_next = target.read_next;
      } else {
        move_.terms.push_back(term);
        ++move_.receives.back().terms;
      }
    });
    start_with_own(first);
    for_each_destination(from, to, rank_,
                         [&](int peer, const Box& box) { send(peer, source.tensor, source.local(box, from, rank_)); });
  }

  // all_to_all_v: no layout of one tensor, but the same boxes.
  void pairs(const Arranged& a, int x, int out) {
    const auto me = static_cast<size_t>(rank_);
    const auto stretch = [&](int64_t offset, int64_t extent) {
      Box box = Box::whole(a.to.shape());
      box.offset[static_cast<size_t>(a.dim)] = offset;
      box.extent[static_cast<size_t>(a.dim)] = extent;
      return box;
    };
    int64_t arrived = 0, sent = 0;
    const size_t first = move_.receives.size();
    for (size_t peer = 0; peer < a.send.size(); ++peer) {
      const Sizes& row = a.send[peer];
      const int64_t start = std::accumulate(row.begin(), row.begin() + static_cast<ptrdiff_t>(me), int64_t{0});
      const Box there = stretch(start, row[me]);
      if (!there.empty()) copy(out, stretch(arrived, row[me]), {static_cast<int>(peer), x, there}, {});
      arrived += row[me];
      const Box here = stretch(sent, a.send[me][peer]);
      if (!here.empty()) send(static_cast<int>(peer), x, here);
      sent += a.send[me][peer];
    }
    start_with_own(first);
  }

  // Term number t of what is received.
  void term(size_t t, const Receive& receive, const Term& term) {
    if (receive.terms == 1) return copy(receive.tensor, receive.box, term, receive.reduction);
    if (t == 0) {
      move_.receives.push_back(receive);
      move_.receives.back().first_term = move_.terms.size();
    }
    move_.terms.push_back(term);
  }

  // A box of one tensor that another rank has, or the same box of another tensor of this rank's.
  void fetch(int tensor, const Box& box, const Term& from) {
    if (!box.empty()) copy(tensor, box, from, {});
  }

  void send(int to, int tensor, const Box& box) {
    if (to != rank_) move_.sends.push_back({to, tensor, box});
  }

  // What was added from `first` on, in the order of ranks: each begins with another, and its own is no longer in use when
  // others come to it. Two cores that go over the same lines side by side hinder each other.
  void start_with_own(size_t first) {
    const auto begin = move_.receives.begin() + static_cast<ptrdiff_t>(first);
    const auto own = std::find_if(begin, move_.receives.end(),
                                  [&](const Receive& r) { return move_.terms[r.first_term].rank >= rank_; });
    std::rotate(begin, own, move_.receives.end());
  }

 private:
  void receive(int tensor, const Box& box, const Term& term, Reduction reduction) {
    move_.receives.push_back({tensor, box, move_.terms.size(), 1, reduction, {}});
    move_.terms.push_back(term);
  }

  void copy(int tensor, const Box& box, const Term& term, Reduction scaling) {
    const bool scaled = scaling.op == ReduceOp::premul_sum;
    if (scaled || term.rank != rank_ || !lies_there(tensor, box, term)) receive(tensor, box, term, scaling);
  }

  bool lies_there(int tensor, const Box& box, const Term& term) const {
    const View target = view_of(mine_[static_cast<size_t>(tensor)]).box(box);
    return target.data == view_of(mine_[static_cast<size_t>(term.tensor)]).box(term.box).data;
  }

  int rank_;
  std::span<const Tensor> mine_;
  Move& move_;
};

}  // namespace tessera
