// `tessera bench`: what it is asked, what it measures, and how it tells of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "players/case.hpp"

namespace tessera::cli {

inline constexpr int kMostBenchRanks = 64;

struct BenchOptions {
  std::string op;
  int ranks = 2;
  std::string transport;
  std::vector<std::string> sizes;  // as they were typed, such as 64KiB
  std::vector<int64_t> dims;
  std::vector<std::string> skews;  // empty: what suits the operation
  std::vector<std::string> against;
  std::vector<std::string> memory;  // empty: what suits the transport
  std::vector<std::string> output;
  bool rewrite = false;  // inputs, before each call
  bool read = false;     // outputs, after each call
  double seconds = 0.5;  // for each contender and case
  std::string python;    // empty: $TESSERA_PYTHON, or python3
  std::string json_path, svg_path;
  std::string command;  // as it was typed
};

struct Machine {
  std::string cpu, kernel;
  int cores = 0;
  int64_t cache_bytes = 0;      // of the last level
  int64_t available_bytes = 0;  // of memory
  double load = 0;              // in the minute before
};
Machine this_machine();

// One thing to do, by every contender.
struct BenchCase {
  int64_t size_bytes = 0;  // the mean of what the ranks bring
  std::string skew;
  bench::Case layout = {};

  // As nccl-tests counts: algbw is these bytes over the time, busbw is algbw times the factor.
  int64_t algorithm_bytes() const;
  double bus_factor() const;
  int64_t bytes_per_set() const;  // of the inputs and outputs of all ranks
};

// The cases of the options, in the order of the report. Throws Error where they ask for what cannot be.
std::vector<BenchCase> make_cases(const BenchOptions& options, int64_t cache_bytes);
int64_t parse_size(const std::string& text);  // "1536", "64KiB", "1M"; throws Error
std::string size_text(int64_t bytes);

// Somebody who plays: tessera with one kind of memory, or another library.
struct Contender {
  std::string name;                      // "tessera", "openmpi", …
  std::string memory = {}, output = {};  // memory: tessera only
  bool ours() const { return !memory.empty(); }
  std::string label() const { return ours() ? name + " " + memory + "/" + output : name; }
};

struct Times {
  double best_ns = 0, p50_ns = 0, p99_ns = 0;
  int64_t samples = 0;
  int64_t inner = 1;     // calls a sample
  int64_t wrong = 0;     // elements, on all ranks
  std::string how = {};  // of several schedules the one that was taken, and why
};

struct BenchRow {
  BenchCase what;
  std::vector<Times> times;  // by contender
};

struct BenchReport {
  BenchOptions options;
  Machine machine;
  std::vector<Contender> contenders;
  std::vector<BenchRow> rows;
  std::vector<std::string> notes;  // who is not there, and what to do about it

  bool right() const;  // no element was wrong
};

// Starts the players, gives them their turns and ends them. Throws Error, naming the player, where one dies.
// Interrupted: Ctrl-C; whatever was started has ended when it is thrown.
struct Interrupted {};
BenchReport run_bench(const BenchOptions& options);

std::string to_text(const BenchReport& report);
std::string to_json(const BenchReport& report);
std::string to_svg(const BenchReport& report);

// The hidden subcommands that the coordinator starts. Each returns its exit code.
int play_tessera(const std::string& name, const std::string& socket, const std::string& transport, int ranks);
int play_memcpy(const std::string& name, const std::string& socket, int ranks);

}  // namespace tessera::cli
