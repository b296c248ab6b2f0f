#include "redistribute.hpp"

#include <mutex>
#include <unordered_map>

#include <ATen/core/LegacyTypeDispatch.h>

#include "recorded.hpp"

namespace tessera {
namespace torch_front {
namespace {

using call::Name;

// "S0,R on dp=2,tp=4".
Layout parse_layout(Name text) {
  constexpr Name kOn = " on ";
  const size_t at = text.find(kOn);
  if (at == Name::npos) {
    throw ShapeError(fmt::format("\"{}\" is no layout: write it with its mesh, as \"S0,R on dp=2,tp=4\"", text));
  }
  return Layout::parse(Mesh::parse(text.substr(at + kOn.size())), text.substr(0, at));
}

std::string text_of(const Layout& layout) { return fmt::format("{} on {}", layout, layout.mesh()); }

Convention parse_convention(Name text) {
  if (text == "global") return Convention::global;
  if (text == "local") return Convention::local;
  throw ArgumentError(fmt::format("convention is \"{}\"; there are \"global\" and \"local\"", text));
}

// What follows from the texts of a call, by these texts. Bounded, as they may have sizes in them that are ever new.
template <class Value>
class ByText {
 public:
  template <class Make>
  Value of(std::string key, Make&& make) {
    {
      const std::lock_guard lock(guard_);
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
    }
    Value value = make();
    const std::lock_guard lock(guard_);
    if (values_.size() >= kMost) values_.clear();
    return values_.emplace(std::move(key), std::move(value)).first->second;
  }

 private:
  static constexpr size_t kMost = 4096;
  std::mutex guard_;
  std::unordered_map<std::string, Value> values_;
};

// No text has a line's end in it: JSON writes it as \n.
std::string key_of(Name source, Name target, Name plan) {
  std::string key;
  key.reserve(source.size() + target.size() + plan.size() + 128);
  return key.append(source).append("\n").append(target).append("\n").append(plan).append("\n");
}

Plan scaled(const Plan& plan, double scale) {
  if (scale == 1) return plan;
  return Plan(plan.from(), plan.to(), plan.shape(), plan.dtype(), plan.steps(), plan.topology(), plan.options(),
              plan.scale() * scale);
}

Plan make_plan(const Dims& shape, DType dtype, Name source, Name target, Name plan, double scale) {
  const Layout from = parse_layout(source), to = parse_layout(target);
  if (!plan.empty()) {
    Plan given = Plan::from_json(std::string(plan));
    // Who only works out shapes goes by the layouts, and must not be told otherwise by them.
    if (given.shape() == shape && given.from() == from.resolved(shape) && given.to() == to.resolved(shape))
      return scaled(given, scale);
    throw ShapeError(
        fmt::format("the plan is for {}, and not from {} to {} of {}", given.text(), source, target, shape));
  }
  const Topology topology = Topology::dtensor(from.mesh(), to.mesh(), 8);
  return scaled(tessera::plan(from, to, shape, dtype, topology), scale);
}

Plan plan_of(const Dims& shape, DType dtype, Name source, Name target, Name plan, double scale) {
  static ByText<Plan> plans;
  std::string key = key_of(source, target, plan);
  const auto append = [&](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(dtype), append(scale);
  for (const int64_t extent : shape) append(extent);
  return plans.of(std::move(key), [&] { return make_plan(shape, dtype, source, target, plan, scale); });
}

// The way of the gradient.
struct Back {
  std::string source, target, plan;
  double factor = 1;
};

Back make_back(Name source, Name target, Name plan, Convention convention) {
  const Layout from = parse_layout(source), to = parse_layout(target);
  Back back{text_of(to.dual(convention)), text_of(from.dual(convention)), "", 1};
  if (plan.empty()) back.factor = tessera::detail::adjoint_scale(from, to);
  else back.plan = Plan::from_json(std::string(plan)).adjoint(convention).to_json();
  return back;
}

Back back_of(Name source, Name target, Name plan, Name convention) {
  static ByText<Back> ways;
  return ways.of(key_of(source, target, plan).append(convention),
                 [&] { return make_back(source, target, plan, parse_convention(convention)); });
}

// As Layout::box(), of a shape that may be symbolic.
std::optional<std::vector<c10::SymInt>> part_of(const Layout& layout, c10::SymIntArrayRef shape, int rank) {
  const auto at = layout.mesh().coordinate(rank);
  if (!at || !layout.holds(*at)) return std::nullopt;
  std::vector<c10::SymInt> extents = shape.vec();
  for (const Layout::Cut& cut : layout.cuts()) {
    c10::SymInt& extent = extents[static_cast<size_t>(normalize_dim(cut.dim, extents.size()))];
    int64_t which = 0;
    for (const size_t axis : cut.axes) {
      const int64_t pieces = layout.mesh().axes()[axis].size, place = (*at)[axis];
      which = which * pieces + place;
      if (cut.sizes.empty()) extent = chunk_of(extent, pieces, place);
    }
    if (!cut.sizes.empty()) extent = cut.sizes[static_cast<size_t>(which)];
  }
  return extents;
}

}  // namespace

at::Tensor redistribute_on_meta(const at::Tensor& x, c10::SymIntArrayRef shape, Name, Name target, Name, double, Name,
                                Name comm) {
  static ByText<Layout> layouts;
  return guarded([&] {
    const Layout to = layouts.of(std::string(target), [&] { return parse_layout(target); });
    const auto part = part_of(to, shape, torch_comm(comm).rank());
    return part ? x.new_empty_symint(*part) : x.new_empty({0});
  });
}

at::Tensor redistribute_elements(const at::Tensor& x, c10::SymIntArrayRef shape, Name source, Name target, Name plan,
                                 double scale, Name convention, Name name) {
  return guarded([&] {
    Comm comm = torch_comm(name);
    Arguments in(comm, x);
    const Tensor mine = in.tensor(x);
    const auto way = in.plan([&] {
      parse_convention(convention);
      const at::IntArrayRef extents = C10_AS_INTARRAYREF_SLOW(shape);
      return plan_of(Dims(std::span<const int64_t>(extents.data(), extents.size())), mine.dtype(), source, target, plan,
                     scale);
    });
    const bool given = way && way->from().box(way->shape(), comm.rank());
    const at::Tensor result = in.result(in.redistribute(given ? mine : Tensor(), way));
    return result.defined() ? result : x.new_empty({0});
  });
}

at::Tensor redistribute_with_gradient(const at::Tensor& x, c10::SymIntArrayRef shape, Name source, Name target,
                                      Name plan, double scale, Name convention, Name comm) {
  return guarded([&] {
    const Recorded recorded("redistribute", x, true);
    at::Tensor result = [&] {
      at::AutoDispatchBelowADInplaceOrView guard;
      return call::redistribute(x, shape, source, target, plan, scale, convention, comm);
    }();
    if (!recorded.wanted()) return result;
    const Back back =
        recorded.way_back(torch_comm(comm).name(), [&] { return back_of(source, target, plan, convention); });
    return recorded.attach(result, [=, extents = shape.vec(), kind = std::string(convention),
                                    name = std::string(comm)](const at::Tensor& g) {
      return call::redistribute(g, extents, back.source, back.target, back.plan, scale * back.factor, kind, name);
    });
  });
}

}  // namespace torch_front

at::Tensor redistribute(Comm& comm, const at::Tensor& x, const Plan& plan, Convention convention, const Site& site) {
  if (x.defined() && x.is_meta()) {
    const std::string name = torch_name(comm);
    const std::vector<c10::SymInt> shape(plan.shape().begin(), plan.shape().end());
    return torch_front::call::redistribute(x, shape, torch_front::text_of(plan.from()), torch_front::text_of(plan.to()),
                                           plan.to_json(), 1, convention == Convention::global ? "global" : "local",
                                           name);
  }
  detail::set_next_site(site);
  const torch_front::Recorded recorded("redistribute", x, true);
  at::Tensor result = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    torch_front::Arguments in(comm, x);
    const Tensor mine = in.tensor(x);
    return in.result(in.redistribute(mine, plan));
  }();
  if (!recorded.wanted()) return result;
  // Of a rank that has no part of it: something with a history, by which it comes to the gradient's move.
  if (!result.defined()) result = x.defined() ? x.new_empty({0}) : to_torch(Tensor::empty(plan.dtype(), {0}));
  const Plan back = recorded.way_back(comm.name(), [&] { return plan.adjoint(convention); });
  return recorded.attach(result, [name = torch_name(comm), back, convention](const at::Tensor& g) {
    Comm again = torch_comm(name);
    return redistribute(again, g, back, convention, torch_front::context().site);
  });
}

at::Tensor redistribute(Comm& comm, const at::Tensor& x, const Layout& from, const Layout& to, Convention convention,
                        const Site& site) {
  torch_front::Arguments in(comm, x);
  const Tensor mine = in.shape(x);
  return redistribute(comm, x, in.plan_between(mine, from, to, site), convention, site);
}

}  // namespace tessera
