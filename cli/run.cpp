// `tessera run`: its options.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "binding.hpp"
#include "command.hpp"
#include "launcher.hpp"

namespace tessera::cli {
namespace {

constexpr int kNoProgram = 127;  // as shells have it

// "512", "64MB", "8GiB" → bytes. Throws CLI::ValidationError.
int64_t parse_bytes(const std::string& text) {
  constexpr std::string_view kPowers = "KMGT";
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string unit(rest, end);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::toupper(c); });
  double factor = 1;
  const size_t power = unit.empty() ? std::string_view::npos : kPowers.find(unit[0]);
  if (power != std::string_view::npos) {
    const bool binary = unit.substr(1) == "IB" || unit.substr(1) == "I";
    factor = std::pow(binary ? 1024 : 1000, static_cast<double>(power) + 1);
    unit = binary || unit.substr(1) == "B" || unit.size() == 1 ? "" : unit;
  }
  const double bytes = number * factor;
  if (error != std::errc() || !(unit.empty() || unit == "B") || !(bytes >= 1) || bytes > 0x1p62) {
    throw CLI::ValidationError("--heap", fmt::format("{} is no size; say 500MB or 8GiB", text));
  }
  return static_cast<int64_t>(bytes);
}

// Empty: fine, as CLI11 has it.
std::string check_seconds(const std::string& text, bool zero_works) {
  double seconds = -1;
  const char* end = text.data() + text.size();
  const bool number = std::from_chars(text.data(), end, seconds).ptr == end;
  const bool fits = seconds <= 1e9 && (zero_works ? seconds >= 0 : seconds > 0);
  return number && fits ? "" : fmt::format("{} is no number of seconds", text);
}

struct RunOptions {
  Job job;
  std::string transport = "shm";
  std::string heap;
  bool bind = false;
  bool no_prefix = false;
};

void add_options(CLI::App& command, RunOptions& options) {
  CLI::Validator ranks = CLI::Range(1, INT_MAX);
  command
      .add_option("-n,--ranks", options.job.ranks,
                  fmt::format("How many ranks, 1 to {} (mpi: as many as it takes); else one a CPU", shm::kMaxRanks))
      ->check(ranks.description(""))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--transport", options.transport,
                  "shm: processes of this machine, also the default; mpi: hands over to mpirun")
      ->check(CLI::Validator(
          [](const std::string& word) {
            return word == "shm" || word == "mpi" ? std::string() : word + " is neither shm nor mpi";
          },
          ""))
      ->type_name("T");
  command.add_flag("--bind", options.bind, "Bind each rank to cores of its own");
  command.add_flag("--no-prefix", options.no_prefix, "Ranks print for themselves, without [rank] before each line");
  command.add_option("--timeout", options.job.timeout, "How long a call waits for a peer, in seconds")
      ->check(seconds_above_zero())
      ->type_name("S");
  command.add_option("--heap", options.heap, "Most shared memory that a rank can take, such as 8GiB")
      ->type_name("BYTES");
  command.add_flag("--keep-going", options.job.keep_going, "Leave the others alone when a rank fails");
  command
      .add_option("--grace", options.job.grace_s, "How long the others may go on when a rank has failed, in seconds")
      ->check(seconds_from_zero())
      ->type_name("S")
      ->capture_default_str();
  command.add_flag("-v,--verbose", options.job.verbose, "Tell each rank's process, its cores and its end");
}

// The first word that is no option of ours begins the program, with "--" before it or without.
std::vector<std::string> program_of(const CLI::App& command, const std::vector<std::string>& from_dashes) {
  std::vector<std::string> words = command.remaining();
  if (!words.empty() && words[0].starts_with("-")) throw CLI::ExtrasError(words);
  words.insert(words.end(), from_dashes.begin() + (words.empty() && !from_dashes.empty() ? 1 : 0), from_dashes.end());
  if (words.empty()) throw CLI::RequiredError("A program, as in: tessera run -n 4 -- ./program,");
  return words;
}

// Whose launcher, unlike others, takes variables to other hosts only where it is told of them.
bool mpirun_is_open_mpis() {
  std::string text;
  if (FILE* pipe = popen("mpirun --version 2>/dev/null", "r")) {
    std::array<char, 256> part{};
    while (std::fgets(part.data(), static_cast<int>(part.size()), pipe) != nullptr) text += part.data();
    pclose(pipe);
  }
  return text.find("Open MPI") != std::string::npos || text.find("OpenRTE") != std::string::npos;
}

// This process becomes mpirun, whose end is then this command's. What stands after "--" is its own.
int hand_over_to_mpirun(const CLI::App& command, const Job& job) {
  for (const char* ours : {"--bind", "--no-prefix", "--heap", "--keep-going", "--grace", "--verbose"}) {
    if (command.count(ours) == 0) continue;
    throw CLI::ValidationError(ours, "does not work with --transport mpi; options of mpirun's go after \"--\"");
  }
  std::vector<std::string> words{"mpirun", "-n", std::to_string(job.ranks)};
  if (!job.timeout.empty()) {
    setenv("TESSERA_TIMEOUT", job.timeout.c_str(), 1);
    if (mpirun_is_open_mpis()) words.insert(words.end(), {"-x", "TESSERA_TIMEOUT"});
  }
  words.insert(words.end(), job.command.begin(), job.command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  fmt::print(stderr, "tessera run: mpirun: {}; install an MPI, such as openmpi-bin or mpich\n", std::strerror(errno));
  return kNoProgram;
}

int run_program(const CLI::App& command, RunOptions& options, const std::vector<std::string>& from_dashes) {
  Job& job = options.job;
  job.command = program_of(command, from_dashes);
  if (options.transport == "mpi") return hand_over_to_mpirun(command, job);
  if (job.ranks > shm::kMaxRanks) {
    throw CLI::ValidationError("--ranks", fmt::format("Value {} not in range 1 to {}", job.ranks, shm::kMaxRanks));
  }
  job.prefix = !options.no_prefix;
  if (!options.heap.empty()) job.heap_bytes = parse_bytes(options.heap);
  if (options.bind) job.cpus = bind_ranks(job.ranks);
  return launch(job);
}

}  // namespace

CLI::Validator seconds_above_zero() {
  return CLI::Validator([](const std::string& text) { return check_seconds(text, false); }, "");
}

CLI::Validator seconds_from_zero() {
  return CLI::Validator([](const std::string& text) { return check_seconds(text, true); }, "");
}

Command add_run(CLI::App& app, const std::vector<std::string>& from_dashes) {
  const auto options = std::make_shared<RunOptions>();
  options->job.ranks = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 4096u));
  CLI::App* command = app.add_subcommand("run", "Run a program as several ranks, processes of this machine");
  command->footer(
      "tessera run -n 4 -- ./program arguments\n"
      "When a rank fails, the others end too, and this command ends with its exit code.");
  command->prefix_command();
  add_options(*command, *options);
  return {command, [command, options, &from_dashes] { return run_program(*command, *options, from_dashes); }};
}

}  // namespace tessera::cli
