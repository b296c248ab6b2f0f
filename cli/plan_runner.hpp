// Runs one plan again and again on one rank, as `tessera calibrate` and `tessera plan --execute` time it.
#pragma once

#include <algorithm>
#include <vector>

#include <tessera/redistribute.hpp>

namespace tessera::cli {

// Calls take turns with up to 512 copies of the input, and the result of a copy's last call is dropped just before its next.
// Inputs and outputs of all ranks go through so many bytes together, whatever the size of the tensor: more than cores have
// of cache for themselves. So no call finds what it needs where the call before it left it, and times do not jump where the
// copies happen to outgrow a cache.
inline constexpr int64_t kRotatedBytes = 32 << 20;

class PlanRunner {
 public:
  PlanRunner(Comm& comm, const Plan& plan, const Tensor& x) : comm_(comm), plan_(plan) {
    constexpr int64_t kMost = 512;
    const int64_t sets = std::clamp<int64_t>(kRotatedBytes / (bytes_of_a_call() + 1) + 1, 2, kMost);
    for (int64_t i = 0; i < sets; ++i) inputs_.push_back(copy_of(x));
    outputs_.resize(inputs_.size());
  }

  size_t sets() const { return inputs_.size(); }

  const Tensor& call() {
    next_ = (next_ + 1) % inputs_.size();
    outputs_[next_] = {};
    return outputs_[next_] = redistribute(comm_, inputs_[next_], plan_);
  }

 private:
  Tensor copy_of(const Tensor& x) const {
    if (!x.defined()) return {};
    Tensor copy = comm_.allocate(x.dtype(), x.shape());
    copy.copy_from(x);
    return copy;
  }

  // Inputs and outputs of all ranks. A slice is a view, which keeps all that it is a view of.
  int64_t bytes_of_a_call() const {
    const Layout* kept = &plan_.to();
    const auto& steps = plan_.steps();
    for (auto step = steps.rbegin(); step != steps.rend() && step->kind == StepKind::slice; ++step)
      kept = &step->before;
    int64_t elements = 0;
    for (const Layout* layout : {&plan_.from(), kept}) {
      for (int64_t i = 0; i < layout->mesh().size(); ++i) {
        const auto box = layout->box(plan_.shape(), layout->mesh().coordinate_of(i));
        elements += box ? box->elements() : 0;
      }
    }
    return elements * size_bytes(plan_.dtype());
  }

  Comm& comm_;
  const Plan plan_;
  std::vector<Tensor> inputs_, outputs_;
  size_t next_ = 0;
};

}  // namespace tessera::cli
