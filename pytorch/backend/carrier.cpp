#include "carrier.hpp"

#include <ATen/ops/from_blob.h>

namespace tessera::backend {
namespace {

// Gloo's own timeout would end all connections of the group. tessera's calls have theirs.
constexpr std::chrono::milliseconds kEver = std::chrono::hours(24 * 365);

class WorkCarried : public Carried {
 public:
  explicit WorkCarried(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool wait() override { return work_->wait(kEver); }
  void stop() noexcept override {
    try {
      work_->abort();
    } catch (const std::exception&) {
      // It is over already.
    }
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

std::vector<at::Tensor> as_bytes(void* data, int64_t bytes) {
  return {at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte))};
}

}  // namespace

std::unique_ptr<Carried> GroupCarrier::send(const void* data, int64_t bytes, int to, int channel) {
  auto tensors = as_bytes(const_cast<void*>(data), bytes);
  return std::make_unique<WorkCarried>(engine_->send(tensors, to, channel));
}

std::unique_ptr<Carried> GroupCarrier::receive(void* data, int64_t bytes, int from, int channel) {
  auto tensors = as_bytes(data, bytes);
  return std::make_unique<WorkCarried>(engine_->recv(tensors, from, channel));
}

}  // namespace tessera::backend
