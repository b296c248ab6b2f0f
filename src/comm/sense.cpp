// A rank never says what the rules below forbid: its own arguments are checked before. So where a record breaks one, it was
// damaged on the way, or its process was; and nothing that is worked out from it later has to be careful.
#include <algorithm>

#include "comm/agreement.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

bool is_index(int64_t value, size_t count) { return value >= 0 && static_cast<uint64_t>(value) < count; }

bool fits(const Announced& tensor) {
  const bool positive =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t extent) { return extent >= 0; });
  if (!positive) return false;
  try {
    check_extent(tensor.dtype, tensor.shape, tensor.strides);
    return true;
  } catch (const ShapeError&) {
    return false;
  }
}

bool fits(const Sizes& sizes, size_t ranks, int64_t& sum) {
  sum = 0;
  if (!sizes.empty() && sizes.size() != ranks) return false;
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](int64_t size) { return size >= 0 && !__builtin_add_overflow(sum, size, &sum); });
}

bool dims_fit(const Statement& s) {
  if (!s.has_x) return true;
  const size_t ndim = s.x().shape.size();
  if (s.op == OpCode::all_gather_same) return s.dim == 0 && ndim > 0;
  if (!cuts(s.op)) return true;
  if (!is_index(s.dim, ndim)) return false;
  return s.op != OpCode::all_to_all || (is_index(s.split_dim, ndim) && s.split_dim != s.dim);
}

bool outputs_fit(const Statement& s) {
  const auto outs = s.outs();
  if (s.op == OpCode::all_reduce && outs.size() != 1) return false;  // peers read it in a second round
  for (size_t i = 0; i < outs.size(); ++i) {
    const bool shares = s.in_place[i] != kApart && s.in_place[i] != kClash;
    if (shares && (!s.has_x || outs[i].shape.size() != s.x().shape.size())) return false;
  }
  return true;
}

bool makes_sense(const Statement& s, int rank, size_t ranks) {
  int64_t sum = 0, unused = 0;
  if (!is_index(s.root, ranks) || (!s.has_x && needs_x(s.op, s.root, rank))) return false;
  if (!std::all_of(s.tensors.begin(), s.tensors.end(), [](const Announced& t) { return fits(t); })) return false;
  if (!fits(s.recv_sizes, ranks, unused) || !fits(s.sizes, ranks, sum) || !dims_fit(s) || !outputs_fit(s)) return false;
  if (s.op == OpCode::scatter_parts && !is_index(s.extra[0], ranks)) return false;
  if (s.op != OpCode::all_to_all_v) return true;
  return s.sizes.size() == ranks && s.x().shape[static_cast<size_t>(s.dim)] == sum;
}

}  // namespace

void check_sense(const std::vector<Record>& records) {
  for (size_t r = 0; r < records.size(); ++r) {
    const Record& record = records[r];
    if (record.problem != ErrorKind::none) continue;  // it says nothing else
    for (const Statement& s : record.statements) {
      if (makes_sense(s, static_cast<int>(r), records.size())) continue;
      throw Error(fmt::format("rank {}'s record makes no sense: it is damaged", r));
    }
  }
}

}  // namespace tessera
