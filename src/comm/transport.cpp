#include "comm/transport.hpp"

namespace tessera {

int64_t Move::received_bytes(std::span<const Tensor> mine) const {
  int64_t bytes = 0;
  for (const Receive& receive : receives) {
    bytes += receive.box.elements() * size_bytes(mine[static_cast<size_t>(receive.tensor)].dtype());
  }
  return bytes;
}

}  // namespace tessera
