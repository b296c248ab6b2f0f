// Sound records, for the others of a fuzzed call, and as the beginning of a corpus.
#pragma once

#include "comm/agreement.hpp"

namespace tessera::fuzz {

inline Announced tensor(DType dtype, const Dims& shape, uint64_t where = uint64_t{1} << 63 | 4096) {
  return {dtype, shape, row_major(shape), {{0, where}}, nullptr};
}

inline constexpr OpCode kOps[] = {
    OpCode::barrier,         OpCode::split_comm,     OpCode::gather_sizes, OpCode::all_gather, OpCode::all_gather_parts,
    OpCode::all_gather_same, OpCode::reduce_scatter, OpCode::all_reduce,   OpCode::all_to_all, OpCode::all_to_all_v,
    OpCode::broadcast,       OpCode::scatter,        OpCode::gather,       OpCode::reduce};

// What `rank` says in call number `which` of a fixed list.
inline Record sound_record(size_t which, int rank, int ranks) {
  Record record;
  record.call = 1;
  record.file = "train.cpp";
  record.line = 41;
  Statement s;
  s.op = kOps[which % std::size(kOps)];
  const bool ragged = s.op == OpCode::all_gather || s.op == OpCode::gather || s.op == OpCode::all_gather_parts;
  const int64_t rows = ragged ? 3 + rank : 6;
  s.has_x = needs_x(s.op, s.root, rank);
  if (s.op == OpCode::all_to_all) s.split_dim = 1;
  if (s.has_x) {
    s.tensors.push_back(s.op == OpCode::all_gather_same ? tensor(DType::f32, {1, 6, 4})
                                                        : tensor(DType::f32, {rows, 4}));
  }
  if (s.op == OpCode::all_reduce) {
    s.tensors.push_back(tensor(DType::f32, {rows, 4}, uint64_t{1} << 63 | 8192));
    s.in_place.push_back(INT64_MIN);
  }
  if (s.op == OpCode::all_to_all_v) s.sizes.assign(static_cast<size_t>(ranks), 6 / ranks);
  record.statements.push_back(s);
  return record;
}

}  // namespace tessera::fuzz
