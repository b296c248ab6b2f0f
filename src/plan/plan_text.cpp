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

std::string quoted(std::string_view text) { return fmt::format("\"{}\"", text); }  // none of ours needs escapes

std::string json_of(const Step& step) {
  std::string axes;
  for (const size_t a : step.axes) axes += (axes.empty() ? "" : ",") + quoted(step.before.mesh().axes()[a].name);
  return fmt::format(R"({{"kind":{},"axes":[{}],"from_dims":[{}],"to_dims":[{}],"before_mesh":{},"before":{},)"
                     R"("after_mesh":{},"after":{},"cost_us":{},"bytes":{},"peak_bytes":{}}})",
                     quoted(name(step.kind)), axes, fmt::join(step.from_dims, ","), fmt::join(step.to_dims, ","),
                     quoted(to_string(step.before.mesh())), quoted(to_string(step.before)),
                     quoted(to_string(step.after.mesh())), quoted(to_string(step.after)), step.cost_us, step.bytes,
                     step.peak_bytes);
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

std::string Plan::to_json() const {
  std::string list;
  for (const Step& step : steps()) list += (list.empty() ? "" : ",") + json_of(step);
  return fmt::format(R"({{"mesh":{},"from":{},"to_mesh":{},"to":{},"shape":[{}],"dtype":{},"cost_us":{},"bytes":{},)"
                     R"("peak_bytes":{},"scale":{},"steps":[{}]}})",
                     quoted(to_string(from().mesh())), quoted(to_string(from())), quoted(to_string(to().mesh())),
                     quoted(to_string(to())), fmt::join(shape().begin(), shape().end(), ","), quoted(name(dtype())),
                     cost_us(), bytes_moved(), peak_bytes(), scale(), list);
}

}  // namespace tessera
