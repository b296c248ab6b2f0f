// `tessera plan`: what it is asked, and how it answers.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>
#include <tessera/plan.hpp>

namespace tessera::cli {

// A plan beside PyTorch's default route, priced in the same topology.
struct PlanReport {
  Plan plan;
  std::optional<DTensorRoute> dtensor;  // none: DTensor has none
  double seed_us = 0;                   // what DTensor's redistribute_cost said; infinite or not a number: nothing
};
PlanReport make_report(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
                       const PlanOptions& options, int64_t devices_per_host);

std::string to_text(const PlanReport& report);
nlohmann::json to_json(const PlanReport& report);

// "4096x4096"; "scalar" has no dimension. Throws ShapeError.
Dims parse_shape(const std::string& text);

// Answers each line, a JSON object, with a JSON line. Returns how many could not be answered otherwise than by an error.
int answer_batch(std::istream& lines, std::ostream& answers);

}  // namespace tessera::cli
