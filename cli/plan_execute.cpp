#include "plan_execute.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <tessera/tessera.hpp>

#include "bench.hpp"
#include "layout_values.hpp"
#include "plan_runner.hpp"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTimedUs = 300e3;  // about so long for each step, and for the whole
constexpr int64_t kLeastRuns = 5, kMostRuns = 200;

// The largest of every rank's, element by element.
template <class T>
std::vector<T> most_of(Comm& comm, std::vector<T> values) {
  const Tensor mine = Tensor::view(std::span<T>(values), {static_cast<int64_t>(values.size())});
  const Tensor most = all_reduce(comm, mine, ReduceOp::max);
  const auto all = most.span<T>();
  return {all.begin(), all.end()};
}

double timed_us(Comm& comm, PlanRunner& runner) {
  comm.barrier();
  const auto start = Clock::now();
  runner.call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Warms up with every copy of the input; the fastest call tells how many runs there is time for.
std::vector<double> times_of(Comm& comm, PlanRunner& runner) {
  double fastest = timed_us(comm, runner);
  for (size_t i = 1; i < runner.sets(); ++i) fastest = std::min(fastest, timed_us(comm, runner));
  fastest = std::max(most_of<double>(comm, {fastest})[0], 1.0);
  const int64_t runs = std::clamp<int64_t>(std::llround(kTimedUs / fastest), kLeastRuns, kMostRuns);
  std::vector<double> times;
  for (int64_t i = 0; i < runs; ++i) times.push_back(timed_us(comm, runner));
  times = most_of(comm, std::move(times));
  std::sort(times.begin(), times.end());
  return times;
}

// What one call moves.
int64_t bytes_of(Comm& comm, const Plan& plan, const Tensor& x, Tensor& result) {
  const Stats before = comm.stats();
  result = redistribute(comm, x, plan);
  const Stats after = comm.stats();
  return most_of<int64_t>(
      comm, {std::max(after.bytes_received - before.bytes_received, after.bytes_sent - before.bytes_sent)})[0];
}

// Terms that are pending are reduced first, by a plan of its own: together they must give the value.
Tensor without_pending(Comm& comm, const Tensor& result, Layout& layout, const Plan& plan) {
  if (!layout.pending()) return result;
  auto placements = layout.placements();
  std::vector<std::string> order;
  for (const Layout::Cut& cut : layout.cuts()) {
    for (const size_t axis : cut.axes) order.push_back(layout.mesh().axes()[axis].name);
  }
  for (Placement& p : placements) p = p.kind == Placement::Kind::partial ? Replicate() : p;
  const Layout terms = layout;
  layout = Layout(layout.mesh(), placements, order).resolved(plan.shape());
  const Topology topology = Topology::dtensor(layout.mesh());
  return redistribute(comm, result, tessera::plan(terms, layout, plan.shape(), plan.dtype(), topology));
}

// The text of the first rank that has one; on every rank. `text` is short.
std::string first_text(Comm& comm, const std::string& text) {
  std::vector<uint8_t> mine(text.begin(), text.end());
  const Tensor bytes = Tensor::view(std::span<uint8_t>(mine), {static_cast<int64_t>(mine.size())});
  const auto [all, sizes] = all_gather(comm, bytes, 0);
  int64_t length = 0;
  for (const int64_t size : sizes) length = length == 0 ? size : length;
  const auto letters = all.span<uint8_t>();
  return {letters.begin(), letters.begin() + length};
}

void check(Comm& comm, const Plan& plan, const Tensor& result, Executed& executed) {
  Layout layout = plan.to();
  const Tensor part = without_pending(comm, result, layout, plan);
  const auto wrong = first_wrong(part, layout, plan.shape(), plan.dtype(), comm.rank());
  executed.wrong = first_text(comm, wrong ? fmt::format("rank {}: {}", comm.rank(), *wrong) : "");
  std::vector<int64_t> counts = {part.defined() ? part.elements() : 0, part.defined() ? 1 : 0};
  const Tensor mine = Tensor::view(std::span<int64_t>(counts), {2});
  const Tensor sums = all_reduce(comm, mine);
  executed.elements = sums.at<int64_t>(0);
  executed.holders = static_cast<int>(sums.at<int64_t>(1));
}

std::string title_of(const Step& step) {
  std::string axes;
  for (const size_t a : step.axes) axes += (axes.empty() ? "" : ",") + step.before.mesh().axes()[a].name;
  return fmt::format("{}{}", name(step.kind), axes.empty() ? "" : "(" + axes + ")");
}

std::string line_of(const std::string& title, double predicted_us, int64_t planned, const Executed::Figures& figures) {
  return fmt::format("  {:<24} {:>12.2f} us {:>12.2f} us   {:>9} {:>11}\n", title, predicted_us, figures.us,
                     size_text(planned), size_text(figures.bytes));
}

}  // namespace

int ranks_of(const Plan& plan) {
  int most = 0;
  for (const Layout* layout : {&plan.from(), &plan.to()}) {
    for (const int rank : layout->mesh().ranks()) most = std::max(most, rank + 1);
  }
  return most;
}

Executed execute(Comm& comm, const Plan& plan) {
  Executed executed;
  executed.ranks = comm.size();
  const Tensor x = part_of(plan.from(), plan.shape(), plan.dtype(), comm.rank());
  check(comm, plan, redistribute(comm, x, plan), executed);
  if (!executed.wrong.empty()) return executed;
  {
    PlanRunner runner(comm, plan, x);
    const auto times = times_of(comm, runner);
    executed.whole.us = times[times.size() / 2];
    executed.runs = static_cast<int64_t>(times.size());
  }
  Tensor now = x;
  for (const Step& step : plan.steps()) {
    const Plan one(step.before, step.after, plan.shape(), plan.dtype(), {step}, plan.topology(), plan.options());
    Executed::Figures& figures = executed.steps.emplace_back();
    Tensor next;
    figures.bytes = bytes_of(comm, one, now, next);
    executed.whole.bytes += figures.bytes;
    PlanRunner runner(comm, one, now);
    const auto times = times_of(comm, runner);
    figures.us = times[times.size() / 2];
    now = next;
  }
  return executed;
}

std::string to_text(const Executed& executed, const Plan& plan) {
  if (!executed.wrong.empty()) return fmt::format("\nrun on {} ranks: WRONG: {}\n", executed.ranks, executed.wrong);
  std::string text = fmt::format("\nrun on {} ranks; the median of {} runs after a warm-up, the slowest rank of each\n",
                                 executed.ranks, executed.runs);
  text += fmt::format("  {:<24} {:>15} {:>15}   {:>9} {:>11}\n", "", "predicted", "measured", "to move", "moved");
  for (size_t i = 0; i < plan.steps().size(); ++i) {
    const Step& step = plan.steps()[i];
    text += line_of(fmt::format("{} {}", i + 1, title_of(step)), step.cost_us, step.bytes, executed.steps[i]);
  }
  text += line_of("total", plan.cost_us(), plan.bytes_moved(), executed.whole);
  return text + fmt::format("checked {} elements on {} {}: all right\n", executed.elements, executed.holders,
                            executed.holders == 1 ? "rank" : "ranks");
}

nlohmann::json to_json(const Executed& executed) {
  nlohmann::json steps = nlohmann::json::array();
  for (const Executed::Figures& figures : executed.steps) {
    steps.push_back({{"measured_us", figures.us}, {"bytes", figures.bytes}});
  }
  return {{"ranks", executed.ranks},          {"runs", executed.runs},         {"steps", std::move(steps)},
          {"measured_us", executed.whole.us}, {"bytes", executed.whole.bytes}, {"elements", executed.elements},
          {"holders", executed.holders},      {"wrong", executed.wrong}};
}

}  // namespace tessera::cli
