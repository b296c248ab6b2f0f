// From a described operation to what this rank says of it.
#pragma once

#include <vector>

#include "comm/comm_state.hpp"

namespace tessera {

// Fills in this rank's statement of an operation, and appends its tensors: x,
// then output_count() outputs, undefined where there is none. Throws where this
// rank's own arguments are wrong (the caller tells it to all ranks).
// The elements of a small x go to `payload`.
void state(const detail::Description& description, detail::CommState& comm, Statement& statement,
           std::vector<Tensor>& tensors, std::vector<std::byte>& payload, bool alone);

// Throws ShapeError where an output lies over another operation's tensors.
// `tensors` are those of the whole batch.
void check_apart(std::span<const detail::Description> batch, int ranks, std::span<const Tensor> tensors);

// The number of output tensors that an operation has on each rank, for
// numbering.
inline size_t output_count(OpCode op, int ranks) {
  return op == OpCode::all_gather_parts ? static_cast<size_t>(ranks) : 1;
}

}  // namespace tessera
