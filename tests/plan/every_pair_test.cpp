// redistribute(): every pair of layouts on meshes of one to three axes, run on ranks, against what the layouts mean.
#include <tessera/redistribute.hpp>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "plan/element_at.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

using Kind = Placement::Kind;

int64_t number_on(const Layout& layout, Kind kind, const Dims& coordinate) {
  int64_t number = 0;
  for (const size_t a : layout.axes(kind)) number = number * layout.mesh().size(a) + coordinate[a];
  return number;
}

// A rank's part. Terms of a pending sum differ, and so do replicas where `apart`: for gradients, which do.
Tensor part_of(const Layout& layout, const Dims& shape, int rank, double salt = 0) {
  const auto box = layout.box(shape, rank);
  if (!box) return {};
  const double term = static_cast<double>(1 + number_on(layout, Kind::partial, *layout.mesh().coordinate(rank)));
  return Tensor::generate(
      DType::f64, box->extent, [&](auto at) { return term * (element_at(at) + salt); }, box->offset);
}

double sum_of_terms(const Layout& layout) {
  int64_t n = 1;
  for (const size_t a : layout.axes(Kind::partial)) n *= layout.mesh().size(a);
  return static_cast<double>(n * (n + 1) / 2);
}

// What the parts of all ranks mean: for every place that differs on pending axes only, the terms add up to the value.
void expect_meaning(const Layout& layout, const Dims& shape, const std::vector<Tensor>& parts, double factor) {
  const Mesh& mesh = layout.mesh();
  const auto pending = layout.axes(Kind::partial);
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const Dims place = mesh.coordinate_of(i);
    const bool first = std::all_of(pending.begin(), pending.end(), [&](size_t a) { return place[a] == 0; });
    const auto box = layout.box(shape, place);
    const Tensor& part = parts[static_cast<size_t>(mesh.rank_at(place))];
    ASSERT_EQ(part.defined(), box.has_value());
    if (!box) continue;
    ASSERT_EQ(part.shape(), box->extent);
    if (!first) continue;
    Tensor total = Tensor::zeros(DType::f64, box->extent);
    for (int64_t j = 0; j < mesh.size(); ++j) {
      Dims other = mesh.coordinate_of(j), same = other;
      for (const size_t a : pending) same[a] = 0;
      if (!(same == place)) continue;
      const Tensor term = parts[static_cast<size_t>(mesh.rank_at(other))].clone();
      for (size_t k = 0; k < term.span<double>().size(); ++k) total.span<double>()[k] += term.span<double>()[k];
    }
    const Tensor expected = Tensor::generate(
        DType::f64, box->extent, [&](auto at) { return factor * element_at(at); }, box->offset);
    ASSERT_TRUE(total.equals(expected)) << fmt::format("at {}: {} instead of {}", place, total, expected);
  }
}

double dot(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return 0;
  const Tensor x = a.clone(), y = b.clone();
  double sum = 0;
  for (size_t i = 0; i < x.span<double>().size(); ++i) sum += x.span<double>()[i] * y.span<double>()[i];
  return sum;
}

// How often a rank's part counts: local, each; global, what is replicated once.
double weight(const Layout& layout, int rank, Convention convention) {
  const auto place = layout.mesh().coordinate(rank);
  if (!place) return 0;
  if (convention == Convention::local) return 1;
  return number_on(layout, Kind::replicate, *place) == 0 ? 1 : 0;
}

std::vector<Layout> layouts_on(const Mesh& mesh, size_t ndim) {
  std::vector<Placement> choices = {Replicate(), Partial(), At(0)};
  for (size_t d = 0; d < ndim; ++d) choices.push_back(Shard(static_cast<int64_t>(d)));
  size_t count = 1;
  for (size_t a = 0; a < mesh.ndim(); ++a) count *= choices.size();
  std::vector<Layout> list;
  for (size_t i = 0; i < count; ++i) {
    std::vector<Placement> placements;
    size_t rest = i, ats = 0;
    for (size_t a = 0; a < mesh.ndim(); ++a, rest /= choices.size()) {
      placements.push_back(choices[rest % choices.size()]);
      if (placements.back().kind == Kind::at) {
        placements.back().index = mesh.size(a) - 1;
        ++ats;
      }
    }
    if (ats < 2) list.emplace_back(mesh, placements);
  }
  return list;
}

void add_special(const Mesh& mesh, const Dims& shape, std::vector<Layout>& list) {
  Sizes ragged(static_cast<size_t>(mesh.size(0)), 0);
  ragged.back() = shape[0] - 1;
  ragged.front() += 1;
  std::vector<Placement> placements(mesh.ndim(), Replicate());
  placements[0] = Shard(0, ragged);
  list.emplace_back(mesh, placements);
  if (mesh.ndim() < 2) return;
  std::vector<std::string> names;
  for (size_t a = mesh.ndim(); a-- > 0;) names.push_back(mesh.axes()[a].name);
  list.emplace_back(mesh, std::vector<Placement>(mesh.ndim(), Shard(0)), names);  // the last axis cuts first
  Sizes flat(static_cast<size_t>(mesh.size()), 0);
  for (int64_t i = 0; i < shape[0]; ++i) ++flat[static_cast<size_t>((i * i) % mesh.size())];
  list.emplace_back(mesh, std::vector<Placement>(mesh.ndim(), Shard(0, flat)));
}

// Runs every pair, or every so many of them where that takes long.
void check_pairs(const Mesh& mesh, const Dims& shape, size_t stride) {
  std::vector<Layout> list = layouts_on(mesh, shape.size());
  add_special(mesh, shape, list);
  const Topology topology = Topology::dtensor(mesh);
  const auto n = static_cast<int>(mesh.size());
  std::vector<Tensor> parts(static_cast<size_t>(n));
  std::vector<double> forward(static_cast<size_t>(n)), backward(static_cast<size_t>(n));
  run(n,
      [&](Comm& comm) {
        const auto me = static_cast<size_t>(comm.rank());
        for (size_t i = 0; i < list.size() * list.size(); i += stride) {
          const Layout &from = list[i / list.size()], &to = list[i % list.size()];
          SCOPED_TRACE(fmt::format("{} to {} of {} on {}", from, to, shape, mesh));
          const Plan forth = plan(from, to, shape, DType::f64, topology);
          const Tensor x = part_of(from, shape, comm.rank());
          const Tensor moved = redistribute(comm, x, forth);
          parts[me] = moved;
          comm.barrier();
          if (me == i % static_cast<size_t>(n)) {
            ASSERT_NO_FATAL_FAILURE(expect_meaning(to, shape, parts, sum_of_terms(from))) << forth.explain();
          }
          for (const Convention convention : {Convention::local, Convention::global}) {
            const Layout dual = to.dual(convention);
            const Tensor y = part_of(dual, shape, comm.rank(), 5);
            const Plan back = forth.adjoint(convention);
            const Tensor z = redistribute(comm, y, back);
            forward[me] = weight(to, comm.rank(), convention) * dot(moved, y);
            backward[me] = weight(from, comm.rank(), convention) * dot(x, z);
            comm.barrier();
            if (me == 0) {
              double a = 0, b = 0;
              for (const double value : forward) a += value;
              for (const double value : backward) b += value;
              ASSERT_EQ(a, b) << (convention == Convention::local ? "local" : "global") << "\n" << back.explain();
            }
            comm.barrier();
          }
        }
      },
      {.timeout = std::chrono::seconds(120)});
}

TEST(Redistribute, EveryPairOnOneAxis) {
  for (const int64_t n : {1, 2, 3, 4, 7}) {
    check_pairs(Mesh({{"x", n}}), {5}, 1);
    check_pairs(Mesh({{"x", n}}), {3, 4}, 1);
    check_pairs(Mesh({{"x", n}}), {5, 2, 3}, 1);
  }
}

TEST(Redistribute, EveryPairOnTwoAxes) {
  const size_t stride = kSanitized ? 23 : 1;
  for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {3, 2}, {2, 3}, {1, 3}, {2, 4}}) {
    check_pairs(Mesh({{"dp", a}, {"tp", b}}), {7}, stride);
    check_pairs(Mesh({{"dp", a}, {"tp", b}}), {5, 3}, stride);
  }
}

TEST(Redistribute, ManyPairsOnThreeAxes) {
  const size_t stride = kSanitized ? 977 : 29;
  check_pairs(Mesh({{"pp", 2}, {"dp", 2}, {"tp", 2}}), {5, 3}, stride);
  check_pairs(Mesh({{"pp", 2}, {"dp", 1}, {"tp", 3}}), {7, 2, 3}, stride);
}

}  // namespace
}  // namespace tessera::testing_support
