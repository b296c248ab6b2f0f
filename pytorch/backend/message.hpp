// A tensor on its way between two ranks, as c10d has it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include <tessera/collective.hpp>

#include "line.hpp"

namespace tessera::backend {

// A send or a receive that was posted. Thread safety: every function may be called from any thread.
class Parcel {
 public:
  Parcel(tessera::Work sent, at::Tensor tensor) : tensor_(std::move(tensor)), sent_(std::move(sent)) {}
  Parcel(WorkOf<Received> received, at::Tensor tensor)
      : tensor_(std::move(tensor)), received_(std::move(received)), is_receive_(true) {}

  const at::Tensor& tensor() const { return tensor_; }
  // Returns at once. While a thread waits for it, it is not done.
  bool done();
  // Returns when it is done. Throws what tessera throws. While another thread waits for it, as for a future, heed() is called
  // now and then; what it throws ends this wait.
  void wait(const std::function<void()>& heed = [] {});
  int source();

 private:
  bool has_come() const { return over_ || (is_receive_ ? received_.done() : sent_.done()); }

  const at::Tensor tensor_;
  std::timed_mutex guard_;
  tessera::Work sent_;
  WorkOf<Received> received_;
  const bool is_receive_ = false;
  int source_ = -1;
  bool over_ = false;
  std::exception_ptr error_;
};

// Those that nobody has waited for yet. A program may drop what isend() returns: it is kept here, since dropping would wait.
class Parcels {
 public:
  void add(std::shared_ptr<Parcel> parcel);
  // Goes on when it is interrupted: then `line` has ended what is pending.
  void wait_for_all(const Line& line) noexcept;

 private:
  std::mutex guard_;
  std::list<std::shared_ptr<Parcel>> open_;
};

class Message : public c10d::Work {
 public:
  // Where somebody asks for a future, `line` waits for the parcel.
  Message(int rank, c10d::OpType type, std::shared_ptr<Parcel> parcel, std::weak_ptr<Line> line);

  bool isCompleted() override { return parcel_->done(); }
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  int sourceRank() const override { return parcel_->source(); }
  std::vector<at::Tensor> result() override { return {parcel_->tensor()}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void watch(std::chrono::milliseconds timeout) const;
  void heed_hook() const;

  const std::shared_ptr<Parcel> parcel_;
  const std::weak_ptr<Line> line_;
  c10::intrusive_ptr<Call> waiting_;
};

}  // namespace tessera::backend
