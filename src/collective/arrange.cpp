#include "collective/arrange.hpp"

#include <algorithm>

namespace tessera {
namespace {

// The records of one operation, by rank.
class Said {
 public:
  Said(const CallName& call, const std::vector<Record>& records, size_t op) : call_(call), records_(records), op_(op) {}

  int ranks() const { return static_cast<int>(records_.size()); }
  const Statement& by(int rank) const { return records_[static_cast<size_t>(rank)].statements[op_]; }
  const Statement& first() const { return by(0); }
  std::string site(int rank) const { return records_[static_cast<size_t>(rank)].site(); }
  Sizes extents(int64_t dim) const {
    Sizes sizes;
    sizes.reserve(records_.size());
    for (int r = 0; r < ranks(); ++r) sizes.push_back(by(r).x().shape[static_cast<size_t>(dim)]);
    return sizes;
  }

  Sizes flags() const {
    Sizes flags;
    for (int r = 0; r < ranks(); ++r) flags.push_back(by(r).flags);
    if (std::all_of(flags.begin(), flags.end(), [](int64_t f) { return f == 0; })) flags.clear();
    return flags;
  }

  [[noreturn]] void fail(ErrorKind kind, const std::string& text) const {
    throw_error(kind, fmt::format("{}: {}: {} Nothing was moved.", to_string(call_), name(first().op), text));
  }

 private:
  const CallName& call_;
  const std::vector<Record>& records_;
  size_t op_;
};

std::string text_of(const Sizes& sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

// The sizes that ranks passed in must be the ones found out.
void check_given(const Said& said, const Sizes& found, int64_t dim) {
  std::string wrong;
  for (int r = 0; r < said.ranks(); ++r) {
    const Sizes& given = said.by(r).sizes;
    if (!given.empty() && given != found) {
      wrong += fmt::format("\n  rank {} gave sizes {}   {}", r, text_of(given), said.site(r));
    }
  }
  if (wrong.empty()) return;
  said.fail(ErrorKind::shape, fmt::format("the sizes that were given do not fit the tensors, "
                                          "which have {} along dim {}:{}\n"
                                          "Give those sizes, or none: then they are found out.",
                                          text_of(found), dim, wrong));
}

// The sizes of a cut, which all ranks (or the root) give, or nobody: then it is
// that of torch.chunk.
Sizes agreed_cut(const Said& said, int64_t extent, int64_t dim, int root) {
  const Sizes& reference = said.by(std::max(root, 0)).sizes;
  for (int r = 0; r < said.ranks(); ++r) {
    const Sizes& given = said.by(r).sizes;
    if (given == reference || (root >= 0 && given.empty())) continue;
    said.fail(ErrorKind::mismatch, fmt::format("rank {} gave sizes {}   {}\n  rank {} gave {}   "
                                               "{}\nGive the same sizes on "
                                               "every rank.",
                                               r, text_of(given), said.site(r), std::max(root, 0), text_of(reference),
                                               said.site(std::max(root, 0))));
  }
  if (reference.empty()) return chunk_sizes(extent, said.ranks());
  if (total(reference) != extent) {
    said.fail(ErrorKind::shape, fmt::format("the sizes {} add up to {}, but dim {} has {}.", text_of(reference),
                                            total(reference), dim, extent));
  }
  return reference;
}

Dims with_extent(const Said& said, Dims shape, int64_t dim, const Sizes& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    if (__builtin_add_overflow(sum, size, &sum)) {
      said.fail(ErrorKind::shape, fmt::format("the sizes {} add up to more than 2^63 - 1.", text_of(sizes)));
    }
  }
  shape[static_cast<size_t>(dim)] = sum;
  return shape;
}

void check_bytes(const Said& said, DType dtype, const Dims& shape) {
  int64_t bytes = size_bytes(dtype);
  bool over = false;
  for (const int64_t extent : shape) over = over || __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes);
  if (over) said.fail(ErrorKind::shape, fmt::format("the result {} {} has more than 2^63 - 1 bytes.", dtype, shape));
}

void arrange_all_to_all_v(const Said& said, Arranged& a) {
  const int n = said.ranks();
  for (int r = 0; r < n; ++r) a.send.push_back(said.by(r).sizes);
  Sizes received(static_cast<size_t>(n), 0);
  std::string wrong;
  for (int to = 0; to < n; ++to) {
    Sizes column;
    for (int from = 0; from < n; ++from) column.push_back(a.send[static_cast<size_t>(from)][static_cast<size_t>(to)]);
    const Sizes& expected = said.by(to).recv_sizes;
    if (!expected.empty() && expected != column) {
      wrong += fmt::format("\n  rank {} expects {}, but is sent {}   {}", to, text_of(expected), text_of(column),
                           said.site(to));
    }
    received[static_cast<size_t>(to)] = with_extent(said, {0}, 0, column)[0];
  }
  if (!wrong.empty())
    said.fail(ErrorKind::shape, fmt::format("recv_sizes do not fit the send_sizes of the "
                                            "others:{}\nGive what is sent, or none.",
                                            wrong));
  const int64_t dim = said.first().dim;
  const Dims shape = with_extent(said, said.first().x().shape, dim, received);
  a.to = AxisLayout(shape, axis_shard(dim, received), n);
}

void arrange_layouts(const Said& said, Arranged& a) {
  const int n = said.ranks();
  const Statement& s = said.first();
  const int root = static_cast<int>(s.root);
  const auto lay = [&](const Dims& shape, AxisPlacement from, AxisPlacement to) {
    a.from = AxisLayout(shape, std::move(from), n);
    a.to = AxisLayout(shape, std::move(to), n);
  };
  switch (a.op) {
    case OpCode::all_gather:
    case OpCode::all_gather_parts:
    case OpCode::all_gather_same:
    case OpCode::gather: {
      a.sizes = said.extents(s.dim);
      check_given(said, a.sizes, s.dim);
      a.as_parts = a.op == OpCode::all_gather_parts;
      const Dims shape = with_extent(said, s.x().shape, s.dim, a.sizes);
      lay(shape, axis_shard(s.dim, a.sizes), a.op == OpCode::gather ? axis_at(root) : axis_replicate());
      break;
    }
    case OpCode::reduce_scatter:
      a.sizes = agreed_cut(said, s.x().shape[static_cast<size_t>(s.dim)], s.dim, -1);
      lay(s.x().shape, axis_partial(), axis_shard(s.dim, a.sizes));
      break;
    case OpCode::all_reduce: lay(s.x().shape, axis_partial(), axis_replicate()); break;
    case OpCode::reduce: lay(s.x().shape, axis_partial(), axis_at(root)); break;
    case OpCode::all_to_all: {
      a.sizes = said.extents(s.dim);
      const Sizes cut = agreed_cut(said, s.x().shape[static_cast<size_t>(s.split_dim)], s.split_dim, -1);
      const Dims shape = with_extent(said, s.x().shape, s.dim, a.sizes);
      lay(shape, axis_shard(s.dim, a.sizes), axis_shard(s.split_dim, cut));
      break;
    }
    case OpCode::all_to_all_v: arrange_all_to_all_v(said, a); break;
    case OpCode::broadcast: lay(said.by(root).x().shape, axis_at(root), axis_replicate()); break;
    case OpCode::scatter_parts: lay(said.by(root).x().shape, axis_at(root), axis_at(s.extra[0])); break;
    case OpCode::scatter: {
      const Dims& shape = said.by(root).x().shape;
      const int64_t dim = said.by(root).dim;  // from the front; a rank without x
                                              // may have counted from the back
      a.sizes = agreed_cut(said, shape[static_cast<size_t>(dim)], dim, root);
      lay(shape, axis_at(root), axis_shard(dim, a.sizes));
      break;
    }
    default: break;
  }
}

std::optional<Box> part_before(const Arranged& a, int rank) {
  return a.exchange->from().box(a.exchange->shape(), rank);
}
std::optional<Box> part_after(const Arranged& a, int rank) { return a.exchange->to().box(a.exchange->shape(), rank); }

// The outputs that ranks gave must have the shape and dtype of the result.
void check_outputs(const Said& said, const Arranged& a) {
  std::string wrong;
  ErrorKind kind = ErrorKind::shape;
  for (int r = 0; r < said.ranks(); ++r) {
    const auto outs = said.by(r).outs();
    if (outs.empty()) continue;
    const size_t expected = a.as_parts ? static_cast<size_t>(said.ranks()) : 1;
    if (!has_output(a, r)) continue;
    if (outs.size() != expected) {
      wrong +=
          fmt::format("\n  rank {} gave {} tensors, the result has {}   {}", r, outs.size(), expected, said.site(r));
      continue;
    }
    for (size_t i = 0; i < outs.size(); ++i) {
      const Dims shape = output_shape(a, r, static_cast<int>(i));
      if (outs[i].shape == shape && outs[i].dtype == a.dtype) continue;
      if (outs[i].shape == shape) kind = ErrorKind::dtype;
      wrong += fmt::format("\n  rank {} gave {} {}, the result is {} {}   {}", r, outs[i].dtype, outs[i].shape, a.dtype,
                           shape, said.site(r));
    }
  }
  if (!wrong.empty())
    said.fail(kind, fmt::format("out does not fit the result:{}\nGive one that fits, or none.", wrong));
}

// Where x and out overlap they must be one tensor and a part of it, so that
// every element that stays with its rank already lies in its place, and no peer
// reads what this rank writes.
bool in_place_fits(const Statement& s, const Arranged& a, int rank, int out) {
  if (a.exchange != nullptr ? !s.has_x : !a.from.holds(rank)) return true;  // x is not read at all
  // Of several terms, peers read what this rank would write over.
  if (a.exchange != nullptr && a.exchange->terms() > 1) return false;
  const int64_t distance = s.in_place[static_cast<size_t>(out)];
  // Scaled on the way, even the own elements are written, and peers may still
  // read them.
  const bool scaled = !a.from.is_partial() && a.reduction.op == ReduceOp::premul_sum;
  if (distance == kClash || scaled || !a.send.empty()) return false;
  const Box from = a.exchange != nullptr ? *part_before(a, rank) : a.from.box(rank);
  const Box to = a.exchange != nullptr ? *part_after(a, rank) : a.as_parts ? a.from.box(out) : a.to.box(rank);
  const Box both = intersect(from, to);
  if (both != from && both != to) return false;
  int64_t expected = 0;
  for (size_t d = 0; d < from.offset.size(); ++d) {
    // The stride of an extent of 1 says nothing; where both have it, the
    // offsets are the same.
    const Dims& strides = from.extent[d] > 1 ? s.x().strides : s.outs()[static_cast<size_t>(out)].strides;
    expected += (to.offset[d] - from.offset[d]) * strides[d];
  }
  return distance == expected;
}

void check_in_place(const Said& said, Arranged& a) {
  std::string wrong;
  for (int r = 0; r < said.ranks(); ++r) {
    const Statement& s = said.by(r);
    for (size_t i = 0; i < s.in_place.size(); ++i) {
      if (s.in_place[i] == kApart || !has_output(a, r)) continue;
      a.shares_elements = !a.inlined;
      if (!in_place_fits(s, a, r, static_cast<int>(i))) wrong += fmt::format("\n  rank {}   {}", r, said.site(r));
    }
  }
  if (wrong.empty()) return;
  said.fail(ErrorKind::shape, fmt::format("out overlaps x, and not in the one place where the "
                                          "result leaves x's own elements:"
                                          "{}\nGive other memory, or none.",
                                          wrong));
}

void check_rank(const Said& said, int rank) {
  if (rank < said.ranks()) return;
  said.fail(ErrorKind::shape,
            fmt::format("the mesh has rank {}, the communicator only {} ranks. Give a mesh of its ranks.", rank,
                        said.ranks()));
}

// All ranks named the same exchange, and each has checked that its tensor is its part of it.
void arrange_exchange(const Said& said, const detail::Description& description, int rank, Arranged& a) {
  a.exchange = *description.exchange;
  a.dtype = description.dtype;
  for (const int r : a.exchange->from().mesh().ranks()) check_rank(said, r);
  for (const int r : a.exchange->to().mesh().ranks()) check_rank(said, r);
  if (a.exchange->terms() > 1) a.reduction = *a.exchange->from().pending();
  if (description.scale != 1) a.reduction = {ReduceOp::premul_sum, description.scale};
  a.receives = a.exchange->receives(rank);
  for (const Overlap& overlap : a.receives) {
    const Statement& there = said.by(overlap.rank);
    const bool fits =
        there.has_x && there.x().dtype == a.dtype && there.x().shape == part_before(a, overlap.rank)->extent;
    if (!fits) throw Error(fmt::format("rank {}'s record makes no sense: it is damaged", overlap.rank));
  }
  check_outputs(said, a);
  check_in_place(said, a);
}

// Of a plan in which nothing moves.
bool is_nothing_but_agreement(OpCode op, const detail::Description& description) {
  return op == OpCode::redistribute && description.exchange == nullptr;
}

}  // namespace

bool all_inlined(const std::vector<Record>& records) {
  for (const Record& record : records) {
    for (const Statement& s : record.statements) {
      if (s.has_x && s.x().inlined == nullptr && volume(s.x().shape) != 0) return false;
    }
  }
  return true;
}

bool has_output(const Arranged& a, int rank) {
  if (a.exchange != nullptr) return part_after(a, rank).has_value();
  return a.moves && a.to.holds(rank);
}

Dims output_shape(const Arranged& a, int rank, int out) {
  if (a.exchange != nullptr) return part_after(a, rank)->extent;
  return a.as_parts ? a.from.box(out).extent : a.to.box(rank).extent;
}

Arranged arrange(const CallName& call, const std::vector<Record>& records, size_t op,
                 const detail::Description& description, int rank) {
  const Said said(call, records, op);
  Arranged a;
  a.op = said.first().op;
  a.dim = said.first().dim;
  a.flags = said.flags();
  if (a.op == OpCode::barrier || is_nothing_but_agreement(a.op, description)) return a;
  if (a.op == OpCode::split_comm) {
    for (int r = 0; r < said.ranks(); ++r) a.sizes.insert(a.sizes.end(), said.by(r).extra, said.by(r).extra + 2);
    return a;
  }
  if (a.op == OpCode::gather_sizes) {
    a.sizes = said.extents(a.dim);
    return a;
  }
  a.moves = true;
  if (a.op == OpCode::redistribute) {
    arrange_exchange(said, description, rank, a);
    return a;
  }
  arrange_layouts(said, a);
  const bool rooted = a.op == OpCode::broadcast || a.op == OpCode::scatter || a.op == OpCode::scatter_parts;
  a.dtype = said.by(rooted ? static_cast<int>(said.first().root) : 0).x().dtype;
  if (a.from.is_partial()) {
    a.reduction = said.first().reduction;
    if (a.reduction.op != ReduceOp::premul_sum) a.reduction.factor = 1;
  } else if (said.first().scale != 1) a.reduction = {ReduceOp::premul_sum, said.first().scale};
  check_bytes(said, a.dtype, a.to.shape());
  check_outputs(said, a);
  a.inlined = all_inlined(records);
  check_in_place(said, a);
  return a;
}

}  // namespace tessera
