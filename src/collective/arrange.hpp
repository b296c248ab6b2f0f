// From what all ranks said of an operation to the layouts it moves between: the
// same on every rank.
#pragma once

#include <vector>

#include <tessera/overlap.hpp>

#include "comm/agreement.hpp"
#include "layout/axis_layout.hpp"

namespace tessera {

// One operation that all ranks agree on.
struct Arranged {
  OpCode op = OpCode::none;
  DType dtype = DType::f32;
  Reduction reduction;  // of a Partial source; of others a premul_sum where
                        // elements are scaled on the way
  int64_t dim = 0;
  bool moves = false;  // false: there is nothing but the agreement
  AxisLayout from;
  AxisLayout to;
  bool as_parts = false;                     // the output is one tensor for each source
  std::vector<Sizes> send;                   // all_to_all_v: send[from][to]; then `to` has one
                                             // box for each rank, and `from` is unused
  std::shared_ptr<const Exchange> exchange;  // redistribute: instead of `from` and `to`
  std::vector<Overlap> receives;             // redistribute: what this rank gets
  bool inlined = false;                      // all_inlined(); of a redistribute false
  bool shares_elements = false;              // some rank's output and input are the same memory …
                                             // … and peers read it there
  Sizes sizes;                               // the result's
  Sizes flags;                               // of every rank; empty where all are zero
};

// Throws on every rank the same ShapeError, DTypeError or MismatchError.
// Depends on the records alone, and on the exchange of a redistribute, which the records name.
Arranged arrange(const CallName& call, const std::vector<Record>& records, size_t op,
                 const detail::Description& description, int rank);

// Whether every tensor that the first round may read travelled within the records. The same on every rank.
bool all_inlined(const std::vector<Record>& records);

// The shape of `rank`'s output number `out`; has_output: whether it gets any.
bool has_output(const Arranged& arranged, int rank);
Dims output_shape(const Arranged& arranged, int rank, int out);

}  // namespace tessera
