#include <tessera/redistribute.hpp>

#include <algorithm>

#include <tessera/collective.hpp>
#include <tessera/overlap.hpp>

#include "comm/comm_state.hpp"
#include "plan/identity.hpp"
#include "plan/role.hpp"
#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

using detail::CommState;
using detail::Description;
using detail::OpCode;
using detail::Outcome;

// One rank's way through the steps, to the outcome.
class Execution {
 public:
  Execution(CommState& comm, const Plan& plan, const Tensor& x, const Tensor& out, const Site& site, Outcome& outcome,
            const detail::RedistributeCall* call = nullptr)
      : comm_(comm),
        plan_(plan),
        role_(plan.role(comm.rank())),
        x_(x),
        out_(out),
        site_(site),
        now_(&x),
        outcome_(outcome) {
    if (call == nullptr) return;
    flags_ = call->flags;
    problem_ = call->problem;
  }
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  void run() {
    if (out_.defined()) attempt([&] { check_out(); });
    if (!role_.moves) agree();
    for (const Stage& stage : role_.stages) {
      if (stage.halves) attempt([&] { reduce_in_place(stage, role_.stages[stage.number + 1]); });
      if (stage.is_local) attempt([&] { stay(stage); });
      else move(stage);
    }
    finish();
    if (problem_ != nullptr) std::rethrow_exception(problem_);
    if (now_ == &x_) have(x_);
  }

 private:
  using Stage = detail::Role::Stage;

  // What goes wrong on this rank alone is told to all by the next step that moves.
  template <class Fn>
  void attempt(Fn&& fn) {
    if (problem_ != nullptr) return;
    try {
      fn();
    } catch (const std::exception&) {
      problem_ = std::current_exception();
    }
  }

  // What this rank has from now on.
  void have(Tensor tensor) {
    outcome_.tensor = std::move(tensor);
    now_ = &outcome_.tensor;
  }

  // Nothing moves, but that all ranks have the same plan and their parts is found out here too.
  void agree() {
    attempt([&] {
      if (role_.highest_rank >= comm_.size()) {
        throw ShapeError(fmt::format("the mesh has rank {}, the communicator only {} ranks. Give a mesh of its ranks.",
                                     role_.highest_rank, comm_.size()));
      }
      check_part(plan_.from(), role_.from);
    });
    const Description same{.op = OpCode::redistribute, .note = &plan_.text(), .dtype = plan_.dtype()};
    Outcome nothing;
    say({.op = same.op, .x = &same.x, .whole = &same}, nothing);
    outcome_.flags = std::move(nothing.flags);
  }

  void say(detail::Asked asked, Outcome& outcome) {
    std::optional<Description> whole;
    if (flags_ != 0 || problem_ != nullptr) {
      whole = *asked.whole;
      whole->flags = flags_;
      whole->problem = problem_;
      asked.whole = &*whole;
    }
    detail::execute_now(comm_, asked, outcome, site_);
  }

  void check_out() const {
    if (!role_.to) return;
    if (out_.dtype() != plan_.dtype()) {
      throw DTypeError(fmt::format("out is {}, the result {}", out_.dtype(), plan_.dtype()));
    }
    if (!(out_.shape() == role_.to->extent)) {
      throw ShapeError(fmt::format("out is {}, the result {}", out_.shape(), role_.to->extent));
    }
    if (out_.read_only() || may_overlap_itself(out_)) {
      throw ShapeError("out cannot be written to: it is constant, or has several elements in one place");
    }
  }

  // The halves of an all_reduce: each rank's sums are written where they stay in the result, and not copied there. Of the
  // first step only, whose input is the caller's: else that, the input and the result together were more than was priced.
  void reduce_in_place(const Stage& sum, const Stage& gather) {
    const bool into_out = gather.last && out_.defined();
    // What is scaled on its way is written to while peers read it.
    const bool pending = gather.exchange->to().pending().has_value();
    if (!gather.after || pending || plan_.scale() != 1 || (into_out && may_overlap(out_, *now_))) return;
    whole_ = into_out ? out_ : comm_.transport().allocate(plan_.dtype(), gather.after->extent);
    sums_ = whole_.box(sum.after->relative_to(gather.after->offset));
  }

  void move(const Stage& stage) {
    scaled_ = stage.scales;
    // Of several terms, peers read what this rank would write over.
    placed_ =
        stage.last && !stage.embeds && !(out_.defined() && stage.exchange->terms() > 1 && may_overlap(out_, *now_));
    if (stage.embeds) {
      attempt([&] {
        whole_ = comm_.transport().allocate(plan_.dtype(), stage.after->extent);  // not the caller's, which may be x
        fill_identity(whole_, *stage.exchange->to().pending());
      });
    }
    Tensor* const own = sums_.defined() ? &sums_ : whole_.defined() ? &whole_ : nullptr;
    const Tensor* const callers = placed_ && out_.defined() && stage.after ? &out_ : nullptr;
    std::optional<Tensor> before;  // what the last step left: the outcome takes its place
    if (now_ != &x_) before = std::move(outcome_.tensor);
    say({.op = OpCode::redistribute,
         .x = before ? &*before : &x_,
         .out = own != nullptr ? own : callers,
         .scale = scaled_ ? plan_.scale() : 1,
         .whole = &stage.said},
        outcome_);
    if (own != nullptr) *own = {};
    now_ = &outcome_.tensor;
  }

  // Of this rank, which must be what it has now.
  void check_part(const Layout& layout, const std::optional<Box>& part) {
    if (!part) return have({});
    if (!now_->defined()) {
      throw ShapeError(fmt::format("x is undefined, but this rank's part of {} is {}", layout, part->extent));
    }
    if (!(now_->shape() == part->extent)) {
      throw ShapeError(fmt::format("x is {}, but this rank's part of {} is {} (of {})", now_->shape(), layout,
                                   part->extent, plan_.shape()));
    }
    if (now_->dtype() != plan_.dtype()) {
      throw DTypeError(fmt::format("x is {}, the plan is for {}", now_->dtype(), plan_.dtype()));
    }
  }

  // A step in which nothing leaves its rank: a view of what it has, or that among the identity.
  void stay(const Stage& stage) {
    check_part(stage.step.before, stage.before);
    if (!stage.after) return have({});
    if (stage.step.kind == StepKind::slice) {
      have(now_->box(stage.after->relative_to(stage.before->offset)));
      // A view keeps all of what it is a view of, which a limit counts on being given back.
      if (plan_.options().max_bytes != PlanOptions{}.max_bytes && !stage.first) have(now_->clone());
      return;
    }
    placed_ = stage.last && out_.defined() && !may_overlap(out_, *now_);
    const Tensor result = placed_ ? out_ : comm_.transport().allocate(plan_.dtype(), stage.after->extent);
    if (stage.embeds) fill_identity(result, *stage.step.after.pending());
    for (const Overlap& own : stage.stays) {
      result.box(own.box.relative_to(stage.after->offset))
          .copy_from(now_->box(own.box.relative_to(stage.before->offset)));
    }
    have(result);
  }

  // Into the caller's memory, and scaled, where no move did it.
  void finish() {
    if (problem_ != nullptr || !now_->defined()) return;
    const bool scaling = plan_.scale() != 1 && !scaled_, placing = out_.defined() && !placed_;
    if (!scaling && !placing) return;
    const Tensor target = out_.defined() ? out_ : comm_.transport().allocate(now_->dtype(), now_->shape());
    const bool same = target.data() == now_->data() && target.strides() == now_->strides();
    const Tensor source = !same && may_overlap(target, *now_) ? now_->clone() : *now_;
    const ConstView term = view_of(source);
    if (scaling) reduce_boxes(view_of(target), {&term, 1}, {ReduceOp::premul_sum, plan_.scale()});
    else if (!same) target.copy_from(source);
    have(target);
  }

  CommState& comm_;
  const Plan& plan_;
  const detail::Role& role_;
  const Tensor& x_;
  const Tensor& out_;
  const Site& site_;
  int64_t flags_ = 0;
  const Tensor* now_;  // what this rank has: x, or what the last step has left
  Outcome& outcome_;
  Tensor whole_, sums_;  // where the next moves write, if that is settled: first to the sums, then to the whole
  bool scaled_ = false, placed_ = false;  // by the last step
  std::exception_ptr problem_;
};

}  // namespace

Tensor redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out, const Site& site) {
  CommState& state = comm.state();
  Outcome outcome;
  state.call([&] { Execution(state, plan, x, out, site, outcome).run(); });
  return std::move(outcome.tensor);
}

Tensor detail::redistribute(Comm& comm, const Tensor& x, const Plan& plan, RedistributeCall& call, const Site& site) {
  CommState& state = comm.state();
  Outcome outcome;
  state.call([&] { Execution(state, plan, x, {}, site, outcome, &call).run(); });
  call.flags_of_all = std::move(outcome.flags);
  return std::move(outcome.tensor);
}

WorkOf<Tensor> start_redistribute(Comm& comm, const Tensor& x, const Plan& plan, const Tensor& out, const Site& site) {
  CommState& state = comm.state();
  state.check_open();
  auto outcome = std::make_shared<Outcome>();
  auto task =
      state.submit([&state, outcome, x, plan, out, site] { Execution(state, plan, x, out, site, *outcome).run(); });
  return {std::move(task), [outcome] { return std::move(outcome->tensor); }};
}

namespace {

// What a rank has: its dtype and its extents.
struct Part {
  bool defined = false;
  DType dtype = DType::f32;
  Dims shape;
};

std::vector<Part> parts_of_all(Comm& comm, const Tensor& x, const std::string& note, std::exception_ptr problem,
                               const Site& site) {
  const Tensor mine = Tensor::empty(DType::i64, {x.defined() ? x.ndim() + 1 : 0});
  if (x.defined()) {
    mine.at<int64_t>(0) = static_cast<int64_t>(x.dtype());
    for (int64_t d = 0; d < x.ndim(); ++d) mine.at<int64_t>(d + 1) = x.shape(d);
  }
  Description description = AllGather::describe({.x = mine});
  description.note = &note;
  description.problem = std::move(problem);
  Outcome outcome;
  detail::execute(comm, {&description, 1}, {&outcome, 1}, site);
  const auto values = outcome.tensor.span<int64_t>();
  std::vector<Part> parts;
  size_t at = 0;
  for (const int64_t size : outcome.sizes) {
    Part& part = parts.emplace_back();
    if (size == 0) continue;
    part.defined = true;
    part.dtype = static_cast<DType>(values[at]);
    part.shape = Dims(values.subspan(at + 1, static_cast<size_t>(size) - 1));
    at += static_cast<size_t>(size);
  }
  return parts;
}

// The tensor of which these are parts, by the layout: a dimension that is cut is as long as its pieces together.
class Whole {
 public:
  Whole(const Layout& from, const std::vector<Part>& parts) : from_(from), parts_(parts) {
    Dims origin = Dims::filled(from.mesh().ndim(), 0);
    for (const size_t axis : from.axes(Placement::Kind::at)) origin[axis] = from.placements()[axis].index;
    whole_ = part_at(origin);
    const size_t ndim = whole_.shape.size();
    for (size_t d = 0; d < ndim; ++d) {
      std::vector<size_t> axes;
      for (const Layout::Cut& cut : from.cuts()) {
        if (normalize_dim(cut.dim, ndim, "the dimension of a Shard") != static_cast<int64_t>(d)) continue;
        axes.insert(axes.end(), cut.axes.begin(), cut.axes.end());
      }
      if (!axes.empty()) whole_.shape[d] = sum_of_pieces(origin, axes, d, ndim);
    }
  }
  const Part& part() const { return whole_; }

 private:
  const Part& part_at(const Dims& coordinate) const {
    const int rank = from_.mesh().rank_at(coordinate);
    if (rank >= static_cast<int>(parts_.size())) {
      throw ShapeError(
          fmt::format("redistribute: the mesh has rank {}, the communicator only {} ranks", rank, parts_.size()));
    }
    const Part& part = parts_[static_cast<size_t>(rank)];
    if (!part.defined) {
      throw ShapeError(
          fmt::format("redistribute: rank {} gave no x, but has a part of {} on {}", rank, from_, from_.mesh()));
    }
    return part;
  }

  int64_t sum_of_pieces(Dims coordinate, const std::vector<size_t>& axes, size_t d, size_t ndim) const {
    int64_t pieces = 1, sum = 0;
    for (const size_t axis : axes) pieces *= from_.mesh().size(axis);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      int64_t rest = piece;
      for (const size_t axis : axes) {
        coordinate[axis] = rest % from_.mesh().size(axis);
        rest /= from_.mesh().size(axis);
      }
      const Dims& shape = part_at(coordinate).shape;
      if (shape.size() != ndim) {
        throw ShapeError(fmt::format("redistribute: rank {} has {}, a part of a tensor of {} dimensions has as many",
                                     from_.mesh().rank_at(coordinate), shape, ndim));
      }
      sum += shape[d];
    }
    return sum;
  }

  const Layout& from_;
  const std::vector<Part>& parts_;
  Part whole_;
};

}  // namespace

Plan detail::plan_between(Comm& comm, const Tensor& x, const Layout& from, const Layout& to, std::exception_ptr problem,
                          const Site& site) {
  const std::string note = fmt::format("{} on {} to {} on {}", from, from.mesh(), to, to.mesh());
  const std::vector<Part> parts = parts_of_all(comm, x, note, std::move(problem), site);
  const Whole whole(from, parts);
  const Topology topology = Topology::dtensor(from.mesh(), to.mesh(), 8);
  return plan(from, to, whole.part().shape, whole.part().dtype, topology);
}

Tensor redistribute(Comm& comm, const Tensor& x, const Layout& from, const Layout& to, const Site& site) {
  return redistribute(comm, x, detail::plan_between(comm, x, from, to, {}, site), {}, site);
}

}  // namespace tessera
