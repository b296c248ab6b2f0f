#include "border.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <tessera/detail/forward.hpp>

#include "comm/comm_state.hpp"

namespace tessera {
namespace {

constexpr std::pair<DType, at::ScalarType> kDTypes[] = {
    {DType::f64, at::kDouble},
    {DType::f32, at::kFloat},
    {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16},
    {DType::f8e4m3, at::kFloat8_e4m3fn},
    {DType::f8e5m2, at::kFloat8_e5m2},
    {DType::i64, at::kLong},
    {DType::i32, at::kInt},
    {DType::i16, at::kShort},
    {DType::i8, at::kChar},
    {DType::u8, at::kByte},
    {DType::boolean, at::kBool},
    {DType::c64, at::kComplexFloat},
    {DType::c128, at::kComplexDouble},
};

DType dtype_of_torch(at::ScalarType type) {
  for (const auto& [ours, theirs] : kDTypes) {
    if (theirs == type) return ours;
  }
  const size_t bytes = c10::elementSize(type);
  const char* const same = bytes == 1 ? "uint8" : bytes == 2 ? "int16" : bytes == 4 ? "int32" : "int64";
  throw DTypeError(
      fmt::format("{} has no counterpart in tessera: to move it, view it as one of its width, x.view(torch.{})",
                  c10::toString(type), same));
}

at::ScalarType dtype_of_tessera(DType dtype) {
  for (const auto& [ours, theirs] : kDTypes) {
    if (ours == dtype) return theirs;
  }
  throw DTypeError("no such dtype");
}

// Communicators by name. They are kept by whoever made them.
class Names {
 public:
  std::string of(Comm& comm) {
    detail::CommState& state = comm.state();
    std::lock_guard lock(guard_);
    // With the size, as compiled code, which has it built in, is found again by this name.
    const std::string stem = fmt::format("{}/{} of {}", state.name(), state.rank(), state.size());
    for (int n = 1;; ++n) {
      const std::string name = n == 1 ? stem : fmt::format("{}#{}", stem, n);
      auto& entry = by_name_[name];
      const auto there = entry.lock();
      if (there.get() == &state) return name;
      if (there != nullptr) continue;
      entry = state.weak_from_this();
      return name;
    }
  }

  std::shared_ptr<detail::CommState> find(std::string_view name) {
    std::lock_guard lock(guard_);
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : at->second.lock();
  }

 private:
  std::mutex guard_;
  std::map<std::string, std::weak_ptr<detail::CommState>, std::less<>> by_name_;
};

Names& names() {
  static Names instance;
  return instance;
}

std::atomic<void (*)(const Error&)> error_hook{nullptr};

}  // namespace

std::string torch_name(Comm& comm) { return names().of(comm); }

Comm torch_comm(std::string_view name) {
  auto state = names().find(name);
  if (state == nullptr) {
    throw Error(
        fmt::format("there is no communicator \"{}\", or none any more: the Comm, or the run() it belonged to, "
                    "must live as long as what is computed with it, backward() included",
                    name));
  }
  return Comm(std::move(state));
}

namespace {

void check_dense(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
    throw ArgumentTypeError(
        "a tensor that is sparse, nested or quantized: only dense ones work, use x.to_dense(), "
        "x.to_padded_tensor(0) or x.dequantize()");
  }
}

Dims shape_of(const at::Tensor& tensor) {
  return Dims(std::span<const int64_t>(tensor.sizes().data(), tensor.sizes().size()));
}

}  // namespace

Tensor from_torch(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    throw ArgumentTypeError(
        fmt::format("a tensor on {}: only memory of the CPU can be viewed, use x.cpu()", tensor.device().str()));
  }
  check_dense(tensor);
  if (tensor.is_conj() || tensor.is_neg()) {
    throw ArgumentTypeError("a tensor whose conj or neg bit is set: use x.resolve_conj()");
  }
  const DType dtype = dtype_of_torch(tensor.scalar_type());
  const Dims strides{std::span<const int64_t>(tensor.strides().data(), tensor.strides().size())};
  return Tensor::view(const_cast<void*>(tensor.const_data_ptr()), dtype, shape_of(tensor), strides,
                      std::make_shared<at::Tensor>(tensor));
}

at::Tensor to_torch(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::IntArrayRef sizes(tensor.shape().data(), tensor.shape().size());
  const at::IntArrayRef strides(tensor.strides().data(), tensor.strides().size());
  const auto dtype = c10::scalarTypeToTypeMeta(dtype_of_tessera(tensor.dtype()));
  // As at::from_blob() does, which takes three times as long; and resize_() gets what it lacks from torch.
  c10::DataPtr memory(
      tensor.data(), new Tensor(tensor), [](void* kept) { delete static_cast<Tensor*>(kept); }, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize()), std::move(memory),
                       c10::GetCPUAllocator(), true);
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}

namespace detail {

void set_next_site(const Site& site, bool recorded_elsewhere) {
  torch_front::context().site = site;
  torch_front::context().recorded_elsewhere = recorded_elsewhere;
}
void set_error_hook(void (*hook)(const Error& error)) { error_hook.store(hook); }

}  // namespace detail

namespace torch_front {

CallContext& context() {
  thread_local CallContext instance;
  return instance;
}

void hand_over(const Error& error) {
  if (auto* const hook = error_hook.load(); hook != nullptr) hook(error);
}

ArgumentError no_forward_mode() { return ArgumentError("forward-mode differentiation is not there: use backward()"); }
ArgumentError no_adjoint(std::string_view op) {
  return ArgumentError(fmt::format("{} has no linear adjoint: detach x, or differentiate it by hand", op));
}

Arguments::Arguments(Comm& comm, const at::Tensor& x)
    : comm_(comm), device_(x.defined() ? x.device() : at::Device(at::kCPU)) {
  // What lies on a GPU has a thread of autograd's own, unless the thread that calls backward() has this switched off. There
  // ranks that are threads would wait for one another, a Ctrl-C would not be heard, and gradients on the CPU would come in
  // between, in another order on each rank.
  if (!device_.is_cpu()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (context().forward_mode) problem_ = std::make_exception_ptr(no_forward_mode());
}

Tensor Arguments::tensor(const OptionalTensor& tensor) {
  if (!tensor.has_value() || !tensor->defined()) return {};
  return attempt([&] {
    if (!tensor->device().is_cpu()) return on_host(*tensor);
    const bool as_it_lies = !tensor->is_conj() && !tensor->is_neg();
    return from_torch(as_it_lies ? *tensor : tensor->resolve_conj().resolve_neg());
  });
}

// In memory that the peers read in place.
Tensor Arguments::on_host(const at::Tensor& tensor) const {
  check_dense(tensor);
  const Tensor copy = comm_.allocate(dtype_of_torch(tensor.scalar_type()), shape_of(tensor));
  try {
    to_torch(copy).copy_(tensor);
  } catch (const c10::Error& error) {
    throw Error(
        fmt::format("the copy from {} to the host failed: {}", tensor.device().str(), error.what_without_backtrace()));
  }
  return copy;
}

Tensor Arguments::shape(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return this->tensor(tensor);
  return attempt([&] {
    check_dense(tensor);
    return from_torch(
        at::Tensor(at::detail::empty_cpu(at::IntArrayRef(), tensor.scalar_type())).expand(tensor.sizes()));
  });
}

at::Tensor Arguments::result(const Tensor& tensor) const {
  const at::Tensor here = to_torch(tensor);
  return device_.is_cpu() || !here.defined() ? here : here.to(device_);
}

at::Tensor Arguments::result(const Sizes& sizes) const {
  const at::Tensor here = to_tensor(sizes);
  return device_.is_cpu() ? here : here.to(device_);
}

namespace {

// On the CPU, int64, one behind the other; mostly it is already, and asking costs less than to() does.
at::Tensor as_list(const at::Tensor& sizes) {
  if (sizes.device().is_cpu() && sizes.scalar_type() == at::kLong && sizes.is_contiguous()) return sizes;
  return sizes.to(at::kCPU, at::kLong).contiguous();
}

}  // namespace

Sizes read_sizes(const at::Tensor& sizes, const char* field) {
  if (sizes.dim() != 1 || !at::isIntegralType(sizes.scalar_type(), false)) {
    throw ShapeError(fmt::format("{} must be a list of integers, one for each rank", field));
  }
  const at::Tensor list = as_list(sizes);
  const auto* values = list.const_data_ptr<int64_t>();
  return Sizes(values, values + list.numel());
}

Sizes Arguments::sizes(const OptionalTensor& sizes, const char* field) {
  if (!sizes.has_value() || !sizes->defined()) return {};
  return attempt([&] { return read_sizes(*sizes, field); });
}

Reduction Arguments::reduction(std::string_view op, double factor) {
  return attempt([&] {
    const Reduction reduction(parse_reduce_op(op), factor);
    // At once, and not first in backward(), which may be far away.
    if ((context().flags & kNeedsGradient) != 0 && !weight(op, factor, 1)) throw no_adjoint(op);
    return reduction;
  });
}

void Arguments::check_grad(std::string_view grad) {
  context().flags |= attempt([&] { return parse_grad(grad); });
}

namespace {

Site take_site() { return std::exchange(context().site, CallContext().site); }
// As the distance to the forward, which is the same in every step of a loop: so the call repeats the last step's.
int64_t forward_flags(const Comm& comm) {
  const Made forward = std::exchange(context().forward, {});
  if (forward.call == 0) return 0;
  tessera::detail::CommState& state = comm.state();
  state.call([] {});  // what was started before has its number then
  return tessera::detail::Forward{state.last_call() + 1 - forward.call, forward.place}.as_flags();
}
int64_t take_flags(const Comm& comm) {
  const int64_t own = std::exchange(context().flags, 0) | (c10::InferenceMode::is_enabled() ? kRecordsNone : 0);
  return own | forward_flags(comm);
}

}  // namespace

tessera::detail::Description Arguments::complete(tessera::detail::Description description) const {
  description.flags = take_flags(comm_);
  description.problem = problem_;
  return description;
}

tessera::detail::Outcome Arguments::execute(tessera::detail::Description description) {
  const Site site = take_site();
  description = complete(std::move(description));
  Outcome outcome;
  tessera::detail::execute(comm_, {&description, 1}, {&outcome, 1}, site);
  settle(comm_, outcome.flags, site);
  return outcome;
}

Tensor Arguments::redistribute(const Tensor& x, const std::optional<Plan>& plan) {
  if (!plan) return execute({.op = tessera::detail::OpCode::redistribute}).tensor;
  const Site site = take_site();
  tessera::detail::RedistributeCall call{.flags = take_flags(comm_), .problem = problem_};
  const Tensor result = tessera::detail::redistribute(comm_, x, *plan, call, site);
  settle(comm_, call.flags_of_all, site);
  // The result of an operator is never its argument, nor a view of it; and row-major, as compiled code takes it to be.
  const bool own = !result.defined() || (result.owner() != x.owner() && result.is_contiguous());
  return own ? result : result.clone();
}

Plan Arguments::plan_between(const Tensor& x, const Layout& from, const Layout& to, const Site& site) {
  return tessera::detail::plan_between(comm_, x, from, to, problem_, site);
}

void Arguments::settle(const Comm& comm, const Sizes& flags, const Site& site) {
  context().made.call = comm.state().last_call();
  int64_t all = 0;
  for (const int64_t of_rank : flags) all |= of_rank;
  context().any_gradient = (all & kNeedsGradient) != 0;
  const auto first_with = [&](int64_t flag) {
    return std::find_if(flags.begin(), flags.end(), [&](int64_t f) { return (f & flag) != 0; }) - flags.begin();
  };
  constexpr int64_t kKinds = kMeanGradient | kSliceGradient;
  const auto differs =
      std::find_if(flags.begin(), flags.end(), [&](int64_t f) { return (f & kKinds) != (flags[0] & kKinds); });
  if ((all & kNeedsGradient) != 0 && differs != flags.end()) {
    const auto name_of = [](int64_t f) {
      return (f & kMeanGradient) != 0 ? "mean" : (f & kSliceGradient) != 0 ? "slice" : "sum";
    };
    MismatchError error(fmt::format(
        "communicator \"{}\": grad is \"{}\" on rank 0 and \"{}\" on rank {}: give the same on every rank.   {}:{}",
        comm.name(), name_of(flags[0]), name_of(*differs), differs - flags.begin(), site.file_name(), site.line()));
    error.set_collective();
    throw error;
  }
  const auto lacks = std::find_if(flags.begin(), flags.end(), [](int64_t f) { return (f & kRecordedElsewhere) == 0; });
  if ((all & kRecordedElsewhere) != 0 && lacks != flags.end()) {
    MismatchError error(fmt::format(
        "communicator \"{}\": rank {} needs a gradient of its DTensor, rank {} does not and could not take part in "
        "backward().\nGive it requires_grad on every rank or on none.   {}:{}",
        comm.name(), first_with(kRecordedElsewhere), lacks - flags.begin(), site.file_name(), site.line()));
    error.set_collective();
    throw error;
  }
  constexpr int64_t kBoth = kNeedsGradient | kRecordsNone;
  if ((all & kBoth) != kBoth) return;
  MismatchError error(
      fmt::format("communicator \"{}\": rank {} needs a gradient, rank {} is under no_grad() and could not take part "
                  "in backward().\n"
                  "Call it under no_grad() on every rank or on none.   {}:{}",
                  comm.name(), first_with(kNeedsGradient), first_with(kRecordsNone), site.file_name(), site.line()));
  error.set_collective();
  throw error;
}

at::Tensor to_tensor(const Sizes& sizes) {
  at::Tensor list = at::detail::empty_cpu({static_cast<int64_t>(sizes.size())}, at::kLong);
  std::copy(sizes.begin(), sizes.end(), list.mutable_data_ptr<int64_t>());
  return list;
}

at::Tensor copy_of_sizes(const at::Tensor& sizes) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kPlain(
      {DispatchKey::CPU, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU});
  const bool seen = c10::impl::dispatch_mode_enabled() || c10::impl::tls_is_dispatch_key_included(DispatchKey::Tracer);
  const bool plain = kPlain.isSupersetOf(sizes.key_set()) && sizes.scalar_type() == at::kLong && sizes.is_contiguous();
  if (seen || !plain) return sizes.clone();
  const auto* values = sizes.const_data_ptr<int64_t>();
  at::Tensor copy = at::detail::empty_cpu(sizes.sizes(), at::kLong);
  std::copy_n(values, sizes.numel(), copy.mutable_data_ptr<int64_t>());
  return copy;
}

Piece piece_of(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, const Comm& comm) {
  const at::Tensor list = as_list(sizes);
  if (list.dim() != 1 || list.numel() != comm.size()) {
    throw ShapeError(fmt::format("split: sizes must be a list of {} integers, one for each rank", comm.size()));
  }
  const auto* values = list.const_data_ptr<int64_t>();
  Piece piece{normalize_dim(dim, static_cast<size_t>(x.dim())), 0, values[comm.rank()], 0};
  for (int r = 0; r < comm.size(); ++r) {
    if (values[r] < 0) throw ShapeError(fmt::format("split: a size of {}: a size cannot be negative", values[r]));
    if (r < comm.rank()) piece.start += values[r];
    piece.total += values[r];
  }
  return piece;
}

at::Tensor own_piece(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, const Comm& comm) {
  const Piece piece = piece_of(x, dim, sizes, comm);
  if (piece.total != x.size(piece.dim)) {
    throw ShapeError(
        fmt::format("split: the sizes add up to {}, but dim {} has {}", piece.total, piece.dim, x.size(piece.dim)));
  }
  return x.narrow(piece.dim, piece.start, piece.length);
}

ReduceOp parse_reduce_op(std::string_view wanted) {
  std::string known;
  for (int op = 0; op <= static_cast<int>(ReduceOp::premul_sum); ++op) {
    const std::string_view there = name(static_cast<ReduceOp>(op));
    if (there == wanted) return static_cast<ReduceOp>(op);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", there);
  }
  throw ArgumentError(fmt::format("op is \"{}\"; there are {}", wanted, known));
}

void check_reduction(const at::Tensor& x, std::string_view op, double factor) {
  check_reducible({parse_reduce_op(op), factor}, dtype_of_torch(x.scalar_type()));
}

int64_t parse_grad(std::string_view grad) {
  if (grad == "sum") return 0;
  if (grad == "mean") return kMeanGradient;
  if (grad == "slice") return kSliceGradient;
  throw ArgumentError(fmt::format("grad is \"{}\"; there are \"sum\", \"mean\" and \"slice\"", grad));
}

std::optional<double> weight(std::string_view op, double factor, int ranks) {
  switch (parse_reduce_op(op)) {
    case ReduceOp::sum: return 1;
    case ReduceOp::avg: return 1.0 / ranks;
    case ReduceOp::premul_sum: return factor;
    default: return std::nullopt;
  }
}

}  // namespace torch_front
}  // namespace tessera
