// What a plan says of itself.
#include <tessera/plan.hpp>

namespace tessera {
namespace {

std::string names_of(const Mesh& mesh, const std::vector<size_t>& axes) {
  std::string text;
  for (const size_t a : axes) text += (text.empty() ? "" : ",") + mesh.axes()[a].name;
  return text;
}

std::string text_of_bytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    value /= 1024;
    if (value < 1024) return fmt::format("{:.{}f} {}", value, value < 10 ? 1 : 0, unit);
  }
  return fmt::format("{:.1f} TiB", value / 1024);
}

}  // namespace

std::string_view name(StepKind kind) {
  constexpr std::string_view kNames[] = {"slice",          "embed",      "all_gather", "all_to_all",
                                         "reduce_scatter", "all_reduce", "broadcast",  "scatter",
                                         "gather",         "reduce",     "direct"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Plan::explain() const {
  const bool one_mesh = from().mesh() == to().mesh();
  std::string text = fmt::format("{} {} on {}: {} → {}{}\n", dtype(), shape(), from().mesh(), from(), to(),
                                 one_mesh ? "" : fmt::format(" on {}", to().mesh()));
  if (steps().empty()) return text + "  nothing to do\n";
  size_t number = 0;
  for (const Step& step : steps()) {
    const std::string axes = names_of(step.before.mesh(), step.axes);
    const std::string what = fmt::format("{}{}", name(step.kind), axes.empty() ? "" : "(" + axes + ")");
    text += fmt::format("  {} {:<22} {:<30} {:>10.2f} us {:>9} moved {:>9} peak\n", ++number, what,
                        fmt::format("{} → {}", step.before, step.after), step.cost_us, text_of_bytes(step.bytes),
                        text_of_bytes(step.peak_bytes));
  }
  text += fmt::format("  total {:>59.2f} us {:>9} moved {:>9} peak\n", cost_us(), text_of_bytes(bytes_moved()),
                      text_of_bytes(peak_bytes()));
  if (scale() != 1) text += fmt::format("  the result times {:.6g}\n", scale());
  return text;
}

}  // namespace tessera
