// From a described operation to what this rank says of it.
#pragma once

#include <vector>

#include "comm/comm_state.hpp"

namespace tessera {

// Fills in this rank's statement of an operation, and appends its tensors: x,
// then output_count() outputs, undefined where there is none. Throws where this
// rank's own arguments are wrong (the caller tells it to all ranks).
// The elements of a small x go to `payload`, up to `most_inlined` bytes.
void state(const detail::Description& description, detail::CommState& comm, Statement& statement,
           std::vector<Tensor>& tensors, std::vector<std::byte>& payload, bool alone, size_t most_inlined);

// How many bytes of elements may travel within this rank's record: as many as the transport takes (then SIZE_MAX), but for what
// the last call from this place says. Where another rank had more than that, all wait for that one's anyway, and only so many
// as make the record no dearer save a message. Where no other had, this one may be the only one that has, and some more are
// worth it. A rank that guesses wrong costs time, nothing else; of an all_reduce, where all must find the same, it is not
// asked.
size_t most_inlined(detail::CommState& comm, const detail::Description& description, const detail::Agreement& before);

// Throws ShapeError where an output lies over another operation's tensors.
// `tensors` are those of the whole batch.
void check_apart(std::span<const detail::Description> batch, int ranks, std::span<const Tensor> tensors);

// What peers do with an operation's x.
inline Use use_of(OpCode op) {
  const bool sums = op == OpCode::reduce_scatter || op == OpCode::all_reduce || op == OpCode::reduce;
  return sums || op == OpCode::redistribute ? Use::picked : Use::copied;
}

// Whether what others read of x follows from this rank's record alone, as its exchange or its sizes: whoever agrees to
// those reads the same, also where it says something else than before.
inline bool cuts_alone(const detail::Description& d) {
  return d.exchange != nullptr || d.op == OpCode::all_to_all || d.op == OpCode::all_to_all_v ||
         d.op == OpCode::reduce_scatter;
}

// The number of output tensors that an operation has on each rank, for
// numbering.
inline size_t output_count(OpCode op, int ranks) {
  return op == OpCode::all_gather_parts ? static_cast<size_t>(ranks) : 1;
}

}  // namespace tessera
