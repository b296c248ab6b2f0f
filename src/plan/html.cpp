// The page that shows a plan: what it is told.
#include <algorithm>

#include <nlohmann/json.hpp>
#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "plan/page.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr int64_t kMostShown = 64;
constexpr size_t kMostDims = 3;

// Ranks in rows of the last axis; those of another mesh to the right.
json places_of(const Plan& plan) {
  json list = json::array();
  std::vector<int> seen;
  int64_t first_column = 0;
  for (const Mesh* mesh : {&plan.from().mesh(), &plan.to().mesh()}) {
    // A single axis may be long: rows of eight.
    const int64_t columns = mesh->ndim() < 2 ? std::min<int64_t>(mesh->size(), 8) : mesh->size(mesh->ndim() - 1);
    for (const int rank : mesh->ranks()) {
      if (std::find(seen.begin(), seen.end(), rank) != seen.end()) continue;
      seen.push_back(rank);
      const int64_t index = mesh->index_of(*mesh->coordinate(rank));
      list.push_back({{"rank", rank}, {"row", index / columns}, {"column", first_column + index % columns}});
    }
    first_column += columns + 1;
  }
  if (static_cast<int64_t>(seen.size()) > kMostShown) {
    throw Error(fmt::format("a page shows at most {} ranks, these are {}: plan a smaller mesh, or print explain()",
                            kMostShown, seen.size()));
  }
  return list;
}

json stage_of(const Layout& layout, const Dims& shape) {
  json parts = json::object();
  const auto pending = layout.pending();
  for (const int rank : layout.mesh().ranks()) {
    const auto box = layout.box(shape, rank);
    if (!box) continue;
    json part = {{"offset", std::vector<int64_t>(box->offset.begin(), box->offset.end())},
                 {"extent", std::vector<int64_t>(box->extent.begin(), box->extent.end())}};
    if (pending) part["pending"] = fmt::format("P({})", name(*pending));
    parts[std::to_string(rank)] = std::move(part);
  }
  return {{"layout", to_string(layout)}, {"parts", std::move(parts)}};
}

json step_of(const Step& step, const Plan& plan) {
  json moves = json::array();
  const Exchange exchange(step.before, step.after, plan.shape());
  for (const int rank : step.after.mesh().ranks()) {
    for (const Overlap& o : exchange.receives(rank)) {
      if (o.rank != rank) moves.push_back({o.rank, rank, o.box.elements() * size_bytes(plan.dtype())});
    }
  }
  std::string axes;
  for (const size_t a : step.axes) axes += (axes.empty() ? "" : ",") + step.before.mesh().axes()[a].name;
  return {{"what", axes.empty() ? std::string(name(step.kind)) : fmt::format("{}({})", name(step.kind), axes)},
          {"layouts", fmt::format("{} → {}", step.before, step.after)},
          {"cost_us", step.cost_us},
          {"bytes", step.bytes},
          {"peak_bytes", step.peak_bytes},
          {"moves", std::move(moves)}};
}

std::string summary_of(const Plan& plan) {
  std::string text =
      fmt::format("{} step{}, {:.2f} µs", plan.steps().size(), plan.steps().size() == 1 ? "" : "s", plan.cost_us());
  const auto route = dtensor_route(plan.from(), plan.to(), plan.shape(), plan.dtype(), plan.topology());
  if (route) text += fmt::format("; PyTorch's default route in the same prices: {:.2f} µs", route->cost_us);
  return text;
}

}  // namespace

std::string Plan::to_html() const {
  const Plan& plan = *this;
  if (shape().size() > kMostDims) {
    throw Error(fmt::format("a page shows tensors of up to {} dimensions, this one has {}: print explain()", kMostDims,
                            shape().size()));
  }
  json data;
  data["ranks"] = places_of(plan);
  data["shape"] = std::vector<int64_t>(plan.shape().begin(), plan.shape().end());
  const std::string told = explain();
  data["head"] = told.substr(0, told.find('\n'));
  data["summary"] = summary_of(plan);
  data["stages"] = json::array({stage_of(plan.from(), plan.shape())});
  data["steps"] = json::array();
  for (const Step& step : plan.steps()) {
    data["stages"].push_back(stage_of(step.after, plan.shape()));
    data["steps"].push_back(step_of(step, plan));
  }
  std::string text = data.dump();
  for (size_t at = text.find("</"); at != std::string::npos; at = text.find("</", at + 3)) text.insert(at + 1, "\\");
  std::string page(kPlanPage);
  page.replace(page.find("DATA"), 4, text);
  return page;
}

}  // namespace tessera
