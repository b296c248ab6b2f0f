// The public functions: each names its fields in a description, and its result
// in the outcome.
#include <tessera/collective.hpp>

#include <algorithm>

#include "collective/trusted.hpp"
#include "comm/comm_state.hpp"
#include "layout/axis_layout.hpp"

namespace tessera {

using detail::Asked;
using detail::Description;
using detail::OpCode;
using detail::Outcome;

namespace {

Gathered gathered(Outcome& outcome) { return {std::move(outcome.tensor), std::move(outcome.sizes)}; }

}  // namespace

Asked Asked::by(const Description& d) {
  return {d.op, &d.x, &d.out, d.dim, d.split_dim, d.root, d.reduction, d.scale, &d.sizes, &d.recv_sizes, d.trusted, &d};
}

Description Asked::describe() const {
  Description d = whole == nullptr ? Description() : *whole;
  d.op = op;
  d.x = *x;
  d.out = out == nullptr ? Tensor() : *out;
  d.dim = dim;
  d.split_dim = split_dim;
  d.root = root;
  d.reduction = reduction;
  d.scale = scale;
  d.sizes = sizes == nullptr ? Sizes() : *sizes;
  d.recv_sizes = recv_sizes == nullptr ? Sizes() : *recv_sizes;
  d.trusted = trusted;
  return d;
}

void detail::refuse(Comm& comm, OpCode op, const std::exception_ptr& problem, const Site& site) {
  const Description description{.op = op, .problem = problem};
  Outcome outcome;
  execute(comm, {&description, 1}, {&outcome, 1}, site);
  std::rethrow_exception(problem);
}

Description AllGather::describe(AllGather&& op) {
  const bool guesses = op.sizes_trusted && op.sizes.empty();
  return {.op = OpCode::all_gather,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.dim,
          .scale = op.scale,
          .sizes = std::move(op.sizes),
          .trusted = op.sizes_trusted && !guesses && op.scale == 1,
          .problem = guesses
                         ? std::make_exception_ptr(ShapeError("sizes_trusted needs sizes: give those of every rank"))
                         : nullptr};
}
Gathered AllGather::result(Outcome&& outcome) { return gathered(outcome); }

Description AllGatherParts::describe(AllGatherParts&& op) {
  return {.op = OpCode::all_gather_parts,
          .x = std::move(op.x),
          .parts = std::move(op.outs),
          .dim = op.dim,
          .sizes = std::move(op.sizes)};
}
Parts AllGatherParts::result(Outcome&& outcome) { return {std::move(outcome.parts), std::move(outcome.sizes)}; }

Description AllGatherSame::describe(AllGatherSame&& op) {
  return {.op = OpCode::all_gather_same, .x = std::move(op.x), .out = std::move(op.out)};
}
std::vector<Tensor> AllGatherSame::result(Outcome&& outcome) {
  std::vector<Tensor> parts;
  for (int64_t r = 0; r < outcome.tensor.shape(0); ++r) parts.push_back(outcome.tensor.select(0, r));
  return parts;
}

Description GatherSizes::describe(GatherSizes&& op) {
  return {.op = OpCode::gather_sizes, .x = std::move(op.x), .dim = op.dim};
}
Sizes GatherSizes::result(Outcome&& outcome) { return std::move(outcome.sizes); }

Description ReduceScatter::describe(ReduceScatter&& op) {
  return {.op = OpCode::reduce_scatter,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.dim,
          .reduction = op.op,
          .sizes = std::move(op.sizes)};
}
Tensor ReduceScatter::result(Outcome&& outcome) { return std::move(outcome.tensor); }

Description AllReduce::describe(AllReduce&& op) {
  return {.op = OpCode::all_reduce, .x = std::move(op.x), .out = std::move(op.out), .reduction = op.op};
}
Tensor AllReduce::result(Outcome&& outcome) { return std::move(outcome.tensor); }

Description AllToAll::describe(AllToAll&& op) {
  return {.op = OpCode::all_to_all,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.concat_dim,
          .split_dim = op.split_dim,
          .sizes = std::move(op.sizes)};
}
Gathered AllToAll::result(Outcome&& outcome) { return gathered(outcome); }

Description AllToAllV::describe(AllToAllV&& op) {
  return {.op = OpCode::all_to_all_v,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.dim,
          .sizes = std::move(op.send_sizes),
          .recv_sizes = std::move(op.recv_sizes)};
}
Gathered AllToAllV::result(Outcome&& outcome) { return gathered(outcome); }

Description Broadcast::describe(Broadcast&& op) {
  return {.op = OpCode::broadcast, .x = std::move(op.x), .out = std::move(op.out), .root = op.root, .scale = op.scale};
}
Tensor Broadcast::result(Outcome&& outcome) { return std::move(outcome.tensor); }

Description Scatter::describe(Scatter&& op) {
  return {.op = OpCode::scatter,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.dim,
          .root = op.root,
          .sizes = std::move(op.sizes)};
}
Gathered Scatter::result(Outcome&& outcome) { return gathered(outcome); }

Description Gather::describe(Gather&& op) {
  return {.op = OpCode::gather,
          .x = std::move(op.x),
          .out = std::move(op.out),
          .dim = op.dim,
          .root = op.root,
          .sizes = std::move(op.sizes)};
}
Gathered Gather::result(Outcome&& outcome) { return gathered(outcome); }

Description Reduce::describe(Reduce&& op) {
  return {.op = OpCode::reduce, .x = std::move(op.x), .out = std::move(op.out), .root = op.root, .reduction = op.op};
}
Tensor Reduce::result(Outcome&& outcome) { return std::move(outcome.tensor); }

Description Barrier::describe(Barrier&&) { return {.op = OpCode::barrier}; }
Barrier::Result Barrier::result(Outcome&&) { return {}; }

void Comm::barrier(const Site& site) { run(*this, Barrier{}, site); }

Comm Comm::split(int64_t color, int64_t key, const Site& site) {
  return detail::split(*this, color, key, fmt::format("{}/{}", name(), color), site);
}

Comm detail::split(Comm& comm, int64_t color, int64_t key, const std::string& name, const Site& site) {
  const Description description{.op = OpCode::split_comm, .extra = {color, key}};
  Outcome outcome;
  detail::execute(comm, {&description, 1}, {&outcome, 1}, site);
  const Sizes& all = outcome.sizes;              // color and key of every rank
  std::vector<std::pair<int64_t, int>> members;  // by key, then rank
  for (int r = 0; r < comm.size(); ++r) {
    if (color >= 0 && all[2 * static_cast<size_t>(r)] == color)
      members.emplace_back(all[2 * static_cast<size_t>(r) + 1], r);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& member : members) ranks.push_back(member.second);
  detail::CommState& parent = comm.state();
  std::unique_ptr<Transport> transport;
  parent.call([&] {
    try {
      transport = parent.transport().subgroup(static_cast<uint64_t>(parent.last_call()), ranks, parent.deadline());
    } catch (const PeerTrouble& trouble) {
      parent.fail(trouble, parent.last_call());
    }
  });
  if (transport == nullptr) return {};
  return Comm(std::make_shared<detail::CommState>(std::move(transport), name, comm.timeout()));
}

namespace {

template <class Op>
typename Op::Result ask(Comm& comm, const Asked& asked, const Site& site) {
  Outcome outcome;
  detail::execute(comm, asked, outcome, site);
  return Op::result(std::move(outcome));
}

// Of one whose description says more than can be asked for in short.
template <class Op>
typename Op::Result run_on(Comm& comm, const Tensor& x, Op&& op, const Site& site) {
  op.x = x;
  return run(comm, std::forward<Op>(op), site);
}

}  // namespace

Gathered all_gather(Comm& comm, const Tensor& x, AllGather op, const Site& site) {
  if (op.sizes_trusted && detail::gather_again(comm.state(), x, op, site)) {
    return {std::move(op.out), std::move(op.sizes)};
  }
  if (op.sizes_trusted && op.sizes.empty()) return run_on(comm, x, std::move(op), site);
  return ask<AllGather>(comm,
                        {.op = OpCode::all_gather,
                         .x = &x,
                         .out = &op.out,
                         .dim = op.dim,
                         .scale = op.scale,
                         .sizes = &op.sizes,
                         .trusted = op.sizes_trusted && op.scale == 1},
                        site);
}
Gathered all_gather(Comm& comm, const Tensor& x, int64_t dim, const Sizes& sizes, const Site& site) {
  return ask<AllGather>(comm, {.op = OpCode::all_gather, .x = &x, .dim = dim, .sizes = &sizes}, site);
}
Parts all_gather_parts(Comm& comm, const Tensor& x, AllGatherParts op, const Site& site) {
  return run_on(comm, x, std::move(op), site);
}
Parts all_gather_parts(Comm& comm, const Tensor& x, int64_t dim, const Sizes& sizes, const Site& site) {
  return run(comm, AllGatherParts{.x = x, .dim = dim, .sizes = sizes}, site);
}
std::vector<Tensor> all_gather_same(Comm& comm, const Tensor& x, const Tensor& out, const Site& site) {
  return ask<AllGatherSame>(comm, {.op = OpCode::all_gather_same, .x = &x, .out = &out}, site);
}
Sizes gather_sizes(Comm& comm, const Tensor& x, int64_t dim, const Site& site) {
  return ask<GatherSizes>(comm, {.op = OpCode::gather_sizes, .x = &x, .dim = dim}, site);
}
Tensor reduce_scatter(Comm& comm, const Tensor& x, ReduceScatter op, const Site& site) {
  return ask<ReduceScatter>(
      comm,
      {.op = OpCode::reduce_scatter, .x = &x, .out = &op.out, .dim = op.dim, .reduction = op.op, .sizes = &op.sizes},
      site);
}
Tensor reduce_scatter(Comm& comm, const Tensor& x, int64_t dim, const Sizes& sizes, Reduction op, const Site& site) {
  return ask<ReduceScatter>(comm, {.op = OpCode::reduce_scatter, .x = &x, .dim = dim, .reduction = op, .sizes = &sizes},
                            site);
}
Tensor all_reduce(Comm& comm, const Tensor& x, Reduction op, const Tensor& out, const Site& site) {
  return ask<AllReduce>(comm, {.op = OpCode::all_reduce, .x = &x, .out = &out, .reduction = op}, site);
}
Gathered all_to_all(Comm& comm, const Tensor& x, AllToAll op, const Site& site) {
  return ask<AllToAll>(comm,
                       {.op = OpCode::all_to_all,
                        .x = &x,
                        .out = &op.out,
                        .dim = op.concat_dim,
                        .split_dim = op.split_dim,
                        .sizes = &op.sizes},
                       site);
}
Gathered all_to_all(Comm& comm, const Tensor& x, int64_t split_dim, int64_t concat_dim, const Sizes& sizes,
                    const Site& site) {
  return ask<AllToAll>(
      comm, {.op = OpCode::all_to_all, .x = &x, .dim = concat_dim, .split_dim = split_dim, .sizes = &sizes}, site);
}
Gathered all_to_all_v(Comm& comm, const Tensor& x, AllToAllV op, const Site& site) {
  return ask<AllToAllV>(comm,
                        {.op = OpCode::all_to_all_v,
                         .x = &x,
                         .out = &op.out,
                         .dim = op.dim,
                         .sizes = &op.send_sizes,
                         .recv_sizes = &op.recv_sizes},
                        site);
}
Gathered all_to_all_v(Comm& comm, const Tensor& x, const Sizes& send_sizes, const Sizes& recv_sizes, int64_t dim,
                      const Site& site) {
  return ask<AllToAllV>(
      comm, {.op = OpCode::all_to_all_v, .x = &x, .dim = dim, .sizes = &send_sizes, .recv_sizes = &recv_sizes}, site);
}
Tensor broadcast(Comm& comm, const Tensor& x, int64_t root, const Tensor& out, const Site& site) {
  return ask<Broadcast>(comm, {.op = OpCode::broadcast, .x = &x, .out = &out, .root = root}, site);
}
Gathered scatter(Comm& comm, const Tensor& x, Scatter op, const Site& site) {
  return run_on(comm, x, std::move(op), site);
}
Gathered scatter(Comm& comm, const Tensor& x, int64_t root, int64_t dim, const Sizes& sizes, const Site& site) {
  return ask<Scatter>(comm, {.op = OpCode::scatter, .x = &x, .dim = dim, .root = root, .sizes = &sizes}, site);
}
Gathered gather(Comm& comm, const Tensor& x, Gather op, const Site& site) {
  return run_on(comm, x, std::move(op), site);
}
Gathered gather(Comm& comm, const Tensor& x, int64_t root, int64_t dim, const Site& site) {
  return ask<Gather>(comm, {.op = OpCode::gather, .x = &x, .dim = dim, .root = root}, site);
}
Tensor reduce(Comm& comm, const Tensor& x, int64_t root, Reduction op, const Tensor& out, const Site& site) {
  return ask<Reduce>(comm, {.op = OpCode::reduce, .x = &x, .out = &out, .root = root, .reduction = op}, site);
}

Tensor split(const Comm& comm, const Tensor& x, int64_t dim, const Sizes& sizes) {
  const int64_t d = normalize_dim(dim, x.shape().size());
  if (sizes.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(
        fmt::format("split: sizes has {} entries for {} ranks: give one for each", sizes.size(), comm.size()));
  }
  for (const int64_t size : sizes) {
    if (size < 0) throw ShapeError(fmt::format("split: a size of {}: a size cannot be negative", size));
  }
  if (total(sizes) != x.shape(d)) {
    throw ShapeError(fmt::format("split: the sizes [{}] add up to {}, but dim {} has {}", fmt::join(sizes, ", "),
                                 total(sizes), d, x.shape(d)));
  }
  const Box box = AxisLayout(x.shape(), axis_shard(d, sizes), comm.size()).box(comm.rank());
  return x.box(box);
}

Gathered split_by_rank(const Comm& comm, const std::vector<Tensor>& parts) {
  if (parts.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(fmt::format("split_by_rank: {} parts for {} ranks: give one for each", parts.size(), comm.size()));
  }
  Sizes sizes;
  for (const Tensor& part : parts) {
    if (!part.defined()) throw ShapeError(fmt::format("split_by_rank: part {} is undefined", sizes.size()));
    sizes.push_back(part.shape(0));
  }
  return {parts[static_cast<size_t>(comm.rank())], sizes};
}

Gathered split_by_rank(const Comm& comm, const Tensor& stacked) {
  if (stacked.ndim() < 2 || stacked.shape(0) != comm.size()) {
    throw ShapeError(fmt::format("split_by_rank: a stack for {} ranks has shape [{}, rows, …], not {}", comm.size(),
                                 comm.size(), stacked.shape()));
  }
  return {stacked.select(0, comm.rank()), Sizes(static_cast<size_t>(comm.size()), stacked.shape(1))};
}

}  // namespace tessera
