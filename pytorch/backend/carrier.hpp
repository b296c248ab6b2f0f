// Between hosts a backend of c10d carries what tessera moves: Gloo, as a rule.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <tessera/carrier.hpp>

namespace tessera::backend {

// The point-to-point messages of a backend that nobody else uses. It must let any thread call it, keep messages of one tag
// between two ranks in order, take a receive that is longer than its message, and end all that waits for a peer when that
// is gone: Gloo does.
class GroupCarrier : public Carrier {
 public:
  explicit GroupCarrier(c10::intrusive_ptr<c10d::Backend> engine) : engine_(std::move(engine)) {}
  std::unique_ptr<Carried> send(const void* data, int64_t bytes, int to, int channel) override;
  std::unique_ptr<Carried> receive(void* data, int64_t bytes, int from, int channel) override;

 private:
  const c10::intrusive_ptr<c10d::Backend> engine_;
};

}  // namespace tessera::backend
