#include <tessera/plan.hpp>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <tessera/error.hpp>

#include "collective/moves.hpp"
#include "layout/text.hpp"
#include "plan/role.hpp"
#include "plan/search.hpp"
#include "plan/step_kind.hpp"

namespace tessera {
namespace {

int64_t dim_of(const Placement& p) { return p.kind == Placement::Kind::shard ? p.dim : -1; }

// The fields that follow from the layouts.
void complete(Step& step) {
  const bool one_mesh = step.before.mesh() == step.after.mesh();
  if (step.axes.empty() && one_mesh) {
    for (size_t a = 0; a < step.before.mesh().ndim(); ++a) {
      if (!(step.before.placements()[a] == step.after.placements()[a])) step.axes.push_back(a);
    }
  }
  step.from_dims.clear();
  step.to_dims.clear();
  for (const size_t a : step.axes) {
    step.from_dims.push_back(dim_of(step.before.placements()[a]));
    step.to_dims.push_back(dim_of(step.after.placements()[a]));
  }
}

// Where both describe the same boxes in other words, one step that moves nothing says so.
std::vector<Step> with_ends(std::vector<Step> steps, const Layout& from, const Layout& to) {
  if (steps.empty() && !(from == to)) steps.emplace_back();
  if (steps.empty()) return steps;
  steps.front().before = from;
  steps.back().after = to;
  for (Step& step : steps) complete(step);
  return steps;
}

// What a plan depends on: all of it, or as it was asked.
struct Question {
  Layout from, to;
  Dims shape;
  DType dtype;
  Topology topology;
  PlanOptions options;
};
struct Asked {
  const Layout &from, &to;
  const Dims& shape;
  DType dtype;
  const Topology& topology;
  const PlanOptions& options;
};

struct HashOfQuestion {
  using is_transparent = void;
  size_t operator()(const auto& q) const {
    size_t seed = hash_of(q.from);
    mix(seed, hash_of(q.to));
    for (const int64_t extent : q.shape) mix(seed, static_cast<size_t>(extent));
    mix(seed, static_cast<size_t>(q.dtype));
    mix(seed, hash_of(q.topology));
    mix(seed, static_cast<size_t>(q.options.max_bytes) ^ static_cast<size_t>(q.options.any_order));
    return seed;
  }
};
struct SameQuestion {
  using is_transparent = void;
  bool operator()(const auto& a, const auto& b) const {
    return a.from == b.from && a.to == b.to && a.shape == b.shape && a.dtype == b.dtype && a.topology == b.topology &&
           a.options == b.options;
  }
};

// Bounded: a program that plans for ever new shapes must not grow for ever.
class Cache {
 public:
  std::optional<Plan> find(const Asked& question) {
    const std::lock_guard lock(mutex_);
    const auto found = plans_.find(question);
    if (found == plans_.end()) return {};
    return found->second;
  }
  void add(const Question& question, const Plan& plan) {
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMost) plans_.clear();
    plans_.emplace(question, plan);
  }

 private:
  static constexpr size_t kMost = 4096;
  std::mutex mutex_;
  std::unordered_map<Question, Plan, HashOfQuestion, SameQuestion> plans_;
};

Cache& cache() {
  static Cache plans;
  return plans;
}

// By dimension, the longest piece.
std::vector<int64_t> longest_pieces(const Layout& layout, const Dims& shape) {
  std::vector<int64_t> lengths(shape.begin(), shape.end());
  for (const Layout::Cut& cut : layout.cuts()) {
    int64_t& length = lengths[static_cast<size_t>(cut.dim)];
    if (!cut.sizes.empty()) length = *std::max_element(cut.sizes.begin(), cut.sizes.end());
    for (size_t i = 0; i < cut.axes.size() && cut.sizes.empty(); ++i) {
      const int64_t n = layout.mesh().size(cut.axes[i]);
      length = length / n + (length % n != 0);
    }
  }
  return lengths;
}

// In elements. As no axis cuts two dimensions, some rank has the longest piece of each.
int64_t largest_part(const Layout& layout, const Dims& shape) { return volume(longest_pieces(layout, shape)); }

void check_bytes(const Dims& shape, DType dtype) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(volume(shape), size_bytes(dtype), &bytes)) {
    throw ShapeError(fmt::format("a tensor of {} {} has more than 2^63 - 1 bytes", dtype, shape));
  }
}

}  // namespace

struct Plan::State {
  Layout from, to;
  Dims shape;
  DType dtype;
  std::vector<Step> steps;
  Topology topology;
  PlanOptions options;
  double scale;
  int64_t input_bytes;

  std::once_flag once = {}, text_once = {};  // of the stages and the text, which only those need that run it
  std::string text = {};
  std::vector<std::vector<Stage>> stages = {};
  detail::Roles roles = {};

  State(Layout f, Layout t, const Dims& s, DType d, std::vector<Step> list, Topology top, const PlanOptions& o,
        double by)
      : from(std::move(f)),
        to(std::move(t)),
        shape(s),
        dtype(d),
        steps(std::move(list)),
        topology(std::move(top)),
        options(o),
        scale(by),
        input_bytes(largest_part(from, s) * size_bytes(d)) {}
};

namespace {

// Where the sums of an all_reduce stand between its two halves; none: it has but one.
std::optional<Layout> halfway(const Step& step, const Dims& shape, DType dtype) {
  if (step.kind != StepKind::all_reduce || step.axes.empty()) return {};
  const Layout& before = step.before;
  if (largest_part(before, shape) * size_bytes(dtype) <= kOneRoundBytes) return {};
  int64_t ranks = 1;
  for (const size_t axis : step.axes) ranks *= before.mesh().size(axis);
  // Axes of one rank cut nothing. Of a ragged cut there is no cutting on.
  auto placements = before.placements();
  std::vector<int64_t> lengths = longest_pieces(before, shape);
  std::vector<std::string> order;  // as it is, and then those of the sum
  for (const Layout::Cut& cut : before.cuts()) {
    for (const size_t axis : cut.axes) {
      if (before.mesh().size(axis) == 1) placements[axis] = Replicate();
      else order.push_back(before.mesh().axes()[axis].name);
      if (before.mesh().size(axis) > 1 && !cut.sizes.empty()) lengths[static_cast<size_t>(cut.dim)] = 0;
    }
  }
  const auto dim = halfway_dim(lengths, ranks);
  if (!dim) return {};
  for (const size_t axis : step.axes) {
    placements[axis] = Shard(static_cast<int64_t>(*dim));
    order.push_back(before.mesh().axes()[axis].name);
  }
  return Layout(before.mesh(), std::move(placements), order).resolved(shape);
}

// The layouts between which the boxes of a step go.
std::vector<Layout> halts_of(const Step& step, const Dims& shape, DType dtype) {
  if (const auto middle = halfway(step, shape, dtype)) return {step.before, *middle, step.after};
  return {step.before, step.after};
}

}  // namespace

Plan::Plan(Layout from, Layout to, const Dims& shape, DType dtype, std::vector<Step> steps, const Topology& topology,
           const PlanOptions& options, double scale) {
  from = from.resolved(shape);
  to = to.resolved(shape);
  check_bytes(shape, dtype);
  const Layout* here = &from;
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    if (!(step.before == *here)) {
      throw ShapeError(fmt::format("a plan's step {} begins at {}, but {} is where it is then", name(step.kind),
                                   step.before, *here));
    }
    complete(step);
    check_kind(step, shape, i);
    here = &step.after;
  }
  if (!(*here == to)) throw ShapeError(fmt::format("a plan's steps lead to {}, and not to {}", *here, to));
  state_ =
      std::make_shared<State>(std::move(from), std::move(to), shape, dtype, std::move(steps), topology, options, scale);
}

const Layout& Plan::from() const { return state_->from; }
const Layout& Plan::to() const { return state_->to; }
const Dims& Plan::shape() const { return state_->shape; }
DType Plan::dtype() const { return state_->dtype; }
const Topology& Plan::topology() const { return state_->topology; }
const PlanOptions& Plan::options() const { return state_->options; }
const std::vector<Step>& Plan::steps() const { return state_->steps; }
double Plan::scale() const { return state_->scale; }

const std::string& Plan::text() const {
  std::call_once(state_->text_once, [this] {
    const std::string mesh = from().mesh() == to().mesh() ? "" : fmt::format(" on {}", from().mesh());
    state_->text = fmt::format("{} {}{} to {} on {} of {}", dtype(), from(), mesh, to(), to().mesh(), shape());
  });
  return state_->text;
}

const std::vector<Plan::Stage>& Plan::stages(size_t step) const {
  std::call_once(state_->once, [this] {
    const bool one_mesh = from().mesh() == to().mesh();
    std::vector<std::vector<Stage>> all;
    const auto text_of = [&](const Layout& layout) {
      return one_mesh ? to_string(layout) : fmt::format("{} on {}", layout, layout.mesh());
    };
    for (const Step& s : steps()) {
      auto& list = all.emplace_back();
      const auto halts = halts_of(s, shape(), dtype());
      for (size_t i = 0; i + 1 < halts.size(); ++i) {
        list.push_back({std::make_shared<const Exchange>(halts[i], halts[i + 1], shape()),
                        fmt::format("{}, step {} of {}: {} {} to {}", text(), all.size(), steps().size(), name(s.kind),
                                    text_of(halts[i]), text_of(halts[i + 1]))});
      }
    }
    state_->stages = std::move(all);
  });
  return state_->stages[step];
}

const detail::Role& Plan::role(int rank) const { return state_->roles.of(*this, rank); }

double Plan::cost_us() const {
  double us = 0;
  for (const Step& step : steps()) us += step.cost_us;
  return us;
}

int64_t Plan::peak_bytes() const {
  // What is scaled at the end is written anew.
  int64_t most = state_->input_bytes;
  if (scale() != 1 && steps().empty()) most *= 2;
  for (const Step& step : steps()) most = std::max(most, step.peak_bytes);
  return most;
}

int64_t Plan::bytes_moved() const {
  int64_t bytes = 0;
  for (const Step& step : steps()) bytes += step.bytes;
  return bytes;
}

double detail::adjoint_scale(const Layout& from, const Layout& to) {
  const auto averaged = [](const Layout& layout) {
    double ranks = 1;
    for (size_t a = 0; a < layout.mesh().ndim(); ++a) {
      const Placement& p = layout.placements()[a];
      if (p.kind == Placement::Kind::partial && p.op == ReduceOp::avg)
        ranks *= static_cast<double>(layout.mesh().size(a));
    }
    return ranks;
  };
  return averaged(to) / averaged(from);
}

Plan Plan::adjoint(Convention convention) const {
  const Layout back = to().dual(convention), home = from().dual(convention);
  Topology topology = this->topology();
  if (!(from().mesh() == to().mesh()) && !topology.target_axes.empty()) std::swap(topology.axes, topology.target_axes);
  const Plan forward = plan(back, home, shape(), dtype(), topology, options());
  return Plan(std::make_shared<State>(forward.from(), forward.to(), shape(), dtype(), forward.steps(), topology,
                                      options(), scale() * detail::adjoint_scale(from(), to())));
}

Plan plan_uncached(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
                   const PlanOptions& options) {
  const Layout source = from.resolved(shape), target = to.resolved(shape);
  check_bytes(shape, dtype);
  topology.check();
  if (const auto op = source.pending()) check_reducible(*op, dtype);
  if (const auto op = target.pending()) check_reducible(*op, dtype);
  Search search(source, target, shape, dtype, topology, options);
  auto steps = search.cheapest();
  if (!steps) {
    throw Error(
        fmt::format("no plan from {} to {} of {} {} keeps within max_bytes = {}: the least that would do is {:.0f} "
                    "bytes on a rank",
                    source, target, dtype, shape, options.max_bytes, search.least_bytes()));
  }
  return Plan(std::make_shared<Plan::State>(source, target, shape, dtype, with_ends(std::move(*steps), source, target),
                                            topology, options, 1));
}

Plan plan(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
          const PlanOptions& options) {
  if (auto known = cache().find({from, to, shape, dtype, topology, options})) return *known;
  Plan fresh = plan_uncached(from, to, shape, dtype, topology, options);
  cache().add({from, to, shape, dtype, topology, options}, fresh);
  return fresh;
}

}  // namespace tessera
