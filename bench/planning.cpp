// Planning: cold, from the cache, and one rank's part of a direct exchange on a huge mesh. No ranks take part.
#include <algorithm>
#include <chrono>
#include <limits>

#include <benchmark/benchmark.h>
#include <tessera/overlap.hpp>
#include <tessera/plan.hpp>

namespace {

using namespace tessera;

struct Case {
  const char *mesh, *from, *to;
};
// One axis, two and three; the last of each has a direct exchange among the candidates that must be priced.
constexpr Case kCases[] = {
    {"x=8", "S0", "S1"},
    {"x=8", "P", "R"},
    {"x=64", "S0", "S1"},
    {"a=2,b=4", "S0,R", "R,S1"},
    {"a=8,b=8", "P,S0", "S1,R"},
    {"a=8,b=8", "S0,S1", "S1,S0"},
    {"a=8,b=8", "S0,S0", "S0@b,a"},
    {"a=2,b=2,c=2", "S0,P,S2", "S2,S1,S1"},
    {"a=4,b=4,c=4", "S0,S1,S2", "R,R,R"},
    {"a=4,b=4,c=4", "P,P,S1", "S0,R,R"},
    {"a=4,b=4,c=4", "S0,S1,S2", "S2,S0,S1"},
    {"a=4,b=4,c=4", "S0,S0,P", "S1@c,b,a"},
};
// Extents that divide, extents that do not, and a small tensor.
const Dims kShapes[] = {{1024, 1024, 64}, {1023, 1021, 61}, {64, 32, 128}};

void cold(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  const Dims& shape = kShapes[state.range(1)];
  const Mesh mesh = Mesh::parse(c.mesh);
  const Layout from = Layout::parse(mesh, c.from), to = Layout::parse(mesh, c.to);
  const Topology topology = Topology::dtensor(mesh);
  for (auto _ : state) benchmark::DoNotOptimize(plan_uncached(from, to, shape, DType::f32, topology).cost_us());
  state.SetLabel(fmt::format("{}: {} to {}, {}", c.mesh, c.from, c.to, shape));
}
BENCHMARK(cold)
    ->ArgsProduct({benchmark::CreateDenseRange(0, std::size(kCases) - 1, 1), {0, 1, 2}})
    ->Unit(benchmark::kMicrosecond);

// A cut into pieces that grow from the first to the last.
Placement ragged(int64_t dim, int64_t extent, int64_t pieces) {
  const auto offset = [&](int64_t i) { return extent * i * (i + 1) / (pieces * (pieces + 1)); };
  Sizes sizes;
  for (int64_t i = 0; i < pieces; ++i) sizes.push_back(offset(i + 1) - offset(i));
  return Shard(dim, sizes);
}

std::vector<Layout> layouts_of(const Mesh& mesh, const Dims& shape) {
  std::vector<Layout> layouts;
  const auto add = [&](auto& self, std::vector<Placement> placements) -> void {
    const size_t axis = placements.size();
    if (axis == mesh.ndim()) {
      layouts.emplace_back(mesh, placements);
      return;
    }
    std::vector<Placement> choices = {Shard(0), Shard(1), Shard(2), Replicate(), Partial(), At(1)};
    const auto cuts_last = [](const Placement& p) { return p.kind == Placement::Kind::shard && p.dim == 2; };
    if (std::none_of(placements.begin(), placements.end(), cuts_last)) {
      choices.push_back(ragged(2, shape[2], mesh.size(axis)));
    }
    const bool has_ragged =
        std::any_of(placements.begin(), placements.end(), [](const auto& p) { return !p.sizes.empty(); });
    for (const Placement& p : choices) {
      if (has_ragged && cuts_last(p)) continue;  // a ragged cut by several axes is one list
      placements.push_back(p);
      self(self, placements);
      placements.pop_back();
    }
  };
  add(add, {});
  return layouts;
}

// Every pair of layouts of a mesh (of three axes every 31st), each the best of four, or of more where that is long: four
// calls in a row may all fall into what else runs on the machine. The slowest is the label.
void cold_pairs(benchmark::State& state) {
  constexpr const char* kMeshes[] = {"x=64", "a=8,b=8", "a=2,b=32", "a=32,b=2", "a=4,b=4,c=4", "a=2,b=4,c=8"};
  const Mesh mesh = Mesh::parse(kMeshes[state.range(0)]);
  const Dims& shape = kShapes[state.range(1)];
  const Topology topology = Topology::dtensor(mesh);
  const std::vector<Layout> layouts = layouts_of(mesh, shape);
  const double most_allowed = mesh.ndim() < 3 ? 100 : 2000;
  const size_t stride = mesh.ndim() < 3 ? 1 : 31;
  std::vector<double> times;
  double most = 0;
  for (auto _ : state) {
    for (size_t pair = 0; pair < layouts.size() * layouts.size(); pair += stride) {
      const Layout &from = layouts[pair / layouts.size()], &to = layouts[pair % layouts.size()];
      double best = std::numeric_limits<double>::infinity();
      for (int i = 0; i < (best > 0.6 * most_allowed ? 100 : 4); ++i) {
        const auto start = std::chrono::steady_clock::now();
        benchmark::DoNotOptimize(plan_uncached(from, to, shape, DType::f32, topology).cost_us());
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        best = std::min(best, took.count());
      }
      times.push_back(best);
      if (best > most) state.SetLabel(fmt::format("{} {}: {} to {}", mesh, shape, from, to));
      most = std::max(most, best);
    }
  }
  std::sort(times.begin(), times.end());
  state.counters["median_us"] = times[times.size() / 2];
  state.counters["p99_us"] = times[times.size() * 99 / 100];
  state.counters["most_us"] = most;
  state.counters["too_long"] =
      static_cast<double>(std::count_if(times.begin(), times.end(), [&](double us) { return us > most_allowed; }));
  state.counters["pairs"] = static_cast<double>(times.size());
}
BENCHMARK(cold_pairs)->ArgsProduct({{0, 1, 2, 3, 4, 5}, {0, 1, 2}})->Iterations(1)->Unit(benchmark::kMillisecond);

void cached(benchmark::State& state) {
  const Mesh mesh = Mesh::parse("a=4,b=4,c=4");
  const Layout from = Layout::parse(mesh, "S0,S1,S2"), to = Layout::parse(mesh, "S2,S0,S1");
  const Topology topology = Topology::dtensor(mesh);
  for (auto _ : state) benchmark::DoNotOptimize(plan(from, to, kShapes[0], DType::f32, topology).steps().data());
}
BENCHMARK(cached)->Unit(benchmark::kMicrosecond);

// One rank of 65,536; the largest has 256 neighbours.
void part_of_exchange(benchmark::State& state) {
  constexpr std::pair<const char*, const char*> kMoves[] = {
      {"S0,S1", "S1,S0"}, {"S0,S0", "S0@b,a"}, {"S0,R", "R,S1"}, {"S0,S1", "R,S0"}};
  const auto& [before, after] = kMoves[state.range(0)];
  const Mesh mesh = Mesh::parse("a=256,b=256");
  const Layout from = Layout::parse(mesh, before), to = Layout::parse(mesh, after);
  size_t neighbours = 0;
  for (auto _ : state) {
    const Exchange exchange(from, to, {1 << 20, 1 << 20});
    neighbours = exchange.receives(12345).size() + exchange.sends(12345).size();
    benchmark::DoNotOptimize(neighbours);
  }
  state.SetLabel(fmt::format("{} to {}: {} boxes", before, after, neighbours));
}
BENCHMARK(part_of_exchange)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

}  // namespace
