// `tessera bench`: its options.

#include <algorithm>
#include <fstream>
#include <memory>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"
#include "command.hpp"

namespace tessera::cli {
namespace {

constexpr int kInterrupted = 130;  // as shells have it for Ctrl-C

// The words of a list that are allowed, without CLI11's long way of saying so in the help.
CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& word) {
        if (std::find(words.begin(), words.end(), word) != words.end()) return std::string();
        return fmt::format("{} is none of {}", word, fmt::join(words, ", "));
      },
      "", "");
}

CLI::Validator a_size() {
  return CLI::Validator(
      [](std::string& word) {
        try {
          parse_size(word);
          return std::string();
        } catch (const Error& error) {
          return std::string(error.what());
        }
      },
      "", "");
}

// "none" stands for an empty list, "mpi" for the MPI that is meant most often.
std::vector<std::string> rivals(std::vector<std::string> names) {
  std::erase(names, "none");
  std::vector<std::string> list;
  for (const std::string& name : names) {
    const std::string full = name.starts_with("mpi") && !name.starts_with("mpich") ? "open" + name : name;
    if (std::find(list.begin(), list.end(), full) == list.end()) list.push_back(full);
  }
  return list;
}

std::string quoted(const std::string& word) {
  return word.find_first_of(" \t'\"$\\") == std::string::npos && !word.empty() ? word : "'" + word + "'";
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw Error(fmt::format("cannot write {}", path));
}

// Found out before minutes are spent on what could then not be kept.
void check_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app)) throw Error(fmt::format("cannot write {}", path));
}

void add_options(CLI::App& command, BenchOptions& options) {
  const std::vector<std::string> ops(std::begin(bench::kOpNames), std::end(bench::kOpNames));
  options.transport = "shm";
  options.sizes = {"1KiB", "64KiB", "1MiB", "32MiB"};
  options.dims = {0};
  options.against = {"openmpi", "mpich", "gloo", "memcpy"};
  options.output = {"recycled"};

  const auto list = [&](const char* name, auto& words, const char* help, const CLI::Validator& check) {
    return command.add_option(name, words, help)->delimiter(',')->allow_extra_args(false)->check(check);
  };
  command.add_option("op", options.op, fmt::format("{}", fmt::join(ops, ", ")))
      ->required()
      ->check(one_of(ops))
      ->type_name("");
  CLI::Validator range = CLI::Range(1, kMostBenchRanks);
  command.add_option("--ranks", options.ranks, fmt::format("How many ranks, 1 to {}; 2 if not given", kMostBenchRanks))
      ->check(range.description(""))
      ->type_name("N");
  command
      .add_option("--transport", options.transport,
                  "shm: processes, also the default; threads of one process; mpi (Open MPI) or mpich: under its mpirun")
      ->check(one_of({"shm", "threads", "mpi", "openmpi", "mpich"}))
      ->type_name("T");
  list("--sizes", options.sizes, "Mean bytes a rank brings; 1KiB,64KiB,1MiB,32MiB if not given", a_size())
      ->type_name("S,…");
  list("--dims", options.dims, "Along which dimension: 0, also the default, or 1 (all_gather only)", one_of({"0", "1"}))
      ->type_name("D,…");
  list("--skew", options.skews, "ragged (0.5 and 1.5 of the mean), even, or one (one rank has all)",
       one_of({"even", "ragged", "one"}))
      ->type_name("K,…");
  list("--against", options.against,
       "mpi (Open MPI), mpich, gloo, memcpy; all these if not given; memcpy-fresh; mpi-raw, mpi-least, mpich-raw, "
       "mpich-least (all_gather); none",
       one_of({"mpi", "openmpi", "mpich", "gloo", "memcpy", "memcpy-fresh", "mpi-raw", "openmpi-raw", "mpich-raw",
               "mpi-least", "openmpi-least", "mpich-least", "none"}))
      ->type_name("C,…");
  list("--memory", options.memory, "Of tessera's input: heap (the communicator's) or ordinary",
       one_of({"heap", "ordinary"}))
      ->type_name("M,…");
  list("--output", options.output,
       "Of tessera: recycled by its pool, also the default, fresh, given, or trusted (sizes too)",
       one_of({"recycled", "fresh", "given", "trusted"}))
      ->type_name("O,…");
  command.add_flag("--rewrite", options.rewrite, "Every rank writes to its input before each call, in the time of it");
  command.add_flag("--read", options.read, "Every rank reads its output after each call, in the time of it");
  command.add_option("--seconds", options.seconds, "For each contender and case; 0.5 if not given")
      ->check(seconds_above_zero())
      ->type_name("S");
  command.add_option("--python", options.python, "With torch, for gloo; $TESSERA_PYTHON or python3 if not given")
      ->type_name("P");
  command.add_option("--json", options.json_path, "Write all figures to a file")->type_name("FILE");
  command.add_option("--svg", options.svg_path, "Draw a chart to a file")->type_name("FILE");
}

int bench(BenchOptions options) {
  options.against = rivals(options.against);
  if (options.transport == "mpi") options.transport = "openmpi";
  // On threads all memory is alike.
  if (options.memory.empty()) {
    options.memory = options.transport == "threads" ? std::vector<std::string>{"ordinary"}
                                                    : std::vector<std::string>{"heap", "ordinary"};
  }
  try {
    make_cases(options, 1);
  } catch (const Error& error) {
    throw CLI::ValidationError(error.what());
  }
  check_writable(options.json_path);
  check_writable(options.svg_path);
  try {
    const BenchReport report = run_bench(options);
    fmt::print("{}", to_text(report));
    if (!options.json_path.empty()) write_file(options.json_path, to_json(report));
    if (!options.svg_path.empty()) write_file(options.svg_path, to_svg(report));
    return report.right() ? 0 : kFailed;
  } catch (const Interrupted&) {
    fmt::print(stderr, "tessera bench: interrupted\n");
    return kInterrupted;
  }
}

}  // namespace

Command add_bench(CLI::App& app, const std::vector<std::string>& words) {
  const auto options = std::make_shared<BenchOptions>();
  options->command = "tessera";
  for (const std::string& word : words) options->command += " " + quoted(word);
  CLI::App* command = app.add_subcommand("bench", "Time a collective beside MPI, Gloo and memcpy");
  command->footer(
      "Try: tessera bench all_gather --sizes 1KiB,1MiB\n"
      "A contender that is not installed is left out, and a note says how to get it.");
  add_options(*command, *options);
  return {command, [options] { return bench(*options); }};
}

Command add_bench_player(CLI::App& app) {
  struct Player {
    std::string kind, name, socket;
    int ranks = 0;
  };
  const auto player = std::make_shared<Player>();
  CLI::App* command = app.add_subcommand("bench-player", "")->group("");
  command->add_option("kind", player->kind)->required();
  command->add_option("name", player->name)->required();
  command->add_option("socket", player->socket)->required();
  command->add_option("ranks", player->ranks)->required();
  return {command, [player] {
            if (player->kind == "memcpy") return play_memcpy(player->name, player->socket, player->ranks);
            return play_tessera(player->name, player->socket, player->kind, player->ranks);
          }};
}

}  // namespace tessera::cli
