#include "comm/transport.hpp"

#include "tensor/coldness.hpp"
#include "tensor/copy_kernels.hpp"

namespace tessera {

int64_t Move::received_bytes(std::span<const Tensor> mine) const {
  int64_t bytes = 0;
  for (const Receive& receive : receives) {
    bytes += receive.box.elements() * size_bytes(mine[static_cast<size_t>(receive.tensor)].dtype());
  }
  return bytes;
}

int64_t Move::job_bytes(std::span<const Tensor> mine) const {
  const int64_t bytes = received_bytes(mine);
  if (bytes < kStreamColdBytes || bytes >= kStreamBytes) return bytes;
  int asked = -1;
  for (const Receive& receive : receives) {
    if (!receive.is_copy()) return bytes;
    if (receive.tensor == asked) continue;
    asked = receive.tensor;
    if (!take_cold(mine[static_cast<size_t>(asked)].data())) return bytes;
  }
  return kStreamBytes;
}

}  // namespace tessera
