#include <tessera/redistribute.hpp>

#include <algorithm>

#include <tessera/collective.hpp>
#include <tessera/overlap.hpp>

#include "comm/comm_state.hpp"
#include "plan/identity.hpp"
#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

using detail::CommState;
using detail::Description;
using detail::OpCode;
using detail::Outcome;

bool is_local(const Step& step) { return step.kind == StepKind::slice || step.kind == StepKind::embed; }

// One rank's way through the steps.
class Execution {
 public:
  Execution(CommState& comm, const Plan& plan, const Tensor& x, const Tensor& out, const Site& site)
      : comm_(comm), plan_(plan), out_(out), site_(site), now_(x) {}

  Tensor run() {
    const auto& steps = plan_.steps();
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      const auto& stages = plan_.stages(i);
      for (size_t k = 0; k < stages.size(); ++k) {
        if (is_local(steps[i])) attempt([&] { stay(steps[i], *stages[k].exchange); });
        else move(stages[k], last && k + 1 == stages.size());
      }
    }
    if (steps.empty()) attempt([&] { check_part(plan_.from()); });
    attempt([&] { finish(); });
    if (problem_ != nullptr) std::rethrow_exception(problem_);
    return now_;
  }

 private:
  // What goes wrong on this rank alone is told to all by the next step that moves.
  template <class Fn>
  void attempt(Fn&& fn) {
    if (problem_ != nullptr) return;
    try {
      fn();
    } catch (const Error&) {
      problem_ = std::current_exception();
    }
  }

  void move(const Plan::Stage& stage, bool last) {
    const Exchange& exchange = *stage.exchange;
    Description description{.op = OpCode::redistribute,
                            .x = std::move(now_),
                            .scale = last ? plan_.scale() : 1,
                            .exchange = stage.exchange,
                            .note = &stage.text,
                            .dtype = plan_.dtype(),
                            .problem = problem_};
    const auto part = exchange.to().box(plan_.shape(), comm_.rank());
    if (part && last) description.out = out_;
    if (part && exchange.embeds(comm_.rank())) {
      if (!description.out.defined()) description.out = comm_.transport().allocate(plan_.dtype(), part->extent);
      fill_identity(description.out, *exchange.to().pending());
    }
    Outcome outcome;
    detail::execute_now(comm_, description, outcome, site_);
    now_ = std::move(outcome.tensor);
    moved_ = last;
  }

  // The part of this rank, which x must be.
  std::optional<Box> check_part(const Layout& layout) {
    const auto box = layout.box(plan_.shape(), comm_.rank());
    if (!box) {
      now_ = {};
      return box;
    }
    if (!now_.defined()) {
      throw ShapeError(fmt::format("redistribute: rank {}: x is undefined, but its part of {} is {}", comm_.rank(),
                                   layout, box->extent));
    }
    if (!(now_.shape() == box->extent)) {
      throw ShapeError(fmt::format("redistribute: rank {}: x is {}, but its part of {} is {} (of {})", comm_.rank(),
                                   now_.shape(), layout, box->extent, plan_.shape()));
    }
    if (now_.dtype() != plan_.dtype()) {
      throw DTypeError(
          fmt::format("redistribute: rank {}: x is {}, the plan is for {}", comm_.rank(), now_.dtype(), plan_.dtype()));
    }
    return box;
  }

  // A step in which nothing leaves its rank: a view of what it has, or that among the identity.
  void stay(const Step& step, const Exchange& exchange) {
    const auto before = check_part(step.before), after = step.after.box(plan_.shape(), comm_.rank());
    if (!after) {
      now_ = {};
    } else if (step.kind == StepKind::slice) {
      now_ = now_.box(after->relative_to(before->offset));
    } else {
      const Tensor result = comm_.transport().allocate(plan_.dtype(), after->extent);
      if (exchange.embeds(comm_.rank())) fill_identity(result, *step.after.pending());
      for (const Overlap& own : exchange.receives(comm_.rank())) {
        result.box(own.box.relative_to(after->offset)).copy_from(now_.box(own.box.relative_to(before->offset)));
      }
      now_ = result;
    }
  }

  // Into the caller's memory, and scaled, where no move did it.
  void finish() {
    if (!now_.defined()) return;
    const bool scaling = plan_.scale() != 1 && !moved_, placing = out_.defined() && !moved_;
    if (!scaling && !placing) return;
    Tensor target = out_.defined() ? out_ : comm_.transport().allocate(now_.dtype(), now_.shape());
    if (!(target.shape() == now_.shape()) || target.dtype() != now_.dtype()) {
      throw ShapeError(fmt::format("redistribute: rank {}: out is {} {}, the result {} {}", comm_.rank(),
                                   target.dtype(), target.shape(), now_.dtype(), now_.shape()));
    }
    const ConstView term = view_of(now_);
    if (scaling) reduce_boxes(view_of(target), {&term, 1}, {ReduceOp::premul_sum, plan_.scale()});
    else if (target.data() != now_.data()) target.copy_from(now_);
    now_ = target;
  }

  CommState& comm_;
  const Plan& plan_;
  const Tensor& out_;
  const Site& site_;
  Tensor now_;
  bool moved_ = false;  // the last step did: then the result is scaled, and in its place
  std::exception_ptr problem_;
};

}  // namespace

Tensor redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out, const Site& site) {
  CommState& state = comm.state();
  state.check_open();
  Tensor result;
  state.call([&] { result = Execution(state, plan, x, out, site).run(); });
  return result;
}

WorkOf<Tensor> start_redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out, const Site& site) {
  CommState& state = comm.state();
  state.check_open();
  auto result = std::make_shared<Tensor>();
  auto task =
      state.submit([&state, result, x, plan, out, site] { *result = Execution(state, plan, x, out, site).run(); });
  return {std::move(task), [result] { return std::move(*result); }};
}

namespace {

// What every rank has: its dtype and its extents; nothing of one that has no tensor.
std::vector<Dims> parts_of_all(Comm& comm, const Tensor& x, const Site& site, DType& dtype) {
  Tensor mine = Tensor::empty(DType::i64, {x.defined() ? x.ndim() + 1 : 0});
  if (x.defined()) {
    mine.at<int64_t>(0) = static_cast<int64_t>(x.dtype());
    for (int64_t d = 0; d < x.ndim(); ++d) mine.at<int64_t>(d + 1) = x.shape(d);
  }
  const auto [all, sizes] = all_gather(comm, mine, 0, {}, site);
  const auto values = all.span<int64_t>();
  std::vector<Dims> parts;
  size_t at = 0;
  for (const int64_t size : sizes) {
    if (size > 0) dtype = static_cast<DType>(values[at]);
    const size_t begin = at + (size > 0 ? 1 : 0), end = at + static_cast<size_t>(size);
    parts.emplace_back(values.subspan(begin, end - begin));
    at = end;
  }
  return parts;
}

// The shape of which these are parts: a dimension that is cut is as long as its pieces together.
Dims shape_of_whole(const Layout& from, const std::vector<Dims>& parts) {
  const Mesh& mesh = from.mesh();
  Dims origin = Dims::filled(mesh.ndim(), 0);
  for (const size_t axis : from.axes(Placement::Kind::at)) origin[axis] = from.placements()[axis].index;
  const auto part_at = [&](const Dims& coordinate) -> const Dims& {
    const int rank = mesh.rank_at(coordinate);
    if (rank >= static_cast<int>(parts.size())) {
      throw ShapeError(
          fmt::format("redistribute: the mesh has rank {}, the communicator only {} ranks", rank, parts.size()));
    }
    return parts[static_cast<size_t>(rank)];
  };
  Dims shape = part_at(origin);
  for (const Layout::Cut& cut : from.cuts()) {
    const auto d = static_cast<size_t>(normalize_dim(cut.dim, shape.size(), "the dimension of a Shard"));
    int64_t pieces = 1, sum = 0;
    for (const size_t axis : cut.axes) pieces *= mesh.size(axis);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      Dims coordinate = origin;
      int64_t rest = piece;
      for (size_t i = cut.axes.size(); i-- > 0;) {
        coordinate[cut.axes[i]] = rest % mesh.size(cut.axes[i]);
        rest /= mesh.size(cut.axes[i]);
      }
      const Dims& part = part_at(coordinate);
      if (part.size() != shape.size()) {
        throw ShapeError(
            fmt::format("redistribute: rank {} has {}, rank {} has {}: the parts of one tensor have as many dimensions",
                        mesh.rank_at(coordinate), part, mesh.rank_at(origin), shape));
      }
      sum += part[d];
    }
    shape[d] = sum;
  }
  return shape;
}

}  // namespace

Tensor redistribute(Comm& comm, const Tensor& x, const Layout& from, const Layout& to, const Site& site) {
  DType dtype = DType::f32;
  const std::vector<Dims> parts = parts_of_all(comm, x, site, dtype);
  const Dims shape = shape_of_whole(from, parts);
  const Topology topology = Topology::dtensor(from.mesh(), to.mesh(), 8);
  return redistribute(comm, x, plan(from, to, shape, dtype, topology), {}, site);
}

}  // namespace tessera
