#include "collective/moves.hpp"

#include <algorithm>
#include <numeric>

#include "tensor/strided.hpp"

namespace tessera {
namespace {

// One end of a move: a tensor that is the rank's box of the layout, or the
// whole of which that box is a window.
struct End {
  int tensor;
  bool whole;

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
    for_each_source(from, to, rank_, [&](int peer, const Box& box) {
      const Term term{peer, source.tensor, source.local(box, from, peer)};
      if (!from.is_partial()) {
        const Box place = as_parts ? Box::whole(box.extent) : target.local(box, to, rank_);
        copy(as_parts ? target.tensor + peer : target.tensor, place, term, reduction);
      } else if (terms++ == 0) {
        receive(target.tensor, target.local(box, to, rank_), term, reduction);
      } else {
        move_.terms.push_back(term);
        ++move_.receives.back().terms;
      }
    });
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

void append_exchange(const Arranged& a, int rank, int x, int out, std::span<const Tensor> mine, Move& move) {
  const Exchange& exchange = *a.exchange;
  const auto own = exchange.from().box(exchange.shape(), rank), target = exchange.to().box(exchange.shape(), rank);
  Mover mover(rank, mine, move);
  Dims axes;
  for (const size_t axis : exchange.reduced_axes()) axes.push_back(exchange.from().mesh().size(axis));
  const auto terms = static_cast<size_t>(exchange.terms());
  move.for_one_sum_each = move.for_one_sum_each || terms > 1;  // a receiver takes the terms that it holds itself
  for (size_t i = 0; i < a.receives.size(); i += terms) {
    const Box& box = a.receives[i].box;
    for (size_t t = 0; t < terms; ++t) {
      const int peer = a.receives[i + t].rank;
      const Box there = box.relative_to(exchange.from().box(exchange.shape(), peer)->offset);
      mover.term(t, {out, box.relative_to(target->offset), 0, terms, a.reduction, axes}, {peer, x, there});
    }
  }
  for (const Overlap& sent : exchange.sends(rank)) mover.send(sent.rank, x, sent.box.relative_to(own->offset));
}

// What a wire carries in the time that a second round takes, or more: with 1 MiB in all, 4 ranks over TCP gain nothing.
constexpr int64_t kRoundBytes = int64_t{2} << 20;

SpreadGather::Stretch intersect(SpreadGather::Stretch a, SpreadGather::Stretch b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

Box rows_of(const Arranged& a, SpreadGather::Stretch rows, int64_t origin) {
  Box box = Box::whole(a.to.shape());
  box.offset[static_cast<size_t>(a.dim)] = rows.begin - origin;
  box.extent[static_cast<size_t>(a.dim)] = std::max<int64_t>(rows.end - rows.begin, 0);
  return box;
}

int64_t row_bytes(const Arranged& a) {
  Dims row = a.to.shape();
  row[static_cast<size_t>(a.dim)] = 1;
  return volume(row) * size_bytes(a.dtype);
}

void append_spread(const Arranged& a, const SpreadGather& spread, int rank, int x, std::span<const Tensor> mine,
                   Rounds& rounds) {
  const int out = x + 1, ranks = a.to.ranks();
  const SpreadGather::Stretch own = spread.own(rank);
  rounds[1];  // both exist before either is referred to
  Mover first(rank, mine, rounds[0]), second(rank, mine, rounds[1]);
  first.fetch(out, rows_of(a, own, 0), {rank, x, rows_of(a, own, own.begin)});
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    const auto coming = spread.first(peer, rank), going = spread.first(rank, peer);
    first.fetch(out, rows_of(a, coming, 0), {peer, x, rows_of(a, coming, spread.own(peer).begin)});
    if (!going.empty()) first.send(peer, x, rows_of(a, going, own.begin));
    for (const auto& rows : spread.second(peer, rank)) {
      second.fetch(out, rows_of(a, rows, 0), {peer, out, rows_of(a, rows, 0)});
    }
    for (const auto& rows : spread.second(rank, peer)) {
      if (!rows.empty()) second.send(peer, out, rows_of(a, rows, 0));
    }
  }
}

bool may_spread(const Arranged& a) {
  return a.op == OpCode::all_gather && !a.as_parts && a.reduction.op != ReduceOp::premul_sum;
}

bool reduces_in_one_round(const Arranged& a) {
  // With shared elements ranks would read what others are writing over.
  return !a.shares_elements && volume(a.to.shape()) * size_bytes(a.dtype) <= kOneRoundBytes;
}

// The first dimension that has something for everyone, else the longest.
AxisPlacement cut_for(const Dims& shape, int ranks) {
  if (shape.empty()) return axis_at(0);
  const auto* wide = std::find_if(shape.begin(), shape.end(), [&](int64_t extent) { return extent >= ranks; });
  const auto* chosen = wide != shape.end() ? wide : std::max_element(shape.begin(), shape.end());
  return axis_shard(chosen - shape.begin(), even_sizes(*chosen, ranks));
}

}  // namespace

SpreadGather::SpreadGather(const Sizes& sizes) {
  const auto ranks = static_cast<int64_t>(sizes.size());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), each = total / ranks;
  for (int64_t r = 0, at = 0, even = 0; r < ranks; ++r) {
    const int64_t length = each + (r < total % ranks ? 1 : 0), size = sizes[static_cast<size_t>(r)];
    owns_.push_back({at, at + size});
    evens_.push_back({even, even + length});
    at += size;
    even += length;
  }
}

SpreadGather::Stretch SpreadGather::first(int from, int to) const { return intersect(own(from), even(to)); }

// A rank's own rows do not come back to it.
std::array<SpreadGather::Stretch, 2> SpreadGather::second(int from, int to) const {
  const Stretch all = even(from), has = own(to);
  if (has.empty()) return {all, {}};
  return {intersect(all, {all.begin, has.begin}), intersect(all, {has.end, all.end})};
}

// By the rank that sends most in each round.
bool SpreadGather::pays(int64_t row_bytes) const {
  const auto ranks = static_cast<int>(owns_.size());
  const auto length = [](const Stretch& s) { return std::max<int64_t>(s.end - s.begin, 0); };
  int64_t direct = 0, one = 0, two = 0;
  for (int r = 0; r < ranks; ++r) {
    direct = std::max(direct, length(own(r)) * (ranks - 1));
    one = std::max(one, length(own(r)) - length(first(r, r)));
    two = std::max(two, length(even(r)) * (ranks - 1));
  }
  return 2 * direct >= 3 * (one + two) && direct - one - two > kRoundBytes / std::max<int64_t>(row_bytes, 1);
}

Move& Rounds::operator[](size_t number) {
  if (moves_.size() <= number) moves_.resize(number + 1);
  count_ = std::max(count_, number + 1);
  return moves_[number];
}

void Rounds::clear() {
  for (Move& move : moves_) {
    move.receives.clear();
    move.terms.clear();
    move.sends.clear();
    move.for_one_sum_each = false;
  }
  count_ = 0;
}

void append_moves(const Arranged& a, int rank, int first_tensor, std::span<const Tensor> mine, bool owners_send,
                  Rounds& rounds) {
  if (!a.moves) return;
  if (owners_send && may_spread(a)) {
    const SpreadGather spread(a.sizes);
    if (spread.pays(row_bytes(a))) return append_spread(a, spread, rank, first_tensor, mine, rounds);
  }
  const int x = first_tensor, out = first_tensor + 1;
  Mover first(rank, mine, rounds[0]);
  if (a.exchange != nullptr) {
    append_exchange(a, rank, x, out, mine, rounds[0]);
  } else if (!a.send.empty()) {
    first.pairs(a, x, out);
  } else if (a.op == OpCode::all_reduce && !reduces_in_one_round(a)) {
    const AxisLayout cut(a.to.shape(), cut_for(a.to.shape(), a.to.ranks()), a.to.ranks());
    first.between(a.from, cut, {x, false}, {out, true}, a.reduction);
    Mover(rank, mine, rounds[1]).between(cut, a.to, {out, true}, {out, true}, {});
  } else {
    first.between(a.from, a.to, {x, false}, {out, false}, a.reduction, a.as_parts);
  }
}

}  // namespace tessera
