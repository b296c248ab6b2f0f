// The operator redistribute: between layouts that are named by their text and their mesh, "S0,R on dp=2,tp=4".
#pragma once

#include "call.hpp"

namespace tessera::torch_front {

// shape: of the whole. plan: a Plan as JSON, between these layouts; empty: the cheapest in PyTorch's model. scale: what the
// result is multiplied with, beside what a plan says of that. On a rank that has no part x only stands for a tensor of that
// dtype, and a rank that gets none gets an empty one.
at::Tensor redistribute_elements(const at::Tensor& x, c10::SymIntArrayRef shape, call::Name source, call::Name target,
                                 call::Name plan, double scale, call::Name convention, call::Name comm);
at::Tensor redistribute_with_gradient(const at::Tensor& x, c10::SymIntArrayRef shape, call::Name source,
                                      call::Name target, call::Name plan, double scale, call::Name convention,
                                      call::Name comm);
// The shape of the result.
at::Tensor redistribute_on_meta(const at::Tensor& x, c10::SymIntArrayRef shape, call::Name source, call::Name target,
                                call::Name plan, double scale, call::Name convention, call::Name comm);

// How much of a dimension torch.chunk gives one of the pieces.
inline c10::SymInt chunk_of(const c10::SymInt& extent, int64_t pieces, int64_t which) {
  const c10::SymInt piece = (extent + (pieces - 1)) / pieces;
  return piece.min(extent - piece * which).max(0);
}

}  // namespace tessera::torch_front
