#include "collective/state_call.hpp"

#include <algorithm>
#include <tuple>

#include <tessera/overlap.hpp>

#include "collective/arrange.hpp"
#include "tensor/copy.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

using detail::CommState;
using detail::Description;

void check_sizes(const Sizes& sizes, const char* field, int ranks) {
  if (sizes.size() != static_cast<size_t>(ranks)) {
    throw ShapeError(fmt::format("{} has {} entries for {} ranks: give one for each", field, sizes.size(), ranks));
  }
  for (size_t r = 0; r < sizes.size(); ++r) {
    if (sizes[r] < 0) throw ShapeError(fmt::format("{}[{}] is {}: a size cannot be negative", field, r, sizes[r]));
  }
  total(sizes);
}

void check_dims(const Description& d, const Tensor& x, Statement& s) {
  if (!cuts(d.op)) return;
  if (x.ndim() == 0) {
    throw ShapeError(fmt::format(
        "x has no dimension to work along (it is 0-d){}",
        d.op == OpCode::all_gather || d.op == OpCode::all_gather_parts ? ": use all_gather_same, which takes it" : ""));
  }
  const auto ndim = static_cast<size_t>(x.ndim());
  s.dim = normalize_dim(d.dim, ndim, d.op == OpCode::all_to_all ? "concat_dim" : "dim");
  if (d.op != OpCode::all_to_all) return;
  s.split_dim = normalize_dim(d.split_dim, ndim, "split_dim");
  if (s.split_dim == s.dim) {
    throw ShapeError(
        fmt::format("split_dim and concat_dim are both {}: within "
                    "one dimension use all_to_all_v",
                    s.dim));
  }
}

void check_all_to_all_v(const Description& d, const Statement& s, int ranks) {
  check_sizes(d.sizes, "send_sizes", ranks);
  if (!d.recv_sizes.empty()) check_sizes(d.recv_sizes, "recv_sizes", ranks);
  if (total(d.sizes) != d.x.shape(s.dim)) {
    throw ShapeError(fmt::format("send_sizes [{}] add up to {}, but dim {} of x has {}", fmt::join(d.sizes, ", "),
                                 total(d.sizes), s.dim, d.x.shape(s.dim)));
  }
}

// The rank's part of the layout that is left, and whether it has one.
bool check_part(const Description& d, int rank) {
  const Exchange& exchange = **d.exchange;
  const auto box = exchange.from().box(exchange.shape(), rank);
  if (!box) return false;
  if (!d.x.defined()) {
    throw ShapeError(fmt::format("x is undefined, but this rank's part of {} is {}", exchange.from(), box->extent));
  }
  if (!(d.x.shape() == box->extent)) {
    throw ShapeError(fmt::format("x is {}, but this rank's part of {} is {} (of {})", d.x.shape(), exchange.from(),
                                 box->extent, exchange.shape()));
  }
  if (d.x.dtype() != d.dtype) throw DTypeError(fmt::format("x is {}, the plan is for {}", d.x.dtype(), d.dtype));
  if (exchange.terms() > 1) check_reducible(*exchange.from().pending(), d.dtype);
  return true;
}

// kApart, kClash, or how many elements the output lies behind x, where both
// have the same strides.
int64_t in_place(const Tensor& x, const Tensor& out) {
  if (!x.defined() || !may_overlap(x, out)) return kApart;
  // Where several elements of x share a place, writing one of them changes what
  // peers read as another.
  if (x.dtype() != out.dtype() || x.ndim() != out.ndim() || may_overlap_itself(x)) return kClash;
  for (size_t d = 0; d < x.shape().size(); ++d) {
    const bool matters = x.shape()[d] > 1 && out.shape()[d] > 1;
    if (matters && x.strides()[d] != out.strides()[d]) return kClash;
  }
  const auto bytes = reinterpret_cast<intptr_t>(out.data()) - reinterpret_cast<intptr_t>(x.data());
  return bytes % size_bytes(x.dtype()) == 0 ? bytes / size_bytes(x.dtype()) : kClash;
}

Announced announce(const Tensor& t, CommState& comm, Use use) {
  return {t.dtype(), t.shape(), t.strides(), comm.transport().handle_of(t, use), nullptr};
}

int64_t elements_sent(const Exchange& exchange, int rank) {
  std::vector<Box> boxes;
  int64_t elements = 0;
  for (const Overlap& sent : exchange.sends(rank)) {
    if (sent.rank == rank || std::find(boxes.begin(), boxes.end(), sent.box) != boxes.end()) continue;
    boxes.push_back(sent.box);
    elements += sent.box.elements();
  }
  return elements;
}

// How much of x the others read where it cuts_alone(): see Replay, which then writes no more than that. Of sizes that are
// no cut of it, any answer will do.
int64_t elements_read(const Tensor& x, const Description& d, const Statement& s, const CommState& comm) {
  if (d.exchange != nullptr) return elements_sent(**d.exchange, comm.rank());
  const int64_t extent = x.shape(s.op == OpCode::all_to_all ? s.split_dim : s.dim);
  const Sizes cut = d.sizes.empty() ? chunk_sizes(extent, comm.size()) : d.sizes;
  const auto rank = static_cast<size_t>(comm.rank());
  if (rank >= cut.size() || cut[rank] < 0 || cut[rank] > extent) return x.elements();
  return x.elements() / extent * (extent - cut[rank]);
}

size_t inline_limit(const Tensor& x, const Description& d, const Statement& s, CommState& comm) {
  if (comm.size() == 1) return 0;
  const size_t limit = comm.transport().inline_bytes(x, d.op == OpCode::all_reduce);
  if (!cuts_alone(d) || static_cast<size_t>(x.bytes()) <= limit) return limit;
  const size_t more = comm.transport().inline_boxes_bytes(x);
  const bool in_boxes = static_cast<size_t>(x.bytes()) <= more && x.is_contiguous() &&
                        elements_read(x, d, s, comm) <= x.elements() / 4 * 3;
  return in_boxes ? more : limit;
}

// A small tensor travels within the record.
Announced announce_x(const Tensor& t, CommState& comm, const Description& d, const Statement& s,
                     std::vector<std::byte>& payload, size_t most) {
  const size_t at = payload.size(), bytes = static_cast<size_t>(t.bytes());
  if (bytes == 0) return {t.dtype(), t.shape(), t.strides(), {}, nullptr};  // nothing to be read
  // Of an all_reduce all ranks must find the same, and `most` is this rank's guess.
  const bool guesses = d.op != OpCode::all_reduce && most != SIZE_MAX;
  if (at + bytes > (guesses ? most : inline_limit(t, d, s, comm))) return announce(t, comm, use_of(d.op));
  payload.resize(at + (bytes + 15) / 16 * 16);
  copy_box({payload.data() + at, t.dtype(), t.shape(), row_major(t.shape())}, view_of(t));
  return {t.dtype(), t.shape(), t.strides(), {{at, kInlined}}, nullptr};
}

// Peers read an output in the second round of an all_reduce only. That has none where all tensors of the call are small:
// of several operations another may be not.
Announced announce_out(const Tensor& out, CommState& comm, const Statement& s, bool alone) {
  const bool read = s.op == OpCode::all_reduce && !(alone && s.x().where.words[1] == kInlined);
  return read ? announce(out, comm, Use::written) : Announced{out.dtype(), out.shape(), out.strides(), {}, nullptr};
}

void add_output(const Tensor& out, const Tensor& x, CommState& comm, Statement& s, std::vector<Tensor>& tensors,
                bool alone) {
  if (!out.defined()) throw ShapeError("a tensor of the outputs is undefined");
  if (out.read_only()) throw ShapeError("out is a view of constant memory: it cannot be written to");
  if (may_overlap_itself(out)) {
    throw ShapeError(
        fmt::format("out has several elements in one place (shape "
                    "{}, strides {}): it cannot be written to",
                    out.shape(), out.strides()));
  }
  s.tensors.push_back(announce_out(out, comm, s, alone));
  s.in_place.push_back(in_place(x, out));
  tensors.push_back(out);
}

void add_outputs(const Description& d, CommState& comm, Statement& s, std::vector<Tensor>& tensors, bool alone) {
  const Tensor x = tensors.back();
  for (const Tensor& part : d.parts) add_output(part, x, comm, s, tensors, alone);
  if (d.out.defined()) {
    add_output(d.out, x, comm, s, tensors, alone);
  } else if (d.op == OpCode::all_reduce) {
    const Tensor out = comm.transport().allocate(x.dtype(), x.shape());
    s.tensors.push_back(announce_out(out, comm, s, alone));
    s.in_place.push_back(kApart);
    tensors.push_back(out);
    std::lock_guard lock(comm.guard());
    ++comm.stats.allocations;
    comm.stats.bytes_allocated += out.bytes();
  }
}

}  // namespace

size_t most_inlined(CommState& comm, const Description& d, const detail::Agreement& before) {
  const Transport& transport = comm.transport();
  const size_t riding = transport.riding_bytes();
  if (riding == SIZE_MAX || !before.settled || comm.size() == 1) return SIZE_MAX;
  const size_t limit = cuts_alone(d) ? transport.inline_boxes_bytes(d.x) : transport.inline_bytes(d.x, false);
  for (size_t r = 0; r < before.records.size(); ++r) {
    int64_t bytes = 0;
    for (const Statement& s : before.records[r].statements) {
      if (s.has_x) bytes += volume(s.x().shape) * size_bytes(s.x().dtype);
    }
    if (static_cast<size_t>(bytes) > limit && r != static_cast<size_t>(comm.rank())) return std::min(riding, limit);
  }
  return std::max(limit, transport.alone_bytes());
}

void state(const Description& d, CommState& comm, Statement& s, std::vector<Tensor>& tensors,
           std::vector<std::byte>& payload, bool alone, size_t most_inlined) {
  const size_t first = tensors.size();
  if (d.problem != nullptr) std::rethrow_exception(d.problem);
  const bool stacked = d.op == OpCode::all_gather_same && d.x.defined();
  s.op = d.op;
  s.dim = d.dim;
  s.split_dim = d.split_dim;
  s.root = d.root;
  s.reduction = d.reduction;
  s.scale = d.scale;
  std::copy(std::begin(d.extra), std::end(d.extra), std::begin(s.extra));
  s.flags = d.flags;
  if (d.root < 0 || d.root >= comm.size()) {
    throw ShapeError(fmt::format("root {} is none of the ranks 0 to {}", d.root, comm.size() - 1));
  }
  if (!d.x.defined() && needs_x(d.op, d.root, comm.rank())) {
    throw ShapeError(d.op == OpCode::broadcast || d.op == OpCode::scatter || d.op == OpCode::scatter_parts
                         ? "x is undefined on the root"
                         : "x is undefined");
  }
  s.has_x = d.exchange != nullptr ? check_part(d, comm.rank()) : d.x.defined();
  if (d.note != nullptr) s.note = *d.note;
  if (s.has_x) {
    check_dims(d, d.x, s);
    if (d.op == OpCode::reduce_scatter || d.op == OpCode::all_reduce || d.op == OpCode::reduce) {
      check_reducible(d.reduction, d.x.dtype());
    }
    if (d.scale != 1) check_reducible({ReduceOp::premul_sum, d.scale}, d.x.dtype());
    tensors.push_back(stacked ? d.x.unsqueeze(0) : d.x);
    s.tensors.push_back(announce_x(tensors.back(), comm, d, s, payload, most_inlined));
  } else {
    tensors.emplace_back();
  }
  if (d.op == OpCode::all_to_all_v) check_all_to_all_v(d, s, comm.size());
  else if (!d.sizes.empty()) check_sizes(d.sizes, "sizes", comm.size());
  s.sizes = d.sizes;
  s.recv_sizes = d.recv_sizes;
  add_outputs(d, comm, s, tensors, alone);
  tensors.resize(first + 1 + output_count(d.op, comm.size()));
}

void check_apart(std::span<const Description> batch, int ranks, std::span<const Tensor> tensors) {
  if (tensors.size() < 3) return;
  struct Range {
    const Tensor* tensor;
    Extent extent;
    size_t op;
    bool written;
  };
  std::vector<Range> ranges;
  size_t number = 0;
  for (size_t op = 0; op < batch.size(); ++op) {
    for (size_t i = 0; i < 1 + output_count(batch[op].op, ranks); ++i) {
      const Tensor& tensor = tensors[number++];
      const Extent extent = extent_of(tensor);
      if (extent.begin != extent.end) ranges.push_back({&tensor, extent, op, i > 0});
    }
  }
  // In the order of their beginnings, what overlaps a written range from
  // another operation stands near it.
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.extent.begin < b.extent.begin; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = i + 1; j < ranges.size() && ranges[j].extent.begin < ranges[i].extent.end; ++j) {
      const auto& [a, b] = std::tie(ranges[i], ranges[j]);
      // x and out of one operation may share elements: arrange() looks at that
      // when it knows their places.
      const bool harmless = a.op == b.op ? !(a.written && b.written) : !(a.written || b.written);
      if (harmless || !may_overlap(*a.tensor, *b.tensor)) continue;
      throw ShapeError(
          fmt::format("an output of operation {} of the list lies "
                      "over a tensor of operation {}",
                      (a.written ? a.op : b.op) + 1, (a.written ? b.op : a.op) + 1));
    }
  }
}

}  // namespace tessera
