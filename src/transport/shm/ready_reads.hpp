// Reads of a small move that all lie in place, worked out once: how the loops run, and how far they reach. Of the next run
// only where the tensors lie has to be looked at.
#pragma once

#include <optional>
#include <vector>

#include "comm/transport.hpp"
#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "transport/shm/source.hpp"

namespace tessera::shm {

class ReadyReads {
 public:
  // `peers` announced tensors that lie in their arenas as they are.
  ReadyReads(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers);
  static bool fits(const Move& move, int rank, const PeerTensors& peers);
  // False, and nothing was read, where a tensor lies elsewhere than in its arena now.
  bool run(const World& world, std::span<const int> members, Mapper& mapper, std::span<const Tensor> mine,
           const PeerTensors& peers);

 private:
  struct Source {
    int rank = 0, tensor = 0;  // whose, and which of its tensors
    bool is_own = false;
    int64_t from = 0;           // bytes from the beginning of that
    int64_t low = 0, high = 0;  // the first byte, and behind the last one, likewise
  };
  struct Write {
    int tensor = 0;
    int64_t to = 0;                    // bytes from the beginning of that
    size_t first = 0;                  // of its sources
    std::optional<PreparedCopy> copy;  // where that is all it is; else:
    std::optional<PreparedSum> sum;
  };
  // What it returns lies at `anywhere`, where it is another rank's.
  ConstView add_source(const Term& term, int rank, std::span<const Tensor> mine, const PeerTensors& peers,
                       const std::byte* anywhere);

  std::vector<Write> writes_;
  std::vector<Source> sources_;
  std::vector<const std::byte*> places_;  // of each source, while it runs
};

}  // namespace tessera::shm
