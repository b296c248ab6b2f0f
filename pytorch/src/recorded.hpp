// How a call gets its place in the autograd graph.
#pragma once

#include <functional>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "border.hpp"
#include "comm/recorder.hpp"

namespace tessera::torch_front {

namespace autograd = ::torch::autograd;

using Backward = std::function<at::Tensor(const at::Tensor& grad)>;

// Of a gather along dim: the gradient of this rank's piece.
Backward backward_of_gather(std::string_view grad, int64_t dim, const at::Tensor& sizes, c10::SymInt own, double scale,
                            const std::string& comm);
// The weight of each term of a reduction. Throws where it has none: no rank was asked then, which is told otherwise.
double linear(std::string_view op, double factor, std::string_view comm);

// What the kernel below did not take, because only shapes were worked out, or it was not come to, is for no other call.
struct EndOfContext {
  EndOfContext() = default;
  ~EndOfContext() { context() = {}; }
  EndOfContext(const EndOfContext&) = delete;
  EndOfContext& operator=(const EndOfContext&) = delete;
};

class Adjoint : public autograd::Node {
 public:
  Adjoint(const char* name, Site site, Made forward, Backward backward)
      : name_(name), site_(site), forward_(forward), backward_(std::move(backward)) {}

  std::string name() const override { return fmt::format("tessera::{}_backward", name_); }
  autograd::variable_list apply(autograd::variable_list&& grads) override {
    // Every rank takes part, also where its own loss does not depend on the result.
    const at::Tensor grad = grads[0].defined() ? grads[0] : input_metadata(0).zeros_like();
    const EndOfContext end;
    context().site = site_;
    context().forward = forward_;
    return {backward_(grad)};
  }

 private:
  const char* const name_;  // a literal
  const Site site_;
  const Made forward_;
  const Backward backward_;
};

// One call of an operator with autograd: before it, whether this rank needs a gradient; after it, whether any does.
class Recorded {
 public:
  // shared: the gradient is a collective, so that all ranks take part in it if one does.
  Recorded(const char* name, const at::Tensor& x, bool shared) : name_(name), x_(x), shared_(shared) {
    CallContext& here = context();
    site_ = here.site;
    forward_mode_ = x._fw_grad(0).defined();
    here.forward_mode |= forward_mode_;  // torch.func.jvp() calls the operator again within, with the value alone
    needed_ = autograd::compute_requires_grad(x);
    here.any_gradient = false;
    here.made = {};
    here.flags = !shared ? 0 : needed_ ? kNeedsGradient : at::GradMode::is_enabled() ? 0 : kRecordsNone;
    if (here.recorded_elsewhere) here.flags = kNeedsGradient | kRecordedElsewhere;
  }

  // Whether the result wants a history. Throws where no rank was asked, which is told otherwise.
  bool wanted() const {
    if (forward_mode_) throw no_forward_mode();
    return needed_ || (shared_ && context().any_gradient && at::GradMode::is_enabled());
  }

  // What fn() works out for the way back. Where there is none, the error says which call is meant.
  template <class Fn>
  auto way_back(const std::string& comm, Fn&& fn) const {
    try {
      return fn();
    } catch (const Error& error) {
      throw Error(fmt::format("{} on communicator \"{}\" at {}: {}", name_, comm, site_text(site_), error.what()));
    }
  }

  const at::Tensor& attach(const at::Tensor& result, Backward backward) const {
    if (!autograd::isDifferentiableType(result.scalar_type())) return result;
    auto node = c10::make_intrusive<Adjoint>(name_, site_, context().made, std::move(backward));
    node->set_next_edges(autograd::collect_next_edges(x_));
    autograd::set_history(result, node);
    return result;
  }

 private:
  const char* name_;
  const at::Tensor& x_;
  const bool shared_;
  bool needed_ = false;
  bool forward_mode_ = false;
  Site site_;
  const EndOfContext end_;
};

}  // namespace tessera::torch_front
