// `tessera plan`: the command, and its answers for people and programs.
#include "plan.hpp"

#include <cmath>
#include <fstream>
#include <iostream>

#include <tessera/cost.hpp>
#include <tessera/error.hpp>

#include "command.hpp"
#include "plan/calibrated.hpp"
#include "plan_execute.hpp"

namespace tessera::cli {
namespace {

using nlohmann::json;

struct PlanOptionsGiven {
  std::string mesh, to_mesh, shape, dtype = "f32", from, to, topology, html, batch;
  int64_t devices_per_host = 8;
  int64_t max_bytes = tessera::PlanOptions{}.max_bytes;
  bool json = false;
  bool execute = false;
};

// What was typed wrongly ends with the exit code for that, and names the option.
template <class Fn>
auto typed(const char* option, Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    throw CLI::ValidationError(option, error.what());
  }
}

double seed_us(const Layout& from, const Layout& to, const Dims& shape, DType dtype, int64_t devices_per_host) {
  const bool has_at = !from.axes(Placement::Kind::at).empty() || !to.axes(Placement::Kind::at).empty();
  if (has_at) return std::nan("");  // which that model does not know
  return redistribute_cost({from, shape, dtype}, {to, shape, dtype}, devices_per_host);
}

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

int run_batch(const std::string& path) {
  if (path == "-") return answer_batch(std::cin, std::cout) == 0 ? 0 : kFailed;
  std::ifstream file(path);
  if (!file) throw CLI::ValidationError("--batch", "cannot read " + path);
  return answer_batch(file, std::cout) == 0 ? 0 : kFailed;
}

Topology topology_of(const PlanOptionsGiven& given, const Mesh& mesh, const Mesh& to_mesh) {
  if (given.topology.empty()) return Topology::dtensor(mesh, to_mesh, given.devices_per_host);
  return typed("--topology",
               [&] { return given.topology == "calibrated" ? Topology::calibrated() : read_topology(given.topology); });
}

PlanReport answer(const PlanOptionsGiven& given) {
  for (const auto& [option, text] :
       {std::pair{"--mesh", &given.mesh}, {"--from", &given.from}, {"--to", &given.to}, {"--shape", &given.shape}}) {
    if (text->empty()) throw CLI::RequiredError(option);
  }
  const Mesh mesh = typed("--mesh", [&] { return Mesh::parse(given.mesh); });
  const Mesh to_mesh = given.to_mesh.empty() ? mesh : typed("--to-mesh", [&] { return Mesh::parse(given.to_mesh); });
  const Dims shape = typed("--shape", [&] { return parse_shape(given.shape); });
  const DType dtype = typed("--dtype", [&] { return parse_dtype(given.dtype); });
  const Layout from = typed("--from", [&] { return Layout::parse(mesh, given.from).resolved(shape); });
  const Layout to = typed("--to", [&] { return Layout::parse(to_mesh, given.to).resolved(shape); });
  return make_report(from, to, shape, dtype, topology_of(given, mesh, to_mesh), {.max_bytes = given.max_bytes},
                     given.devices_per_host);
}

void print(const PlanReport& report, const PlanOptionsGiven& given, const Executed* executed) {
  if (!given.html.empty()) {
    const std::string page = report.plan.to_html();  // before the file is touched
    std::ofstream file(given.html);
    file << page;
    if (!file.flush()) throw Error("cannot write " + given.html);
  }
  if (given.json) {
    json object = to_json(report);
    if (executed != nullptr) object["executed"] = to_json(*executed);
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}{}", to_text(report), executed != nullptr ? to_text(*executed, report.plan) : "");
  }
}

// The plan that every rank is to run. All come to the same, or to the same error, which rank 0 alone tells of.
std::optional<PlanReport> answer_on(const Comm& comm, const PlanOptionsGiven& given, int& code) {
  try {
    PlanReport report = answer(given);
    const int needed = ranks_of(report.plan);
    if (comm.size() >= needed) return report;
    throw CLI::ValidationError(
        "--execute",
        fmt::format("the plan has ranks 0 to {}, and {}; say: tessera run -n {} -- tessera plan … --execute",
                    needed - 1, comm.size() == 1 ? "this was started as one" : fmt::format("only {} run", comm.size()),
                    needed));
  } catch (const CLI::ParseError&) {
    if (comm.rank() == 0) throw;
    code = kMisused;
  } catch (const std::exception&) {
    if (comm.rank() == 0) throw;
    code = kFailed;
  }
  return {};
}

int execute_plan(const PlanOptionsGiven& given) {
  Comm comm = Comm::from_env();
  int code = 0;
  const auto report = answer_on(comm, given, code);
  if (!report) return code;
  const Executed executed = execute(comm, report->plan);
  if (comm.rank() == 0) print(*report, given, &executed);
  return executed.wrong.empty() ? 0 : kFailed;
}

int run_plan(const PlanOptionsGiven& given) {
  if (!given.batch.empty()) return run_batch(given.batch);
  if (given.execute) return execute_plan(given);
  print(answer(given), given, nullptr);
  return 0;
}

}  // namespace

Dims parse_shape(const std::string& text) {
  Dims shape;
  if (text == "scalar") return shape;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find('x', begin);
    const std::string piece = text.substr(begin, end - begin);
    const bool digits =
        !piece.empty() && piece.size() < 19 && piece.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) throw ShapeError(fmt::format("\"{}\" is no shape: write 4096x4096, or scalar", text));
    shape.push_back(std::stoll(piece));
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  volume(shape);
  return shape;
}

PlanReport make_report(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
                       const PlanOptions& options, int64_t devices_per_host) {
  return {plan(from, to, shape, dtype, topology, options), dtensor_route(from, to, shape, dtype, topology),
          seed_us(from, to, shape, dtype, devices_per_host)};
}

std::string to_text(const PlanReport& report) {
  std::string text = report.plan.explain();
  if (!report.dtensor) return text + "\nPyTorch's DTensor has no default route for this.\n";
  const double ours = report.plan.cost_us(), theirs = report.dtensor->cost_us;
  text += fmt::format("\nPyTorch's default route, in the same prices: {:.2f} us", theirs);
  if (ours > 0 && theirs > ours * 1.005) text += fmt::format(", {:.2f} times as much", theirs / ours);
  text += "\n";
  const Mesh& mesh = report.plan.from().mesh();
  size_t number = 0;
  for (const DTensorRoute::Hop& hop : report.dtensor->hops) {
    text += fmt::format("  {} {:<22} {:<30} {:>10.2f} us\n", ++number, mesh.axes()[hop.axis].name,
                        fmt::format("{} → {}", hop.before, hop.after), hop.cost_us);
  }
  return text;
}

json to_json(const PlanReport& report) {
  json object = json::parse(report.plan.to_json());
  object["seed_us"] = number_or_null(report.seed_us);
  object["dtensor_us"] = report.dtensor ? json(report.dtensor->cost_us) : json(nullptr);
  object["dtensor_steps"] = json::array();
  if (!report.dtensor) return object;
  for (const DTensorRoute::Hop& hop : report.dtensor->hops) {
    object["dtensor_steps"].push_back({{"axis", report.plan.from().mesh().axes()[hop.axis].name},
                                       {"before", to_string(hop.before)},
                                       {"after", to_string(hop.after)},
                                       {"cost_us", hop.cost_us}});
  }
  return object;
}

Command add_plan(CLI::App& app) {
  const auto given = std::make_shared<PlanOptionsGiven>();
  CLI::App* command = app.add_subcommand("plan", "Find the cheapest way from one layout of a tensor to another");
  command->footer(
      "Layouts have a placement for each mesh axis: R, S0, S1[3,0,5], P(sum), At(0); S0@tp,dp cuts by tp first.\n"
      "Try: tessera plan --mesh dp=2,tp=4 --shape 4096x4096 --from S0,R --to R,S1\n"
      "     tessera run -n 2 -- tessera plan --mesh x=2 --shape 1024x1024 --from S0 --to S1 --execute");
  command->add_option("--mesh", given->mesh, "Axes and their sizes: dp=2,tp=4; other ranks: tp=4@8-11")
      ->type_name("MESH");
  command->add_option("--shape", given->shape, "Of the whole tensor: 4096x4096, or scalar")->type_name("SHAPE");
  command->add_option("--dtype", given->dtype, "f32, bf16, i64, …")->type_name("DTYPE")->capture_default_str();
  command->add_option("--from", given->from, "The layout it has")->type_name("LAYOUT");
  command->add_option("--to", given->to, "The layout it gets")->type_name("LAYOUT");
  command->add_option("--to-mesh", given->to_mesh, "The mesh it goes to, if another")->type_name("MESH");
  CLI::Validator positive = CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max());
  command->add_option("--devices-per-host", given->devices_per_host, "For PyTorch's prices")
      ->check(positive.description(""))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--topology", given->topology, "A file with prices instead of PyTorch's, or: calibrated")
      ->type_name("FILE");
  command->add_option("--max-bytes", given->max_bytes, "The most memory a rank may use at any step")
      ->check(positive.description(""))
      ->type_name("N");
  command->add_flag("--json", given->json, "Print one JSON object instead");
  command->add_option("--html", given->html, "Also write a page that shows every step")->type_name("FILE");
  command->add_flag("--execute", given->execute,
                    "Also run it on the ranks of `tessera run`, time it and check every element");
  command->add_option("--batch", given->batch, "Answer the JSON lines of a file instead, or of - (stdin)")
      ->type_name("FILE");
  return {command, [given] { return run_plan(*given); }};
}

}  // namespace tessera::cli
