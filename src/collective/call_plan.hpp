// What the engine keeps of a call for the next one.
#pragma once

#include "collective/arrange.hpp"
#include "collective/inlined.hpp"
#include "collective/moves.hpp"
#include "collective/replay.hpp"
#include "collective/trusted.hpp"
#include "comm/agreements.hpp"

namespace tessera::detail {

// What follows from what all ranks said; the same for every call that is like
// it.
struct CallPlan {
  std::vector<Arranged> arranged;
  std::vector<Choice> choices;  // by operation
  std::string schedule;         // what they are, in words
  PeerTensors peers;
  Rounds rounds;
  Stats counted;  // what its moves add to the statistics
  InlinedMove inlined;
  Replay replay;
  bool has_result = false;   // of a replay, on this rank
  int64_t result_bytes = 0;  // of such as it recycles
};

// Kept by the communicator for the next call: a call of one tensor then
// allocates its result and little else.
struct Workspace {
  Record record;
  std::vector<int64_t> words;
  std::vector<Tensor> mine;        // by number, alike on all ranks: for each operation
                                   // x, then its outputs
  std::vector<std::byte*> memory;  // of each
};

template <class T>
T& kept(std::shared_ptr<void>& place) {
  if (place == nullptr) place = std::make_shared<T>();
  return *static_cast<T*>(place.get());
}

// What follows from one that is settled.
inline CallPlan& plan_of(Agreement& settled) { return *static_cast<CallPlan*>(settled.plan.get()); }

}  // namespace tessera::detail
