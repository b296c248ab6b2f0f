#include "collective/sum_moves.hpp"

#include <algorithm>
#include <numeric>

namespace tessera {

size_t dim_to_cut(const Dims& shape, int ranks) {
  const auto* wide = std::find_if(shape.begin(), shape.end(), [&](int64_t extent) { return extent >= ranks; });
  return static_cast<size_t>((wide != shape.end() ? wide : std::max_element(shape.begin(), shape.end())) -
                             shape.begin());
}

Summing evenly(const Dims& shape, int parts) {
  const size_t dim = dim_to_cut(shape, parts);
  return {dim, even_sizes(shape[dim], parts)};
}

std::optional<Summing> summing_of(const Arranged& a) {
  const Dims& shape = a.to.shape();
  if (!a.moves || shape.empty() || volume(shape) == 0) return std::nullopt;
  if (a.op == OpCode::reduce_scatter) return Summing{static_cast<size_t>(a.dim), a.sizes};
  if (a.op != OpCode::reduce) return std::nullopt;
  const size_t dim = dim_to_cut(shape, a.to.ranks());
  Sizes sizes(static_cast<size_t>(a.to.ranks()), 0);
  for (int r = 0; r < a.to.ranks(); ++r) {
    if (a.to.holds(r)) sizes[static_cast<size_t>(r)] = shape[dim];
  }
  return Summing{dim, sizes};
}

SumMoves::Cut SumMoves::cut_of(const Arranged& a, const Schedule& schedule, const Hosts& hosts) {
  const Dims& shape = a.to.shape();
  const bool is_spread = schedule.way == Way::spread;
  if (a.op == OpCode::all_reduce) {
    const auto [dim, sizes] = evenly(shape, is_spread ? hosts.ranks() : hosts.most_together());
    return {is_spread ? Folding::each_rank : Folding::every_host, dim, sizes};
  }
  const Summing summing = *summing_of(a);
  return {Folding::each_rank, summing.dim, is_spread ? even_stretches(summing.sizes) : summing.sizes};
}

SumMoves::SumMoves(const Arranged& arranged, const Schedule& schedule, const Hosts& hosts, int rank)
    : a_(arranged),
      schedule_(schedule),
      hosts_(hosts),
      rank_(rank),
      host_(hosts.host_of(rank)),
      cut_(cut_of(arranged, schedule, hosts)),
      folding_(hosts, Blocks(hosts, schedule.block), cut_.whom, cut_.sizes,
               row_bytes(arranged.to.shape(), cut_.dim, arranged.dtype)),
      pairs_(folding_.blocks().count()),
      parts_(*in_parts(arranged.reduction, arranged.dtype, hosts.ranks())) {}

Box SumMoves::rows(Stretch stretch, int64_t shift) const {
  Box box = Box::whole(a_.to.shape());
  box.offset[cut_.dim] = stretch.begin + shift;
  box.extent[cut_.dim] = stretch.length();
  return box;
}

int64_t SumMoves::rows_before(int rank) const {
  return schedule_.way == Way::spread && !is_for_all() ? cut_.sizes[static_cast<size_t>(rank)] : 0;
}

// In rounds of pairs two halves, if so many sums are kept: what a round adds up is not what others are sent in it.
Dims SumMoves::scratch() const {
  int64_t halves = 1;
  if (schedule_.way == Way::logarithmic) halves = pairs_.count() > (folds() ? 1 : 2) ? 2 : 1;
  Dims shape = a_.to.shape();
  shape[cut_.dim] = rows_before(rank_) + halves * folding_.rows_kept(rank_);
  return shape;
}

std::vector<int> SumMoves::kept_classes() const {
  std::vector<int> list;
  for (int c = 0; c < folding_.classes(); ++c) {
    if (folding_.keeper(host_, c) == rank_) list.push_back(c);
  }
  return list;
}

Receive SumMoves::sum_of(size_t piece, size_t terms, Numbers numbers) const {
  const bool is_spread = schedule_.way == Way::spread, is_read_next = is_spread || (is_for_all() && folds());
  const int tensor = is_spread && !is_for_all() ? numbers.scratch : numbers.x + 1;
  const int64_t origin = is_for_all() ? 0 : std::accumulate(cut_.sizes.begin(), cut_.sizes.begin() + rank_, int64_t{0});
  return {tensor, rows(folding_.rows(piece), -origin), 0, terms, parts_.last, {}, is_read_next};
}

// Each rank adds up what the blocks of its host have of the pieces that it keeps.
void SumMoves::fold(Numbers numbers, Mover round) const {
  for (int c = 0; c < folding_.classes(); ++c) {
    const int keeper = folding_.keeper(host_, c);
    for (const size_t piece : folding_.pieces_of(c)) {
      const Box box = rows(folding_.rows(piece));
      if (keeper != rank_) {
        round.send(keeper, numbers.x, box);
        continue;
      }
      for (const int block : folding_.blocks().on(host_)) {
        const Stretch ranks = folding_.blocks().ranks(block);
        const Box place = rows(folding_.place(piece, block), rows_before(rank_));
        const Receive receive{numbers.scratch, place, 0, static_cast<size_t>(ranks.length()), parts_.first, {}, true};
        for (int64_t r = ranks.begin; r < ranks.end; ++r) {
          round.term(static_cast<size_t>(r - ranks.begin), receive, {static_cast<int>(r), numbers.x, box});
        }
      }
    }
  }
}

// The terms of all blocks, in one round.
void SumMoves::exchange(Numbers numbers, Mover round) const {
  const Blocks& blocks = folding_.blocks();
  for (const int c : kept_classes()) {
    for (const size_t piece : folding_.pieces_of(c)) {
      const auto term_of = [&](int block) {
        const int keeper = folding_.keeper(blocks.host_of(block), c);
        return Term{keeper, numbers.scratch, rows(folding_.place(piece, block), rows_before(keeper))};
      };
      if (folding_.wanted_on(host_, piece) == rank_) {
        const Receive sum = sum_of(piece, static_cast<size_t>(blocks.count()), numbers);
        for (int b = 0; b < blocks.count(); ++b) round.term(static_cast<size_t>(b), sum, term_of(b));
      }
      for (const int to : folding_.takers(piece)) {
        if (hosts_.together(to, rank_)) continue;
        for (const int block : blocks.on(host_)) round.send(to, numbers.scratch, term_of(block).box);
      }
    }
  }
}

// Two blocks at a time, each on a host of its own; the last round brings each rank what it is to have, those before all that it
// keeps.
void SumMoves::pair_up(int number, Numbers numbers, Mover round) const {
  const Blocks& blocks = folding_.blocks();
  const int own = block(), other = pairs_.source(own, number);
  const auto targets = pairs_.targets(own, number);
  // What a block has before a round.
  const auto term_of = [&](int block, int before, int c, Stretch place) {
    const int keeper = folding_.keeper(blocks.host_of(block), c), sums = pairs_.sums_before(block, before);
    if (sums == 0 && !folds()) return Term{keeper, numbers.x, rows(place)};
    const bool second_half = (sums + (folds() ? 0 : 1)) % 2 == 1;
    return Term{keeper, numbers.scratch, rows(place, second_half ? folding_.rows_kept(keeper) : 0)};
  };
  const auto add = [&](const Receive& sum, const Term& mine, const Term& theirs) {
    const bool is_first = pairs_.is_first(own, number);
    round.term(0, sum, is_first ? mine : theirs);
    round.term(1, sum, is_first ? theirs : mine);
  };
  for (const int c : kept_classes()) {
    if (number + 1 < pairs_.count()) {
      const auto place_on = [&](int block) { return folding_.place_of_class(c, blocks.host_of(block)); };
      if (place_on(own).empty()) continue;
      const Term mine = term_of(own, number, c, place_on(own));
      if (other >= 0) {
        const Term next = term_of(own, number + 1, c, place_on(own));
        add({next.tensor, next.box, 0, 2, parts_.first, {}}, mine, term_of(other, number, c, place_on(other)));
      }
      for (const int to : targets) round.send(folding_.keeper(blocks.host_of(to), c), mine.tensor, mine.box);
      continue;
    }
    for (const size_t piece : folding_.pieces_of(c)) {
      const Term mine = term_of(own, number, c, folding_.place(piece, own));
      if (folding_.wanted_on(host_, piece) == rank_)
        add(sum_of(piece, 2, numbers), mine, term_of(other, number, c, folding_.place(piece, other)));
      for (const int block : targets) {
        const int to = folding_.wanted_on(blocks.host_of(block), piece);
        if (to >= 0) round.send(to, mine.tensor, mine.box);
      }
    }
  }
}

// What other ranks of the host have added up is read from them.
void SumMoves::share(Numbers numbers, Mover round) const {
  const int out = numbers.x + 1;
  for (int c = 0; c < folding_.classes(); ++c) {
    const int keeper = folding_.keeper(host_, c);
    for (const size_t piece : folding_.pieces_of(c)) {
      const Box box = rows(folding_.rows(piece));
      if (keeper != rank_) {
        round.fetch(out, box, {keeper, out, box});
        continue;
      }
      for (const int to : hosts_.ranks_on(host_)) round.send(to, out, box);
    }
  }
}

size_t SumMoves::append(Numbers numbers, std::span<const Tensor> mine, Rounds& rounds) const {
  size_t count = 0;
  const auto next = [&] { return Mover(rank_, mine, rounds[count++]); };
  if (folds()) fold(numbers, next());
  if (schedule_.way == Way::logarithmic) {
    for (int k = 0; k < pairs_.count(); ++k) pair_up(k, numbers, next());
  } else {
    exchange(numbers, next());
  }
  if (folds() && is_for_all() && schedule_.way != Way::spread) share(numbers, next());
  return count;
}

}  // namespace tessera
