// The subcommands of the command line: each file registers its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tessera::cli {

// Exit codes: 0 done; `tessera run` hands on that of the program.
inline constexpr int kFailed = 1;
inline constexpr int kMisused = 2;

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;  // once it is parsed; returns the exit code
};

Command add_demo(CLI::App& app);
// `words`: what was typed behind "tessera", for the report.
Command add_bench(CLI::App& app, const std::vector<std::string>& words);
Command add_bench_player(CLI::App& app);  // hidden: what `tessera bench` starts
Command add_calibrate(CLI::App& app);
Command add_calibrate_player(CLI::App& app);  // hidden: what `tessera calibrate` starts
Command add_doctor(CLI::App& app);
Command add_plan(CLI::App& app);
// `from_dashes` outlives the command: "--" and what stood behind it, not parsed.
Command add_run(CLI::App& app, const std::vector<std::string>& from_dashes);

// A number of seconds, above zero or from it on. In place of CLI11's, which tells its bounds to the last digit.
CLI::Validator seconds_above_zero();
CLI::Validator seconds_from_zero();

// Colours on this descriptor: a terminal, and NO_COLOR (no-color.org) not set.
bool wants_color(int descriptor);

}  // namespace tessera::cli
