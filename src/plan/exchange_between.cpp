#include "plan/exchange_between.hpp"

#include <algorithm>

namespace tessera {
namespace {

using Load = ExchangeBetween::Load;

const Layout::Cut* cut_of_dim(const Layout& layout, size_t d) {
  for (const Layout::Cut& cut : layout.cuts()) {
    if (cut.dim == static_cast<int64_t>(d)) return &cut;
  }
  return nullptr;
}

Cutting cutting_of(const Layout& layout, const Dims& shape, size_t d) {
  const Layout::Cut* cut = cut_of_dim(layout, d);
  return cut == nullptr ? Cutting(shape[d]) : Cutting(shape[d], layout.mesh(), *cut);
}

std::vector<Interval> pieces_of(const Cutting& cutting) {
  std::vector<Interval> pieces;
  for (int64_t k = 0; k < cutting.pieces(); ++k) pieces.push_back(cutting.piece(k));
  return pieces;
}

int64_t shared(const Interval& a, const Interval& b) {
  return std::max<int64_t>(std::min(a.end, b.end) - std::max(a.begin, b.begin), 0);
}

// Along one dimension: how long a piece is, and how many of the others it meets.
std::set<Load> kinds_along(const std::vector<Interval>& pieces, const Cutting& others,
                           const std::vector<Interval>& other_pieces) {
  std::set<Load> kinds;
  for (const Interval& piece : pieces) {
    if (piece.length() == 0) continue;
    const Interval range = others.meeting(piece);
    Load load{0, static_cast<double>(piece.length())};
    for (int64_t k = range.begin; k < range.end; ++k) {
      load.peers += shared(piece, other_pieces[static_cast<size_t>(k)]) > 0 ? 1 : 0;
    }
    kinds.insert(load);
  }
  return kinds;
}

// Every kind along one dimension comes with every kind along another, as no axis cuts both.
std::set<Load> times(const std::set<Load>& some, const std::set<Load>& others) {
  std::set<Load> products;
  for (const Load& a : some) {
    for (const Load& b : others) products.insert({a.peers * b.peers, a.elements * b.elements});
  }
  return products;
}

}  // namespace

// The roles of axes are those of Exchange; see there.
ExchangeBetween::ExchangeBetween(const Layout& from, const Layout& to, const Dims& shape) : from_(from), to_(to) {
  using Kind = Placement::Kind;
  for (size_t d = 0; d < shape.size(); ++d) {
    Dim dim{cutting_of(from, shape, d), cutting_of(to, shape, d), {}, {}};
    dim.from_pieces = pieces_of(dim.from);
    dim.to_pieces = pieces_of(dim.to);
    dim.both = dim.from_pieces.size() > 1 && dim.to_pieces.size() > 1;
    dims_.push_back(std::move(dim));
  }
  for (const Layout::Cut& cut : to.cuts()) {
    if (dims_[static_cast<size_t>(cut.dim)].both) both_.push_back(static_cast<size_t>(cut.dim));
  }
  std::sort(both_.begin(), both_.end());
  for (size_t a = 0; a < from.mesh().ndim(); ++a) {
    const Kind kind = from.placements()[a].kind;
    if (kind == Kind::partial) terms_ *= from.mesh().size(a);
    if (kind == Kind::replicate) turns_ *= from.mesh().size(a);
  }
  for (size_t a = 0; a < to.mesh().ndim(); ++a) {
    const Placement& q = to.placements()[a];
    const bool fixed = q.kind == Kind::at || (q.kind == Kind::partial && q.op != ReduceOp::avg);
    const bool cuts = q.kind == Kind::shard;
    if (fixed || (cuts && dims_[static_cast<size_t>(q.dim)].both)) continue;
    free_axes_.push_back(a);
    if (!cuts) copies_ *= to.mesh().size(a);
  }
  const auto terms = static_cast<double>(terms_);
  received_ = {{terms, terms}};
  for (const Dim& dim : dims_) received_ = times(received_, kinds_along(dim.to_pieces, dim.from, dim.from_pieces));
}

ExchangeBetween::Load ExchangeBetween::least_of(const Load& received) const {
  double own = 1;
  for (const Dim& dim : dims_) {
    int64_t longest = 0;
    for (const Interval& piece : dim.from_pieces) longest = std::max(longest, piece.length());
    own *= static_cast<double>(longest);
  }
  // It holds one term of one piece, and no more of it than it needs.
  own = std::min(own, received.elements / static_cast<double>(terms_));
  return {std::max(received.peers - 1, 0.0), received.elements - own};
}

std::set<ExchangeBetween::Load> ExchangeBetween::sent() const {
  if (turns_ > 1) return sent_in_turns();
  const auto copies = static_cast<double>(copies_);
  std::set<Load> loads = {{copies, copies}};
  for (const Dim& dim : dims_) loads = times(loads, kinds_along(dim.from_pieces, dim.to, dim.to_pieces));
  return loads;
}

std::set<ExchangeBetween::Shares> ExchangeBetween::kinds_of_shares(const Dim& dim) const {
  std::set<Shares> kinds;
  for (const Interval& piece : dim.from_pieces) {
    if (piece.length() == 0) continue;
    const Interval range = dim.to.meeting(piece);
    Shares shares;
    for (int64_t k = range.begin; k < range.end; ++k) {
      shares.push_back(shared(piece, dim.to_pieces[static_cast<size_t>(k)]));
    }
    kinds.insert(std::move(shares));
  }
  return kinds;
}

std::vector<int64_t> ExchangeBetween::free_shares() const {
  int64_t places = 1;
  for (const size_t a : free_axes_) places *= to_.mesh().size(a);
  std::vector<int64_t> shares;
  Dims coordinate = Dims::filled(to_.mesh().ndim(), 0);
  for (int64_t place = 0; place < places; ++place) {
    int64_t rest = place;
    for (size_t i = free_axes_.size(); i-- > 0;) {
      coordinate[free_axes_[i]] = rest % to_.mesh().size(free_axes_[i]);
      rest /= to_.mesh().size(free_axes_[i]);
    }
    int64_t share = 1;
    for (const Dim& dim : dims_) {
      if (dim.from_pieces.size() > 1) continue;
      share *= dim.to_pieces[static_cast<size_t>(dim.to.number_at(coordinate))].length();
    }
    shares.push_back(share);
  }
  return shares;
}

// The receivers of a piece are numbered, and each replica of it serves every turns_-th.
std::set<ExchangeBetween::Load> ExchangeBetween::sent_in_turns() const {
  const std::vector<int64_t> free = free_shares();
  std::set<Load> loads;
  std::set<int64_t> lengths = {1};  // of what the source alone cuts
  for (const Dim& dim : dims_) {
    if (dim.both || dim.from_pieces.size() == 1) continue;
    std::set<int64_t> longer;
    for (const int64_t length : lengths) {
      for (const Interval& piece : dim.from_pieces) {
        if (piece.length() > 0) longer.insert(length * piece.length());
      }
    }
    lengths = std::move(longer);
  }
  std::vector<Load> by_turn(static_cast<size_t>(turns_));
  const auto add_up = [&](auto& self, const std::vector<const Shares*>& kind, size_t i, int64_t number,
                          int64_t share) -> void {
    if (i < kind.size()) {
      const auto count = static_cast<int64_t>(kind[i]->size());
      for (int64_t k = 0; k < count; ++k) {
        self(self, kind, i + 1, number * count + k, share * (*kind[i])[static_cast<size_t>(k)]);
      }
      return;
    }
    if (share == 0) return;
    auto turn = static_cast<size_t>(number * static_cast<int64_t>(free.size()) % turns_);
    for (const int64_t more : free) {
      if (more > 0) {
        by_turn[turn].peers += 1;
        by_turn[turn].elements += static_cast<double>(share * more);
      }
      if (++turn == by_turn.size()) turn = 0;
    }
  };
  std::vector<std::set<Shares>> kinds;
  for (const size_t d : both_) kinds.push_back(kinds_of_shares(dims_[d]));
  const auto choose = [&](auto& self, std::vector<const Shares*>& kind) -> void {
    if (kind.size() < kinds.size()) {
      for (const Shares& shares : kinds[kind.size()]) {
        kind.push_back(&shares);
        self(self, kind);
        kind.pop_back();
      }
      return;
    }
    std::fill(by_turn.begin(), by_turn.end(), Load());
    add_up(add_up, kind, 0, 0, 1);
    for (const Load& load : by_turn) {
      for (const int64_t length : lengths) loads.insert({load.peers, load.elements * static_cast<double>(length)});
    }
  };
  std::vector<const Shares*> kind;
  choose(choose, kind);
  return loads;
}

}  // namespace tessera
