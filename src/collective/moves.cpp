#include "collective/moves.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

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

void append_exchange(const Arranged& a, int rank, int x, int out, std::span<const Tensor> mine, Move& move) {
  const Exchange& exchange = *a.exchange;
  const auto own = exchange.from().box(exchange.shape(), rank), target = exchange.to().box(exchange.shape(), rank);
  Mover mover(rank, mine, move);
  Dims axes;
  for (const size_t axis : exchange.reduced_axes()) axes.push_back(exchange.from().mesh().size(axis));
  const auto terms = static_cast<size_t>(exchange.terms());
  const size_t first = move.receives.size();
  move.for_one_sum_each = move.for_one_sum_each || terms > 1;  // a receiver takes the terms that it holds itself
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
  int64_t row_bytes(DType dtype) const {
    Dims row = shape;
    row[dim] = 1;
    return volume(row) * size_bytes(dtype);
  }
  // Where every way packs, none is dearer for it.
  bool packs() const { return !in_place && volume(Dims(std::span(shape).first(dim))) > 1; }
  GatherSchedules schedules(DType dtype, const Network& network) const {
    return {sizes, row_bytes(dtype), network, packs()};
  }
};

void append_gather(const Gathering& g, const Choice& choice, const GatherSchedules& schedules, int rank,
                   std::span<const Tensor> mine, Rounds& rounds) {
  const Schedule& schedule = cheapest(choice.gather);
  const auto round = [&](size_t number) { return Mover(rank, mine, rounds[g.first_round + number]); };
  round(static_cast<size_t>(schedule.rounds) - 1);  // all ranks have as many
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

// The first dimension that has something for everyone, else the longest.
size_t dim_to_cut(const Dims& shape, int ranks) {
  const auto* wide = std::find_if(shape.begin(), shape.end(), [&](int64_t extent) { return extent >= ranks; });
  return static_cast<size_t>((wide != shape.end() ? wide : std::max_element(shape.begin(), shape.end())) -
                             shape.begin());
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
    case OpCode::all_reduce: return Gathering{shape, dim, even_sizes(shape[dim], ranks), out, out, true, 1};
    default: return std::nullopt;
  }
}

// What an operation sums up for whom: sizes along a dimension.
struct Summing {
  size_t dim = 0;
  Sizes sizes;
};
std::optional<Summing> summing_of(const Arranged& a) {
  const Dims& shape = a.to.shape();
  if (!a.moves || shape.empty() || volume(shape) == 0) return std::nullopt;
  if (a.op == OpCode::reduce_scatter) return Summing{static_cast<size_t>(a.dim), a.sizes};
  if (a.op != OpCode::reduce) return std::nullopt;
  const size_t dim = dim_to_cut(shape, a.to.ranks());
  return Summing{dim, all_at(only_holder(a.to), shape[dim], a.to.ranks())};
}

// In logarithmic rounds: not of scalars, which have no room for two; with two ranks it is one round anyway.
bool sums_in_parts(const Arranged& a, const Network& network) {
  return network.hosts.count() == network.hosts.ranks() && network.hosts.ranks() > 2 && !a.to.shape().empty() &&
         combines_in_parts(a.reduction, a.dtype);
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
AxisPlacement cut_for(const Dims& shape, int ranks) {
  if (shape.empty()) return axis_at(0);
  const size_t dim = dim_to_cut(shape, ranks);
  return axis_shard(static_cast<int64_t>(dim), even_sizes(shape[dim], ranks));
}

// What an all_reduce costs in one round, where the bytes are so few that it is worth a thought at all; in two, where each
// rank gets its stretch of all terms, and then those of the others; and in logarithmic ones.
std::vector<Schedule> all_reduce_schedules(const Arranged& a, const std::vector<Schedule>& gather,
                                           const Network& network) {
  const int64_t elements = volume(a.to.shape());
  const double bytes = static_cast<double>(elements * size_bytes(a.dtype));
  const Prices& prices = network.prices;
  const auto round = [&](double bytes_each) {
    const int others = a.to.ranks() - 1;
    return prices.round_us + prices.messages_us(others, bytes_each) + others * bytes_each * prices.byte_us;
  };
  std::vector<Schedule> list;
  if (reduces_in_one_round(a)) list.push_back({Way::direct, 0, 1, round(bytes)});
  const Schedule& second = cheapest(gather);
  list.push_back({Way::spread, 0, 1 + second.rounds, round(bytes / a.to.ranks()) + second.us});
  // With shared elements a rank would write over its term while it is being sent.
  if (sums_in_parts(a, network) && !a.shares_elements)
    list.push_back(logarithmic_sum(elements, elements, size_bytes(a.dtype), network));
  return list;
}

// Two halves of it, if any: what a round adds up is not what others are sent in it.
Dims scratch_for_pairs(const Arranged& a) {
  Dims shape = a.to.shape();
  if (SumRounds(a.to.ranks()).count() > 2) shape[0] *= 2;
  return shape;
}

// The last round brings each rank what it is to have, those before the whole.
void append_pairs(const Arranged& a, int rank, Numbers numbers, std::span<const Tensor> mine, Rounds& rounds) {
  const SumRounds pairs(a.to.ranks());
  const int out = numbers.x + 1;
  // What a rank has before a round.
  const auto sum_of = [&](int r, int round, Box box) {
    const int sums = pairs.sums_before(r, round);
    if (sums > 0 && sums % 2 == 0) box.offset[0] += a.to.shape()[0];
    return Term{r, sums == 0 ? numbers.x : numbers.scratch, box};
  };
  for (int k = 0; k < pairs.count(); ++k) {
    const bool last = k + 1 == pairs.count();
    const auto wanted = [&](int r) {
      Box box = last ? a.to.box(r) : Box::whole(a.to.shape());
      if (last && !a.to.holds(r)) box.extent[0] = 0;
      return box;
    };
    Mover mover(rank, mine, rounds[static_cast<size_t>(k)]);
    const int from = pairs.source(rank, k);
    if (const Box box = wanted(rank); from >= 0 && !box.empty()) {
      const Term target = last ? Term{rank, out, Box::whole(box.extent)} : sum_of(rank, k + 1, box);
      const bool is_first = pairs.is_first(rank, k);
      const Receive receive{target.tensor, target.box, 0, 2, a.reduction, {}};
      mover.term(0, receive, sum_of(is_first ? rank : from, k, box));
      mover.term(1, receive, sum_of(is_first ? from : rank, k, box));
    }
    for (const int to : pairs.targets(rank, k)) {
      const Term sent = sum_of(rank, k, wanted(to));
      if (!sent.box.empty()) mover.send(to, sent.tensor, sent.box);
    }
  }
}

}  // namespace

bool Choice::sums(Way way) const { return !sum.empty() && cheapest(sum).way == way; }

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
  if (const auto gathering = gathering_of(a, {})) {
    choice.gather = gathering->schedules(a.dtype, *network).all();
    if (a.op == OpCode::all_reduce) {
      choice.sum = all_reduce_schedules(a, choice.gather, *network);
      choice.in_one_round = choice.sums(Way::direct);
      if (!choice.sums(Way::spread)) choice.gather.clear();
    }
  }
  const bool apart = network->hosts.count() == network->hosts.ranks();
  if (const auto summing = summing_of(a); summing && apart) {
    Dims row = a.to.shape();
    row[summing->dim] = 1;
    choice.sum = sum_schedules(summing->sizes, volume(row) * size_bytes(a.dtype), *network, sums_in_parts(a, *network));
    choice.has_scratch = choice.sums(Way::spread);
    if (choice.has_scratch) choice.scratch = even_cut(a, *summing).box(rank).extent;
  }
  if (choice.sums(Way::logarithmic)) {
    choice.has_scratch = true;
    choice.scratch = scratch_for_pairs(a);
  }
  return choice;
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
    move.for_one_sum_each = move.sends_alone = false;
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
  Mover first(rank, mine, rounds[0]);
  const auto gather = [&] {
    const auto g = gathering_of(a, numbers);
    append_gather(*g, choice, g->schedules(a.dtype, *network), rank, mine, rounds);
  };
  if (a.exchange != nullptr) {
    append_exchange(a, rank, x, out, mine, rounds[0]);
  } else if (!a.send.empty()) {
    first.pairs(a, x, out);
  } else if (choice.sums(Way::logarithmic)) {
    append_pairs(a, rank, numbers, mine, rounds);
  } else if (choice.has_scratch) {
    const AxisLayout cut = even_cut(a, *summing_of(a));
    first.between(a.from, cut, {x, false}, {numbers.scratch, false, true}, a.reduction);
    Mover(rank, mine, rounds[1]).between(cut, a.to, {numbers.scratch, false}, {out, false}, {});
  } else if (a.op == OpCode::all_reduce && !choice.in_one_round) {
    const AxisLayout cut(a.to.shape(), cut_for(a.to.shape(), a.to.ranks()), a.to.ranks());
    first.between(a.from, cut, {x, false}, {out, true, true}, a.reduction);
    if (!all_at_once) return gather();
    Mover(rank, mine, rounds[1]).between(cut, a.to, {out, true}, {out, true}, {});
  } else if (!all_at_once) {
    gather();
  } else {
    first.between(a.from, a.to, {x, false}, {out, false}, a.reduction, a.as_parts);
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
