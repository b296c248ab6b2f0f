// Where at::Tensor becomes Tensor and back, and what an operator knows of its call beside its arguments.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <tessera/torch.hpp>

namespace tessera::torch_front {

using OptionalTensor = std::optional<at::Tensor>;

// What ranks tell each other about gradients, in Description::flags.
inline constexpr int64_t kNeedsGradient = 1;  // this rank's input requires a gradient
inline constexpr int64_t kRecordsNone = 2;    // under no_grad(): this rank cannot take part in a backward
inline constexpr int64_t kMeanGradient = 4, kSliceGradient = 8;  // of a gather, where it is not the sum
inline constexpr int64_t kRecordedElsewhere = 16;  // the front end gives the result its history, on this rank alone

// A call that was made: its number on its communicator, and the place in its list. Zero: none, as only shapes were worked out.
struct Made {
  int64_t call = 0;
  int64_t place = 0;
};

// Of the operator that runs on this thread; the autograd kernel sets it, the kernel below uses it.
struct CallContext {
  Site site = {"torch.ops", 0};
  int64_t flags = 0;
  bool forward_mode = false;        // x has a tangent, which would be lost
  bool recorded_elsewhere = false;  // the front end differentiates the result, as it does DTensors
  bool any_gradient = false;        // after the call: whether some rank needs one
  Made made;                        // after the call
  Made forward;                     // the call whose gradient this is
};
CallContext& context();

// The arguments of one call as tessera has them, and its results as torch does. What is wrong with them is kept, to be told
// to every rank. Where x lies on another device than the CPU, its elements go through the host's memory, and the results
// back to that device.
class Arguments {
 public:
  Arguments(Comm& comm, const at::Tensor& x);
  Tensor tensor(const OptionalTensor& tensor);
  Tensor shape(const at::Tensor& tensor);  // where nobody looks at its elements
  Sizes sizes(const OptionalTensor& sizes, const char* field);
  Reduction reduction(std::string_view op, double factor);
  void check_grad(std::string_view grad);  // that of a gather

  template <class Op>
  typename Op::Result run(Op op) {
    Outcome outcome = execute(Op::describe(std::move(op)));
    return Op::result(std::move(outcome));
  }
  // x: undefined where this rank has no part. No plan: what is wrong with it is told.
  Tensor redistribute(const Tensor& x, const std::optional<Plan>& plan);
  Plan plan_between(const Tensor& x, const Layout& from, const Layout& to, const Site& site);
  // What make() makes; none where something is wrong.
  template <class Make>
  std::optional<Plan> plan(Make&& make) {
    return attempt([&]() -> std::optional<Plan> { return problem_ == nullptr ? std::optional(make()) : std::nullopt; });
  }

  // run() in parts, for several calls with one agreement: with what this rank says of gradients and of its arguments; and
  // after it, what the ranks say of gradients: whether one needs one, and that none is in the way.
  tessera::detail::Description complete(tessera::detail::Description description) const;
  static void settle(const Comm& comm, const Sizes& flags, const Site& site);

  at::Tensor result(const Tensor& tensor) const;
  at::Tensor result(const Sizes& sizes) const;
  std::tuple<at::Tensor, at::Tensor> result(const Gathered& gathered) const {
    return {result(gathered.tensor), result(gathered.sizes)};
  }

 private:
  using Outcome = tessera::detail::Outcome;
  Tensor on_host(const at::Tensor& tensor) const;
  Outcome execute(tessera::detail::Description description);
  template <class Fn>
  auto attempt(Fn&& fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (...) {
      if (problem_ == nullptr) problem_ = std::current_exception();
      return {};
    }
  }

  Comm& comm_;
  const at::Device device_;
  std::exception_ptr problem_;
};

at::Tensor to_tensor(const Sizes& sizes);
// The values of a list of integers. Throws ShapeError, with the field's name, where it is none.
Sizes read_sizes(const at::Tensor& sizes, const char* field);
// A clone; where nobody traces, without the dispatcher.
at::Tensor copy_of_sizes(const at::Tensor& sizes);
ReduceOp parse_reduce_op(std::string_view name);
// What is refused of gradients.
ArgumentError no_forward_mode();
ArgumentError no_adjoint(std::string_view op);
// Throws ArgumentError where there is no such reduction, DTypeError where x cannot be reduced so.
void check_reduction(const at::Tensor& x, std::string_view op, double factor);
// What a gather's `grad` is among the flags. Throws ArgumentError where there is no such gradient.
int64_t parse_grad(std::string_view grad);
// What a linear reduction over `ranks` multiplies each term by; none: it is not linear.
std::optional<double> weight(std::string_view op, double factor, int ranks);

// This rank's piece of dim: where it begins, how long it is, how long all are. Throws ShapeError.
struct Piece {
  int64_t dim, start, length, total;
};
Piece piece_of(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, const Comm& comm);
// That piece of x, whose dim the sizes must fill: a view.
at::Tensor own_piece(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, const Comm& comm);

// Lists: one agreement for all, and a gradient for each.
std::vector<at::Tensor> all_reduce_list(const std::vector<at::Tensor>& xs, std::string_view op, double factor,
                                        std::string_view comm);
std::vector<std::tuple<at::Tensor, at::Tensor>> all_gather_list(const std::vector<at::Tensor>& xs, int64_t dim,
                                                                std::string_view grad, std::string_view comm);

// They do nothing; but who calls them keeps the operators, their gradients and shapes, where a static library is linked.
void keep_operators();
void keep_gradients();
void keep_shapes();

// Runs the body of an operator; tessera's exceptions go through the error hook.
void hand_over(const Error& error);
template <class Fn>
auto guarded(Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    hand_over(error);
    throw;
  }
}

}  // namespace tessera::torch_front
