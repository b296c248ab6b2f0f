// Reads of a small move that all lie in place, worked out once: how the loops run, and how far they reach. Of the next run
// only where the tensors lie has to be looked at.
#pragma once

#include <vector>

#include "comm/transport.hpp"
#include "tensor/copy.hpp"
#include "transport/shm/source.hpp"

namespace tessera::shm {

class ReadyReads {
 public:
  // The move has only copies, and `peers` announced tensors that lie in their arenas as they are.
  ReadyReads(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers);
  static bool fits(const Move& move, int rank, const PeerTensors& peers);
  // False, and nothing was read, where a tensor lies elsewhere than in its arena now.
  bool run(const World& world, std::span<const int> members, Mapper& mapper, std::span<const Tensor> mine,
           const PeerTensors& peers) const;

 private:
  struct Read {
    PreparedCopy copy;
    int tensor = 0;
    int64_t to = 0;             // bytes from the beginning of that
    int rank = 0, term = 0;     // whose, and which of its tensors
    int64_t from = 0;           // bytes from the beginning of that
    int64_t low = 0, high = 0;  // the first byte, and behind the last one, likewise
    bool is_own = false;
  };
  std::vector<Read> reads_;
};

}  // namespace tessera::shm
