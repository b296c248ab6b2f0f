#include "process_group.hpp"

#include <unistd.h>

#include <pybind11/pybind11.h>

#include <fmt/format.h>

#include "../bindings/site.hpp"
#include "convert.hpp"

namespace tessera::backend {
namespace {

using c10d::OpType;
using detail::OpCode;
using Tensors = ProcessGroupTessera::Tensors;

std::chrono::nanoseconds checked(std::chrono::milliseconds timeout) {
  return std::max(timeout, std::chrono::milliseconds(1));
}

template <class List>
const auto& only(const List& list, const char* what) {
  if (list.size() != 1) {
    throw ShapeError(fmt::format("{} has {} entries: a rank gives one", what, list.size()));
  }
  return list[0];
}

const Tensors& one_for_each(const Tensors& list, const char* what, const Comm& comm) {
  if (list.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(fmt::format("{} has {} tensors for {} ranks: give one for each", what, list.size(), comm.size()));
  }
  return list;
}

void check_pairs(const Tensors& outputs, const Tensors& inputs) {
  if (outputs.size() != inputs.size()) {
    throw ShapeError(fmt::format("{} outputs for {} inputs: give as many", outputs.size(), inputs.size()));
  }
}

std::vector<Flat> flats(const Comm& comm, const Tensors& tensors, bool reduced = false) {
  std::vector<Flat> list;
  for (const at::Tensor& tensor : tensors) list.emplace_back(comm, Tensors{tensor}, reduced);
  return list;
}

void spread(const std::vector<Flat>& list) {
  for (const Flat& flat : list) flat.spread();
}

AllGatherParts gather_parts(const Flat& input, const std::vector<Flat>& outputs) {
  AllGatherParts op{.x = input.filled().tensor()};
  for (const Flat& output : outputs) {
    op.sizes.push_back(output.tensor().elements());
    op.outs.push_back(output.target());
  }
  return op;
}

std::vector<AllReduce> reductions(const Tensors& tensors, const c10d::ReduceOp& op) {
  std::vector<AllReduce> list;
  for (const at::Tensor& tensor : tensors) {
    const Tensor view = view_of(tensor, true);
    list.push_back({.x = view, .op = reduction_of(op), .out = view});
  }
  return list;
}

// Rows of the tensor as counts of its elements; none given: as many to each rank.
Sizes split_sizes(const at::Tensor& tensor, const std::vector<int64_t>& rows, const Comm& comm, const char* what) {
  if (tensor.dim() == 0) throw ShapeError(fmt::format("the {} has no dimension to split", what));
  const int64_t row = tensor.size(0) == 0 ? 1 : tensor.numel() / tensor.size(0);
  if (!rows.empty()) {
    Sizes sizes;
    for (const int64_t count : rows) sizes.push_back(count * row);
    return sizes;
  }
  if (tensor.size(0) % comm.size() != 0) {
    throw ShapeError(fmt::format("the {} has {} rows, which {} ranks cannot share evenly: give split sizes", what,
                                 tensor.size(0), comm.size()));
  }
  return Sizes(static_cast<size_t>(comm.size()), tensor.numel() / comm.size());
}

// Every rank hears what is wrong with this one's arguments. Throws what all throw, or nothing where they cannot be told.
void tell_all(Comm& comm, OpCode op, const std::exception_ptr& problem, const Site& at) {
  detail::Description description{.op = op, .problem = problem};
  detail::Outcome outcome;
  try {
    detail::execute(comm, {&description, 1}, {&outcome, 1}, at);
  } catch (const AbortedError&) {
  } catch (const PeerLostError&) {}
}

}  // namespace

ProcessGroupTessera::ProcessGroupTessera(const Meeting& meeting, int rank, int size, std::chrono::milliseconds timeout,
                                         const std::string& name, const MakeCarrier& make_carrier)
    : Backend(rank, size), timeout_(timeout), born_in_(getpid()) {
  comm_ = join(meeting, rank, size, {.name = name, .timeout = checked(timeout)}, make_carrier);
  comm_.set_remedy(
      "To go on, call destroy_process_group() and then init_process_group() on the ranks that are left, with a longer "
      "timeout where one was only late");
  living_->comm = &comm_;
  const auto abort_calls = [living = living_] { living->abort("interrupted"); };
  line_ = std::make_shared<Line>(abort_calls);
  message_line_ = std::make_shared<Line>(abort_calls);
  init();
}

ProcessGroupTessera::~ProcessGroupTessera() {
  // A callback of what is still pending may need Python.
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release release;
    finish();
  } else {
    finish();
  }
  if (Py_IsInitialized() != 0 && take_interrupt() != nullptr) PyErr_SetInterrupt();
}

void ProcessGroupTessera::shutdown() {
  finish();
  if (const auto interrupt = take_interrupt()) std::rethrow_exception(interrupt);
}

// Interrupted waits go on: what is pending ends soon then, and until it has it needs the communicator.
void ProcessGroupTessera::finish() noexcept {
  if (forked()) {
    // The threads are the parent's: here nobody can wait for them, nor take away what they wait for.
    new std::shared_ptr<Line>(line_);
    new std::shared_ptr<Line>(message_line_);
    comm_ = Comm();
    return;
  }
  const auto see_through = [](Line& line) {
    try {
      line.drain();
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  while (!see_through(*line_)) {}
  parcels_.wait_for_all(*message_line_);
  while (!see_through(*message_line_)) {}
  {
    std::lock_guard lock(living_->guard);
    living_->comm = nullptr;
  }
  comm_ = Comm();
}

bool ProcessGroupTessera::forked() const { return getpid() != born_in_; }

void ProcessGroupTessera::check_not_forked() const {
  if (forked()) throw Error("the process group was made before a fork and cannot be used in the child");
}

void ProcessGroupTessera::drain() {
  try {
    check_not_forked();
    line_->drain();
  } catch (...) {
    rethrow_to_python();
  }
}

void ProcessGroupTessera::Living::abort(const char* reason) {
  std::lock_guard lock(guard);
  if (comm != nullptr) comm->abort(reason);
}

void ProcessGroupTessera::abort() {
  try {
    living_->abort("the process group was aborted");
  } catch (...) {
    rethrow_to_python();
  }
}

at::Tensor ProcessGroupTessera::allocateTensor(long size, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  try {
    return as_torch(comm().allocate(dtype_of(dtype), {size}), dtype);
  } catch (...) {
    rethrow_to_python();
  }
}

Comm& ProcessGroupTessera::comm() {
  if (!comm_.defined()) throw Error("the process group has been destroyed");
  return comm_;
}

c10::intrusive_ptr<Call> ProcessGroupTessera::launch(const Kind& kind, const When& when, Tensors outputs, Body body) {
  auto call = c10::make_intrusive<Call>(
      getRank(), kind.type, kind.title, std::move(outputs),
      [this, kind, at = python::site_without_gil(), timeout = when.timeout, body = std::move(body)] {
        run_body(kind, at, timeout, body);
      },
      line_);
  ++sequence_;
  hand_over(call, when.async);
  return call;
}

void ProcessGroupTessera::hand_over(const c10::intrusive_ptr<Call>& call, bool async) {
  try {
    check_not_forked();
    if (async) line_->start(call);
    else line_->run(call);
  } catch (...) {
    rethrow_to_python();
  }
}

void ProcessGroupTessera::run_body(const Kind& kind, const Site& at, std::chrono::milliseconds timeout,
                                   const Body& body) {
  try {
    Comm& group = comm();
    try {
      group.set_timeout(checked(timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout));
      body(group, at);
    } catch (const Error& e) {
      if (!e.collective()) tell_all(group, kind.op, std::current_exception(), at);
      throw;
    } catch (const std::exception&) {
      tell_all(group, kind.op, std::current_exception(), at);
      throw;
    }
  } catch (...) {
    std::rethrow_exception(as_torch(std::current_exception()));
  }
}

auto ProcessGroupTessera::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) -> WorkPtr {
  const Kind kind{OpType::BROADCAST, "tessera:broadcast", OpCode::broadcast};
  return launch(kind, when(opts), tensors, [tensors, root = opts.rootRank](Comm& comm, const Site& at) {
    const Tensor view = view_of(only(tensors, "tensors"));
    if (comm.rank() == root) run(comm, Broadcast{.x = view, .root = root}, at);
    else run(comm, Broadcast{.root = root, .out = view}, at);
  });
}

auto ProcessGroupTessera::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) -> WorkPtr {
  const Kind kind{OpType::ALLREDUCE, "tessera:all_reduce", OpCode::all_reduce};
  return launch(kind, when(opts), tensors, [tensors, op = opts.reduceOp](Comm& comm, const Site& at) {
    const Tensor view = view_of(only(tensors, "tensors"), true);
    run(comm, AllReduce{.x = view, .op = reduction_of(op), .out = view}, at);
  });
}

auto ProcessGroupTessera::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::ALLREDUCE_COALESCED, "tessera:all_reduce", OpCode::all_reduce};
  return launch(kind, when(opts), tensors,
                [tensors, op = opts.reduceOp](Comm& comm, const Site& at) { run(comm, reductions(tensors, op), at); });
}

auto ProcessGroupTessera::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) -> WorkPtr {
  const Kind kind{OpType::REDUCE, "tessera:reduce", OpCode::reduce};
  return launch(
      kind, when(opts), tensors, [tensors, op = opts.reduceOp, root = opts.rootRank](Comm& comm, const Site& at) {
        const Tensor view = view_of(only(tensors, "tensors"), true);
        run(comm, Reduce{.x = view, .root = root, .op = reduction_of(op), .out = comm.rank() == root ? view : Tensor()},
            at);
      });
}

auto ProcessGroupTessera::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::ALLGATHER, "tessera:all_gather", OpCode::all_gather_parts};
  return launch(kind, when(opts), outputs.empty() ? Tensors() : outputs[0],
                [outputs, inputs](Comm& comm, const Site& at) {
                  const Flat input(comm, {only(inputs, "the list of inputs")});
                  const auto parts =
                      flats(comm, one_for_each(only(outputs, "the list of output lists"), "the output list", comm));
                  run(comm, gather_parts(input, parts), at);
                  spread(parts);
                });
}

auto ProcessGroupTessera::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) -> WorkPtr {
  const Kind kind{OpType::ALLGATHER_COALESCED, "tessera:all_gather", OpCode::all_gather_parts};
  Tensors written;
  for (const Tensors& list : outputs) written.insert(written.end(), list.begin(), list.end());
  return launch(kind, when(opts), written, [outputs, inputs](Comm& comm, const Site& at) {
    std::vector<std::vector<Flat>> parts;
    std::vector<AllGatherParts> ops;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors from_each;  // outputs[rank][i]
      for (const Tensors& list : outputs) {
        check_pairs(list, inputs);
        from_each.push_back(list[i]);
      }
      parts.push_back(flats(comm, one_for_each(from_each, "the list of output lists", comm)));
      ops.push_back(gather_parts(Flat(comm, {inputs[i]}), parts.back()));
    }
    run(comm, ops, at);
    for (const auto& list : parts) spread(list);
  });
}

auto ProcessGroupTessera::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::_ALLGATHER_BASE, "tessera:all_gather", OpCode::all_gather};
  return launch(kind, when(opts), {output}, [output, input](Comm& comm, const Site& at) {
    const Flat in(comm, {input}), out(comm, {output});
    run(comm, AllGather{.x = in.filled().tensor(), .out = out.target()}, at);
    out.spread();
  });
}

auto ProcessGroupTessera::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) -> WorkPtr {
  const Kind kind{OpType::ALLGATHER_COALESCED, "tessera:all_gather", OpCode::all_gather};
  return launch(kind, when(opts), outputs, [outputs, inputs](Comm& comm, const Site& at) {
    check_pairs(outputs, inputs);
    const auto in = flats(comm, inputs), out = flats(comm, outputs);
    std::vector<AllGather> ops;
    for (size_t i = 0; i < in.size(); ++i) ops.push_back({.x = in[i].filled().tensor(), .out = out[i].target()});
    run(comm, ops, at);
    spread(out);
  });
}

auto ProcessGroupTessera::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::GATHER, "tessera:gather", OpCode::gather};
  const Tensors written = outputs.empty() ? Tensors() : outputs[0];
  return launch(kind, when(opts), written, [outputs, inputs, root = opts.rootRank](Comm& comm, const Site& at) {
    const Flat input(comm, {only(inputs, "the list of inputs")});
    Gather op{.x = input.filled().tensor(), .root = root};
    if (comm.rank() != root) {
      run(comm, op, at);
      return;
    }
    const Flat list(comm, one_for_each(only(outputs, "the list of output lists"), "the output list", comm));
    op.sizes = list.sizes();
    op.out = list.target();
    run(comm, op, at);
    list.spread();
  });
}

auto ProcessGroupTessera::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::SCATTER, "tessera:scatter", OpCode::scatter};
  return launch(kind, when(opts), outputs, [outputs, inputs, root = opts.rootRank](Comm& comm, const Site& at) {
    const Flat output(comm, {only(outputs, "the list of outputs")});
    if (comm.rank() == root) {
      const Flat list(comm, one_for_each(only(inputs, "the list of input lists"), "the input list", comm));
      run(comm, Scatter{.x = list.filled().tensor(), .root = root, .sizes = list.sizes(), .out = output.target()}, at);
    } else {
      run(comm, Scatter{.root = root, .out = output.target()}, at);
    }
    output.spread();
  });
}

auto ProcessGroupTessera::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  const Kind kind{OpType::REDUCE_SCATTER, "tessera:reduce_scatter", OpCode::reduce_scatter};
  return launch(kind, when(opts), outputs, [outputs, inputs, op = opts.reduceOp](Comm& comm, const Site& at) {
    const Flat output(comm, {only(outputs, "the list of outputs")}, true);
    const Flat list(comm, one_for_each(only(inputs, "the list of input lists"), "the input list", comm), true);
    run(comm,
        ReduceScatter{
            .x = list.filled().tensor(), .sizes = list.sizes(), .op = reduction_of(op), .out = output.target()},
        at);
    output.spread();
  });
}

auto ProcessGroupTessera::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  const Kind kind{OpType::_REDUCE_SCATTER_BASE, "tessera:reduce_scatter", OpCode::reduce_scatter};
  return launch(kind, when(opts), {output}, [output, input, op = opts.reduceOp](Comm& comm, const Site& at) {
    const Flat in(comm, {input}, true), out(comm, {output}, true);
    run(comm, ReduceScatter{.x = in.filled().tensor(), .op = reduction_of(op), .out = out.target()}, at);
    out.spread();
  });
}

auto ProcessGroupTessera::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) -> WorkPtr {
  const Kind kind{OpType::REDUCE_SCATTER_TENSOR_COALESCED, "tessera:reduce_scatter", OpCode::reduce_scatter};
  return launch(kind, when(opts), outputs, [outputs, inputs, op = opts.reduceOp](Comm& comm, const Site& at) {
    check_pairs(outputs, inputs);
    const auto in = flats(comm, inputs, true), out = flats(comm, outputs, true);
    std::vector<ReduceScatter> ops;
    for (size_t i = 0; i < in.size(); ++i) {
      ops.push_back({.x = in[i].filled().tensor(), .op = reduction_of(op), .out = out[i].target()});
    }
    run(comm, ops, at);
    spread(out);
  });
}

auto ProcessGroupTessera::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts)
    -> WorkPtr {
  const Kind kind{OpType::ALLTOALL_BASE, "tessera:all_to_all", OpCode::all_to_all_v};
  return launch(kind, when(opts), {output}, [output, input, output_sizes, input_sizes](Comm& comm, const Site& at) {
    const Flat in(comm, {input}), out(comm, {output});
    run(comm,
        AllToAllV{.x = in.filled().tensor(),
                  .send_sizes = split_sizes(input, input_sizes, comm, "input"),
                  .recv_sizes = split_sizes(output, output_sizes, comm, "output"),
                  .out = out.target()},
        at);
    out.spread();
  });
}

auto ProcessGroupTessera::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) -> WorkPtr {
  const Kind kind{OpType::ALLTOALL, "tessera:all_to_all", OpCode::all_to_all_v};
  return launch(kind, when(opts), outputs, [outputs, inputs](Comm& comm, const Site& at) {
    const Flat in(comm, one_for_each(inputs, "the input list", comm));
    const Flat out(comm, one_for_each(outputs, "the output list", comm));
    run(comm,
        AllToAllV{.x = in.filled().tensor(), .send_sizes = in.sizes(), .recv_sizes = out.sizes(), .out = out.target()},
        at);
    out.spread();
  });
}

auto ProcessGroupTessera::barrier(const c10d::BarrierOptions& opts) -> WorkPtr {
  const Kind kind{OpType::BARRIER, "tessera:barrier", OpCode::barrier};
  return launch(kind, when(opts), {}, [](Comm& comm, const Site& at) { comm.barrier(at); });
}

void ProcessGroupTessera::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  const Kind kind{OpType::BARRIER, "tessera:barrier", OpCode::barrier};
  launch(kind, {false, opts.timeout}, {}, [](Comm& comm, const Site& at) { comm.barrier(at); })->wait();
}

auto ProcessGroupTessera::send(Tensors& tensors, int to, int tag) -> WorkPtr {
  try {
    const at::Tensor& tensor = only(tensors, "tensors");
    auto parcel =
        std::make_shared<Parcel>(start_send(comm(), view_of(tensor), to, tag, python::site_without_gil()), tensor);
    parcels_.add(parcel);
    return c10::make_intrusive<Message>(getRank(), OpType::SEND, parcel, message_line_);
  } catch (...) {
    rethrow_to_python();
  }
}

auto ProcessGroupTessera::receive(OpType type, const Tensors& tensors, int from, int tag) -> WorkPtr {
  try {
    const at::Tensor& tensor = only(tensors, "tensors");
    auto parcel =
        std::make_shared<Parcel>(start_recv(comm(), from, tag, view_of(tensor), python::site_without_gil()), tensor);
    parcels_.add(parcel);
    return c10::make_intrusive<Message>(getRank(), type, parcel, message_line_);
  } catch (...) {
    rethrow_to_python();
  }
}

auto ProcessGroupTessera::recv(Tensors& tensors, int from, int tag) -> WorkPtr {
  return receive(OpType::RECV, tensors, from, tag);
}

auto ProcessGroupTessera::recvAnysource(Tensors& tensors, int tag) -> WorkPtr {
  return receive(OpType::RECVANYSOURCE, tensors, kAnySource, tag);
}

at::Tensor ProcessGroupTessera::all_reduced(const at::Tensor& input, const c10d::ReduceOp& op) {
  const Kind kind{OpType::ALLREDUCE, "tessera:all_reduce", OpCode::all_reduce};
  Tensor result;
  launch(kind, {false, c10d::kUnsetTimeout}, {}, [&](Comm& comm, const Site& at) {
    result = run(comm, AllReduce{.x = view_of(input, true), .op = reduction_of(op)}, at);
  })->wait();
  return as_torch(result, input.scalar_type());
}

at::Tensor ProcessGroupTessera::shard_dim_alltoall(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim) {
  const Kind kind{OpType::ALLTOALL, "tessera:shard_dim_alltoall", OpCode::all_to_all};
  Tensor result;
  launch(kind, {false, c10d::kUnsetTimeout}, {}, [&](Comm& comm, const Site& at) {
    result = run(comm, AllToAll{.x = view_of(input), .split_dim = shard_dim, .concat_dim = gather_dim}, at).tensor;
  })->wait();
  return as_torch(result, input.scalar_type());
}

}  // namespace tessera::backend
