// `tessera calibrate`: its options, and the file it writes.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"
#include "calibrate.hpp"
#include "command.hpp"
#include "plan/calibrated.hpp"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kStopped = 130;  // as shells have it for Ctrl-C

std::string default_output() {
  const auto paths = calibrated_paths();
  if (paths.empty()) throw Error("neither XDG_CONFIG_HOME nor HOME is set: say --output FILE");
  return paths[0];
}

// A reader finds the old file or the new one, and never half of it.
class NewFile {
 public:
  // Found out before time is spent on what could then not be kept.
  explicit NewFile(const std::string& path) : path_(path), draft_(fmt::format("{}.{}", path, getpid())) {
    std::error_code failure;
    const fs::path folder = fs::path(path).parent_path();
    if (!folder.empty()) fs::create_directories(folder, failure);
    if (!std::ofstream(draft_)) throw Error("cannot write " + path);
  }
  ~NewFile() {
    std::error_code failure;
    fs::remove(draft_, failure);
  }
  NewFile(const NewFile&) = delete;

  void write(const std::string& text) const {
    std::ofstream file(draft_);
    file << text;
    std::error_code failure;
    if (file.flush()) fs::rename(draft_, path_, failure);
    if (!file || failure) throw Error("cannot write " + path_);
  }

 private:
  std::string path_, draft_;
};

// The topology, with a word on where it comes from, which readers pass over.
std::string file_text(const CalibrateReport& report) {
  const std::string about =
      fmt::format("tessera calibrate: {} ranks, transport {}, error {:.1f} %, noise {:.1f} %", report.ranks,
                  report.options.transport, 100 * report.error(), 100 * report.noise());
  return report.topology.to_json().replace(0, 2, fmt::format("{{\n  \"about\": \"{}\",\n", about));
}

int calibrate(CalibrateOptions options) {
  if (!options.mesh.empty() && options.ranks != 0) throw CLI::ValidationError("--mesh", "has its own number of ranks");
  try {
    parse_size(options.up_to);
  } catch (const Error& error) {
    throw CLI::ValidationError("--up-to", error.what());
  }
  if (!options.mesh.empty()) {
    try {
      const int64_t ranks = Mesh::parse(options.mesh).size();
      if (ranks < 2 || ranks > kMostCalibrateRanks) {
        throw Error(fmt::format("{} has {} ranks; 2 to {} can be measured", options.mesh, ranks, kMostCalibrateRanks));
      }
    } catch (const Error& error) {
      throw CLI::ValidationError("--mesh", error.what());
    }
  }
  if (options.ranks == 0) options.ranks = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 8u));
  if (options.output.empty()) options.output = default_output();
  const NewFile file(options.output);
  try {
    const CalibrateReport report = run_calibrate(options);
    file.write(file_text(report));
    fmt::print("{}", options.json ? to_json(report, options.output) : to_text(report, options.output));
    return 0;
  } catch (const Interrupted&) {
    fmt::print(stderr, "tessera calibrate: interrupted\n");
    return kStopped;
  }
}

}  // namespace

Command add_calibrate(CLI::App& app) {
  const auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand("calibrate", "Measure what moving tensors costs on this machine, for plans");
  command->footer(
      "Writes prices for `tessera plan --topology calibrated` and Topology::calibrated(), and tells how well they\n"
      "foretell sizes that were not measured.\n"
      "Try: tessera calibrate --mesh dp=2,tp=2 --output prices.json");
  command
      ->add_option_function<std::string>(
          "--transport", [options](const std::string& word) { options->transport = word; },
          "shm: processes, also the default; or threads of one process")
      ->check(CLI::Validator(
          [](std::string& word) {
            return word == "shm" || word == "threads" ? std::string() : word + " is none of shm, threads";
          },
          "", ""))
      ->type_name("T");
  command->add_option("--mesh", options->mesh, "Measure the axes of this mesh, under their names")->type_name("MESH");
  CLI::Validator range = CLI::Range(2, kMostCalibrateRanks);
  command
      ->add_option(
          "--ranks", options->ranks,
          fmt::format("Measure groups of so many ranks, 2 to {}, and of 2, 4, …; one a CPU, up to 8, if not given",
                      kMostCalibrateRanks))
      ->check(range.description(""))
      ->type_name("N");
  command
      ->add_option("--output", options->output, "The file to write; if not given, where Topology::calibrated() looks")
      ->type_name("FILE");
  command->add_option("--up-to", options->up_to, "The most bytes that a rank receives in a call")
      ->type_name("SIZE")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "How long to measure, about")
      ->check(seconds_above_zero())
      ->type_name("S")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print all figures as one JSON object instead");
  return {command, [options] { return calibrate(*options); }};
}

Command add_calibrate_player(CLI::App& app) {
  struct Player {
    std::string socket, transport;
    int ranks = 0;
  };
  const auto player = std::make_shared<Player>();
  CLI::App* command = app.add_subcommand("calibrate-player", "")->group("");
  command->add_option("socket", player->socket)->required();
  command->add_option("transport", player->transport)->required();
  command->add_option("ranks", player->ranks)->required();
  return {command, [player] { return play_calibrate(player->socket, player->transport, player->ranks); }};
}

}  // namespace tessera::cli
