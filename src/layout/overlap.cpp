#include <tessera/overlap.hpp>

#include <algorithm>

#include "layout/cutting.hpp"

namespace tessera {
namespace {

// An axis that becomes pending with an identity to fill up with.
bool has_identity(const Placement& q) { return q.kind == Placement::Kind::partial && q.op != ReduceOp::avg; }

}  // namespace

struct Exchange::State {
  // Where the coordinate on an axis of the source comes from, for a piece that goes to a receiver.
  enum class Source : uint8_t {
    cut,      // the piece has it
    fixed,    // At
    same,     // the receiver's own: stays pending, or a replica at every coordinate that needs it
    reduced,  // each in turn: a term
    turns,    // replicas that take turns
  };

  // And on an axis of the target, for the receivers of a piece.
  enum class Target : uint8_t {
    block,  // its cut and the source's cut the same dimension: only some pieces meet
    fixed,  // At, or the first coordinate where it becomes pending
    same,   // the sender's own
    free,   // all of them
  };

  Layout from, to;
  Dims shape;
  std::vector<Source> source;
  std::vector<Target> target;
  std::vector<int64_t> target_index;  // of fixed ones
  std::vector<size_t> reduced;
  int64_t terms = 1, turns = 1;
  std::vector<Cutting> source_cuts, target_cuts;  // by dimension; one piece where it is not cut
  std::vector<size_t> blocks;                     // dimensions that both cut
  std::vector<bool> kept;  // by axis of one mesh: becomes pending, and everyone's part is its term as it is

  State(const Layout& f, const Layout& t, const Dims& s) : from(f.resolved(s)), to(t.resolved(s)), shape(s) {
    source_cuts = cuttings(from);
    target_cuts = cuttings(to);
    find_roles();
  }

  std::vector<Cutting> cuttings(const Layout& layout) const {
    std::vector<Cutting> list;
    for (const int64_t extent : shape) list.emplace_back(extent);
    for (const Layout::Cut& cut : layout.cuts()) {
      const auto d = static_cast<size_t>(cut.dim);
      list[d] = Cutting(shape[d], layout.mesh(), cut);
    }
    return list;
  }

  // One rank alone cuts nothing: so exchanges are priced.
  static bool cuts_dim(const Layout& layout, int64_t dim) {
    const auto& cuts = layout.cuts();
    const auto cut = std::find_if(cuts.begin(), cuts.end(), [&](const auto& c) { return c.dim == dim; });
    return cut != cuts.end() &&
           std::any_of(cut->axes.begin(), cut->axes.end(), [&](size_t axis) { return layout.mesh().size(axis) > 1; });
  }

  void find_roles() {
    using Kind = Placement::Kind;
    const bool one_mesh = from.mesh() == to.mesh();
    for (size_t a = 0; a < from.mesh().ndim(); ++a) {
      const Placement& p = from.placements()[a];
      const Placement* q = one_mesh ? &to.placements()[a] : nullptr;
      source.push_back(p.kind == Kind::shard     ? Source::cut
                       : p.kind == Kind::at      ? Source::fixed
                       : p.kind == Kind::partial ? (q != nullptr && *q == p ? Source::same : Source::reduced)
                       : q != nullptr && all_need_the_same(*q) ? Source::same
                                                               : Source::turns);
      if (source[a] == Source::reduced) {
        reduced.push_back(a);
        terms *= from.mesh().size(a);
      }
      if (source[a] == Source::turns) turns *= from.mesh().size(a);
    }
    for (size_t a = 0; a < to.mesh().ndim(); ++a) {
      const Placement& q = to.placements()[a];
      kept.push_back(one_mesh && has_identity(q) && (source[a] == Source::cut || source[a] == Source::fixed));
      target.push_back(one_mesh && (source[a] == Source::same || kept[a]) ? Target::same
                       : q.kind == Kind::shard && cuts_dim(from, q.dim)   ? Target::block
                       : q.kind == Kind::at || has_identity(q)            ? Target::fixed
                                                                          : Target::free);
      target_index.push_back(q.kind == Kind::at ? q.index : 0);
    }
    for (const Layout::Cut& cut : to.cuts()) {
      if (cuts_dim(from, cut.dim)) blocks.push_back(static_cast<size_t>(cut.dim));
    }
    std::sort(blocks.begin(), blocks.end());  // whatever order the cuts were stated in: so they are priced
  }

  // Whether whoever needs a piece of a replica is found at every coordinate of the target's axis alike.
  bool all_need_the_same(const Placement& q) const {
    if (q.kind == Placement::Kind::shard) return !cuts_dim(from, q.dim);
    return q.kind == Placement::Kind::replicate || (q.kind == Placement::Kind::partial && q.op == ReduceOp::avg);
  }

  bool gets_value(const Dims& receiver) const {
    for (size_t a = 0; a < target.size(); ++a) {
      if (target[a] == Target::fixed && receiver[a] != target_index[a]) return false;
      if (kept[a] && source[a] == Source::fixed && receiver[a] != from.placements()[a].index) return false;
    }
    return to.holds(receiver);
  }

  // Whether the rank has the piece that `holder` has, as a replica of it or as the holder.
  bool has_piece_of(const Dims& holder, int rank) const {
    const auto own = from.mesh().coordinate(rank);
    if (!own) return false;
    for (size_t a = 0; a < source.size(); ++a) {
      if (from.placements()[a].kind != Placement::Kind::replicate && (*own)[a] != holder[a]) return false;
    }
    return true;
  }

  static Interval along(const Box& box, size_t d) { return {box.offset[d], box.offset[d] + box.extent[d]}; }

  // The receivers of a piece are numbered row-major: over the pieces of each block that meet it, then over the free axes.
  std::vector<Interval> ranges(const Box& piece) const {
    std::vector<Interval> list;
    for (const size_t d : blocks) list.push_back(target_cuts[d].meeting(along(piece, d)));
    for (size_t a = 0; a < target.size(); ++a) {
      if (target[a] == Target::free) list.push_back({0, to.mesh().size(a)});
    }
    return list;
  }

  int64_t number_of(const Dims& receiver, const std::vector<Interval>& ranges) const {
    int64_t number = 0;
    size_t i = 0;
    for (const size_t d : blocks) {
      number = number * ranges[i].length() + target_cuts[d].number_at(receiver) - ranges[i].begin;
      ++i;
    }
    for (size_t a = 0; a < target.size(); ++a) {
      if (target[a] == Target::free) number = number * ranges[i++].length() + receiver[a];
    }
    return number;
  }

  Dims receiver_at(int64_t number, const std::vector<Interval>& ranges, const Dims& holder) const {
    Dims receiver = Dims::filled(target.size(), 0);
    size_t i = ranges.size();
    for (size_t a = target.size(); a-- > 0;) {
      if (target[a] == Target::fixed) receiver[a] = target_index[a];
      if (target[a] == Target::same) receiver[a] = holder[a];
      if (target[a] != Target::free) continue;
      receiver[a] = number % ranges[--i].length();
      number /= ranges[i].length();
    }
    for (size_t b = blocks.size(); b-- > 0;) {
      --i;
      target_cuts[blocks[b]].set_coordinate(ranges[i].begin + number % ranges[i].length(), receiver);
      number /= ranges[i].length();
    }
    return receiver;
  }

  // Row-major over the axes with that role.
  int64_t number_on(Source role, const Dims& holder) const {
    int64_t number = 0;
    for (size_t a = 0; a < source.size(); ++a) {
      if (source[a] == role) number = number * from.mesh().size(a) + holder[a];
    }
    return number;
  }
  void set_number_on(Source role, int64_t number, Dims& holder) const {
    for (size_t a = source.size(); a-- > 0;) {
      if (source[a] != role) continue;
      holder[a] = number % from.mesh().size(a);
      number /= from.mesh().size(a);
    }
  }

  int sender_of(Dims holder, const Box& piece, const Dims& receiver, int rank) const {
    if (has_piece_of(holder, rank)) return rank;
    if (turns > 1) set_number_on(Source::turns, number_of(receiver, ranges(piece)) % turns, holder);
    return from.mesh().rank_at(holder);
  }

  // Calls fn(holder, piece) for each piece of the source that meets the box, the holder's cut axes set.
  template <class Fn>
  void for_each_piece(const Box& box, const Dims& receiver, size_t d, Dims& holder, Box& piece, Fn&& fn) const {
    if (d == shape.size()) return fn(holder, piece);
    const Cutting& cutting = source_cuts[d];
    Interval meeting = cutting.meeting(along(box, d));
    if (all_kept(d)) {
      const int64_t own = cutting.number_at(receiver);
      meeting = {std::max(meeting.begin, own), std::min(meeting.end, own + 1)};
    }
    for (int64_t k = meeting.begin; k < meeting.end; ++k) {
      const Interval part = cutting.piece(k);
      if (part.length() == 0) continue;
      cutting.set_coordinate(k, holder);
      if (!keeps(d, holder, receiver)) continue;
      piece.offset[d] = part.begin;
      piece.extent[d] = part.length();
      for_each_piece(box, receiver, d + 1, holder, piece, fn);
    }
  }

  const Layout::Cut* source_cut(size_t d) const {
    for (const Layout::Cut& cut : from.cuts()) {
      if (cut.dim == static_cast<int64_t>(d)) return &cut;
    }
    return nullptr;
  }
  bool all_kept(size_t d) const {
    const Layout::Cut* cut = any_kept() ? source_cut(d) : nullptr;
    return cut != nullptr && std::all_of(cut->axes.begin(), cut->axes.end(), [&](size_t a) { return kept[a]; });
  }
  // Of an axis that becomes pending a rank takes its own part alone.
  bool keeps(size_t d, const Dims& holder, const Dims& receiver) const {
    const Layout::Cut* cut = any_kept() ? source_cut(d) : nullptr;
    return cut == nullptr || std::all_of(cut->axes.begin(), cut->axes.end(),
                                         [&](size_t a) { return !kept[a] || holder[a] == receiver[a]; });
  }
  bool any_kept() const { return std::find(kept.begin(), kept.end(), true) != kept.end(); }
};

Exchange::Exchange(const Layout& from, const Layout& to, const Dims& shape)
    : state_(std::make_shared<State>(from, to, shape)) {}

const Dims& Exchange::shape() const { return state_->shape; }
const Layout& Exchange::from() const { return state_->from; }
const Layout& Exchange::to() const { return state_->to; }
int64_t Exchange::terms() const { return state_->terms; }
const std::vector<size_t>& Exchange::reduced_axes() const { return state_->reduced; }

std::vector<Overlap> Exchange::receives(int rank) const {
  const State& s = *state_;
  std::vector<Overlap> list;
  const auto receiver = s.to.mesh().coordinate(rank);
  if (!receiver || !s.gets_value(*receiver)) return list;
  const Box own = *s.to.box(s.shape, *receiver);
  if (own.empty()) return list;
  Dims holder = Dims::filled(s.source.size(), 0);
  for (size_t a = 0; a < s.source.size(); ++a) {
    if (s.source[a] == State::Source::fixed) holder[a] = s.from.placements()[a].index;
    if (s.source[a] == State::Source::same) holder[a] = (*receiver)[a];
  }
  Box piece = Box::whole(s.shape);
  s.for_each_piece(own, *receiver, 0, holder, piece, [&](Dims& place, const Box& found) {
    const Box box = intersect(own, found);
    for (int64_t term = 0; term < s.terms; ++term) {
      s.set_number_on(State::Source::reduced, term, place);
      list.push_back({s.sender_of(place, found, *receiver, rank), term, box});
    }
  });
  return list;
}

std::vector<Overlap> Exchange::sends(int rank) const {
  const State& s = *state_;
  std::vector<Overlap> list;
  const auto holder = s.from.mesh().coordinate(rank);
  if (!holder || !s.from.holds(*holder)) return list;
  const Box own = *s.from.box(s.shape, *holder);
  if (own.empty()) return list;
  const int64_t term = s.number_on(State::Source::reduced, *holder);
  const auto add = [&](int to, const Dims& receiver) {
    const Box box = intersect(own, *s.to.box(s.shape, receiver));
    if (!box.empty()) list.push_back({to, term, box});
  };
  const auto ranges = s.ranges(own);
  int64_t receivers = 1;
  for (const Interval& range : ranges) receivers *= range.length();
  for (int64_t number = s.number_on(State::Source::turns, *holder); number < receivers; number += s.turns) {
    const Dims receiver = s.receiver_at(number, ranges, *holder);
    const int to = s.to.mesh().rank_at(receiver);
    if (!s.has_piece_of(*holder, to)) add(to, receiver);  // those that have it need nobody
  }
  const auto here = s.to.mesh().coordinate(rank);
  if (here && s.gets_value(*here)) add(rank, *here);
  std::sort(list.begin(), list.end(), [](const Overlap& a, const Overlap& b) { return a.rank < b.rank; });
  return list;
}

bool Exchange::embeds(int rank) const {
  const State& s = *state_;
  const auto receiver = s.to.mesh().coordinate(rank);
  if (!receiver || !s.to.holds(*receiver)) return false;
  if (!s.gets_value(*receiver)) return true;
  for (size_t a = 0; a < s.kept.size(); ++a) {
    if (s.kept[a] && s.source[a] == State::Source::cut && s.from.mesh().size(a) > 1) return true;
  }
  return false;
}

}  // namespace tessera
