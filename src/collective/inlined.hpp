// Moving what is here already: what travelled within the records, and what is this rank's own. No rank waits for another,
// and no transport is asked.
#pragma once

#include <optional>
#include <vector>

#include "comm/statement.hpp"
#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"

namespace tessera {

class InlinedMove {
 public:
  // `peers` were decoded from the records `said`; of every term that another rank has, the elements are in its record.
  void work_out(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers,
                const RawRecords& said);
  void clear();
  // In two parts: what is only copied from this rank's own tensors, and the rest. `memory`: where each of `mine` lies.
  // They and `said` may lie elsewhere than before, but are otherwise alike.
  void run_own(std::span<std::byte* const> memory);
  void run_rest(std::span<std::byte* const> memory, const RawRecords& said);

 private:
  static constexpr int kOwn = -1;
  struct Source {
    int rank = kOwn;     // whose record it is in
    int tensor = 0;      // kOwn: which of this rank's tensors
    int64_t offset = 0;  // bytes, from the beginning of either
  };
  struct Step {
    int tensor = 0;
    int64_t offset = 0;                // bytes
    size_t first = 0, count = 0;       // its sources
    std::optional<PreparedCopy> copy;  // where that is all it is; else:
    std::optional<PreparedSum> sum;
  };

  static const std::byte* at(const Source& source, std::span<std::byte* const> memory, const RawRecords& said);

  std::vector<Step> steps_;
  size_t own_ = 0;  // the first steps, which run_own() does
  std::vector<Source> sources_;
  std::vector<const std::byte*> terms_;  // of each source, of a sum that runs
};

// How many bytes of elements came within records from other hosts to this rank.
int64_t inlined_from_afar(const PeerTensors& peers, const Transport& transport);

}  // namespace tessera
