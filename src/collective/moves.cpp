#include "collective/moves.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "collective/mover.hpp"
#include "collective/sum_moves.hpp"
#include "tensor/reduce.hpp"

namespace tessera {
namespace {

void append_exchange(const Arranged& a, int rank, int x, int out, std::span<const Tensor> mine, Move& move) {
  const Exchange& exchange = *a.exchange;
  const auto own = exchange.from().box(exchange.shape(), rank), target = exchange.to().box(exchange.shape(), rank);
  Mover mover(rank, mine, move);
  Dims axes;
  for (const size_t axis : exchange.reduced_axes()) axes.push_back(exchange.from().mesh().size(axis));
  const auto terms = static_cast<size_t>(exchange.terms());
  const size_t first = move.receives.size();
  move.for_one_sum_each = move.for_one_sum_each || terms > 1;  // a receiver takes the terms that it holds itself
  move.shares_wishes = true;
  for (size_t i = 0; i < a.receives.size(); i += terms) {
    const Box& box = a.receives[i].box;
    for (size_t t = 0; t < terms; ++t) {
      const int peer = a.receives[i + t].rank;
      const Box there = box.relative_to(exchange.from().box(exchange.shape(), peer)->offset);
      mover.term(t, {out, box.relative_to(target->offset), 0, terms, a.reduction, axes}, {peer, x, there});
    }
  }
  mover.start_with_own(first);
  for (const Overlap& sent : exchange.sends(rank)) mover.send(sent.rank, x, sent.box.relative_to(own->offset));
}

// Rows along one dimension, which ranks hold parts of, on their way to all. Their parts lie in `source`: each its own, or
// in their place in the whole.
struct Gathering {
  Dims shape;
  size_t dim = 0;
  Sizes sizes;
  int source = 0, out = 0;
  bool in_place = false;
  size_t first_round = 0;

  Box rows(Stretch stretch, int64_t origin) const {
    Box box = Box::whole(shape);
    box.offset[dim] = stretch.begin - origin;
    box.extent[dim] = stretch.length();
    return box;
  }
  // Where every way packs, none is dearer for it.
  bool packs() const { return !in_place && volume(Dims(std::span(shape).first(dim))) > 1; }
  GatherSchedules schedules(DType dtype, const Network& network) const {
    return {sizes, row_bytes(shape, dim, dtype), network, packs()};
  }
};

void append_gather(const Gathering& g, const Choice& choice, const GatherSchedules& schedules, int rank,
                   std::span<const Tensor> mine, Rounds& rounds) {
  const Schedule& schedule = cheapest(choice.gather);
  const auto round = [&](size_t number) { return Mover(rank, mine, rounds[g.first_round + number]); };
  for (int64_t k = 0; k < schedule.rounds; ++k) rounds[g.first_round + static_cast<size_t>(k)].shares_wishes = true;
  const auto source = [&](const Hop& hop) {
    const int64_t origin = hop.first_hand && !g.in_place ? schedules.own(hop.from).begin : 0;
    return Term{hop.from, hop.first_hand ? g.source : g.out, g.rows(hop.rows, origin)};
  };
  const Stretch own = schedules.own(rank);
  round(0).fetch(g.out, g.rows(own, 0), source({0, rank, rank, own, true}));
  for (const Hop& hop : schedules.hops_to(schedule, rank)) {
    round(hop.round).fetch(g.out, g.rows(hop.rows, 0), source(hop));
  }
  for (const Hop& hop : schedules.hops_from(schedule, rank)) {
    const Term term = source(hop);
    round(hop.round).send(hop.to, term.tensor, term.box);
  }
}

Sizes all_at(int rank, int64_t extent, int ranks) {
  Sizes sizes(static_cast<size_t>(ranks), 0);
  sizes[static_cast<size_t>(rank)] = extent;
  return sizes;
}

// The rank that has all, or is to have it.
int only_holder(const AxisLayout& layout) {
  for (int r = 0; r < layout.ranks(); ++r) {
    if (layout.holds(r)) return r;
  }
  return 0;
}

// What an operation gathers, where that may take several rounds.
std::optional<Gathering> gathering_of(const Arranged& a, Numbers numbers) {
  const Dims& shape = a.to.shape();
  const bool scaled = a.reduction.op == ReduceOp::premul_sum && !a.from.is_partial();
  if (!a.moves || a.as_parts || scaled || shape.empty() || volume(shape) == 0) return std::nullopt;
  const int out = numbers.x + 1, ranks = a.to.ranks();
  const size_t dim = dim_to_cut(shape, ranks);
  switch (a.op) {
    case OpCode::all_gather:
    case OpCode::all_gather_same: return Gathering{shape, static_cast<size_t>(a.dim), a.sizes, numbers.x, out};
    case OpCode::broadcast:
      return Gathering{shape, dim, all_at(only_holder(a.from), shape[dim], ranks), numbers.x, out};
    case OpCode::all_reduce: return Gathering{shape, dim, evenly(shape, ranks).sizes, out, out, true};
    default: return std::nullopt;
  }
}

AxisLayout even_cut(const Arranged& a, const Summing& summing) {
  return AxisLayout(a.to.shape(), axis_shard(static_cast<int64_t>(summing.dim), even_stretches(summing.sizes)),
                    a.to.ranks());
}

bool reduces_in_one_round(const Arranged& a) {
  // All terms are there; and where the others find the outputs, nobody has said (announce_out()).
  if (a.inlined) return true;
  // With shared elements ranks would read what others are writing over.
  return !a.shares_elements && volume(a.to.shape()) * size_bytes(a.dtype) <= kOneRoundBytes;
}

// What the ranks of an all_reduce sum up in its first round.
AxisLayout even_cut(const Arranged& a) {
  const Dims& shape = a.to.shape();
  const int ranks = a.to.ranks();
  if (shape.empty()) return AxisLayout(shape, axis_at(0), ranks);
  return even_cut(a, evenly(shape, ranks));
}

}  // namespace

bool Choice::sums_in_rounds() const {
  if (sum.empty()) return false;
  const Schedule& taken = cheapest(sum);
  return taken.block > 1 || taken.way == Way::logarithmic;
}

std::string Choice::text() const {
  std::string all;
  for (const auto* schedules : {&sum, &gather}) {
    if (!schedules->empty()) all += (all.empty() ? "" : "; then ") + explain(*schedules);
  }
  return all;
}

Choice choose(const Arranged& a, int rank, const Network* network) {
  Choice choice;
  choice.in_one_round = a.op == OpCode::all_reduce && reduces_in_one_round(a);
  if (network == nullptr) return choice;
  const auto sums = [&] { return SumSchedules(*network, in_parts(a.reduction, a.dtype, a.to.ranks()).has_value()); };
  if (const auto gathering = gathering_of(a, {})) {
    choice.gather = gathering->schedules(a.dtype, *network).all();
    if (a.op == OpCode::all_reduce) {
      const auto bytes = static_cast<double>(volume(a.to.shape()) * size_bytes(a.dtype));
      choice.sum = sums().kept_by_all(bytes, choice.in_one_round, a.shares_elements, cheapest(choice.gather));
      choice.in_one_round = !choice.sums_in_rounds() && cheapest(choice.sum).way == Way::direct;
      if (cheapest(choice.sum).way != Way::spread) choice.gather.clear();
    }
  }
  if (const auto summing = summing_of(a)) {
    choice.sum = sums().kept_apart(summing->sizes, row_bytes(a.to.shape(), summing->dim, a.dtype));
    choice.has_scratch = cheapest(choice.sum).way == Way::spread;
    if (choice.has_scratch) choice.scratch = even_cut(a, *summing).box(rank).extent;
  }
  if (choice.sums_in_rounds()) {
    choice.has_scratch = true;
    choice.scratch = SumMoves(a, cheapest(choice.sum), network->hosts, rank).scratch();
  }
  return choice;
}

Move& Rounds::operator[](size_t number) {
  while (moves_.size() <= number) moves_.emplace_back().shares_wishes = false;
  count_ = std::max(count_, number + 1);
  return moves_[number];
}

void Rounds::clear() {
  for (Move& move : moves_) {
    move.receives.clear();
    move.terms.clear();
    move.sends.clear();
    move.for_one_sum_each = move.sends_alone = move.shares_wishes = false;
    move.prepared.what.reset();
  }
  count_ = 0;
}

std::span<const Move> Rounds::finish() {
  const std::span<Move> rounds = std::span(moves_).first(count_);
  std::vector<Move*> sent_in;  // by tensor
  for (Move& round : rounds) {
    round.sends_alone = true;
    for (const Send& send : round.sends) {
      sent_in.resize(std::max(sent_in.size(), static_cast<size_t>(send.tensor) + 1));
      Move*& other = sent_in[static_cast<size_t>(send.tensor)];
      if (other == nullptr) other = &round;
      if (other != &round) other->sends_alone = round.sends_alone = false;
    }
  }
  return rounds;
}

void append_moves(const Arranged& a, const Choice& choice, const Network* network, int rank, Numbers numbers,
                  std::span<const Tensor> mine, Rounds& rounds) {
  if (!a.moves) return;
  const int x = numbers.x, out = numbers.x + 1;
  const bool all_at_once = choice.gather.empty() || cheapest(choice.gather).way == Way::direct;
  const auto round = [&](size_t number) { return Mover(rank, mine, rounds[number]); };
  const auto gather = [&](size_t first_round) {
    auto g = *gathering_of(a, numbers);
    g.first_round = first_round;
    append_gather(g, choice, g.schedules(a.dtype, *network), rank, mine, rounds);
  };
  // The second half of a sum that was spread: from who has a stretch of it to who is to have that.
  const auto deliver = [&](size_t first_round) {
    const int source = choice.has_scratch && a.op != OpCode::all_reduce ? numbers.scratch : out;
    if (source == out && !all_at_once) return gather(first_round);
    const AxisLayout cut = source == out ? even_cut(a) : even_cut(a, *summing_of(a));
    round(first_round).between(cut, a.to, {source, source == out}, {out, source == out}, {});
  };
  if (a.exchange != nullptr) {
    append_exchange(a, rank, x, out, mine, rounds[0]);
  } else if (!a.send.empty()) {
    round(0).pairs(a, x, out);
  } else if (choice.sums_in_rounds()) {
    const Schedule& schedule = cheapest(choice.sum);
    const size_t count = SumMoves(a, schedule, network->hosts, rank).append(numbers, mine, rounds);
    if (schedule.way == Way::spread) deliver(count);
  } else if (choice.has_scratch) {
    round(0).between(a.from, even_cut(a, *summing_of(a)), {x, false}, {numbers.scratch, false, true}, a.reduction);
    deliver(1);
  } else if (a.op == OpCode::all_reduce && !choice.in_one_round) {
    round(0).between(a.from, even_cut(a), {x, false}, {out, true, true}, a.reduction);
    deliver(1);
  } else if (!all_at_once) {
    gather(0);
  } else {
    round(0).between(a.from, a.to, {x, false}, {out, false}, a.reduction, a.as_parts);
  }
}

void count(const Move& move, int rank, std::span<const Tensor> mine, Stats& counted) {
  const auto bytes_of = [&](const Box& box, int tensor) {
    return box.elements() * size_bytes(mine[static_cast<size_t>(tensor)].dtype());
  };
  ++counted.moves;
  for (const Receive& receive : move.receives) {
    const int64_t bytes = bytes_of(receive.box, receive.tensor);
    ++counted.copies;
    counted.bytes_copied += bytes;
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      if (move.terms[t].rank == rank) continue;
      ++counted.messages;
      counted.bytes_received += bytes;
    }
  }
  for (const Send& send : move.sends) counted.bytes_sent += bytes_of(send.box, send.tensor);
}

}  // namespace tessera
