// `tessera calibrate`: what it is asked, what it measures, and how it tells of it.
#pragma once

#include <string>
#include <vector>

#include <tessera/plan.hpp>

namespace tessera::cli {

inline constexpr int kMostCalibrateRanks = 64;

struct CalibrateOptions {
  std::string transport = "shm";
  std::string mesh;  // as it was typed; empty: groups of 2, 4, … of the ranks
  int ranks = 0;     // 0: one a CPU, at least 2 and at most 8
  std::string output;
  double seconds = 10;          // about so long
  std::string up_to = "16MiB";  // the largest transfer
  bool json = false;
};

// An axis that is measured, all its groups at the same time.
struct MeasuredAxis {
  Mesh mesh;
  size_t axis = 0;
  std::string name;  // in the topology
  int64_t ranks() const { return mesh.size(axis); }
};

// What one step of one kind took. `bytes` is what it is priced by.
struct Measurement {
  StepKind kind = StepKind::all_gather;
  size_t axis = 0;  // which MeasuredAxis; as many as there are: between two meshes
  double bytes = 0;
  double us = 0;
  double fitted_us = 0;  // its price in the topology that was fitted
};

// A topology in which the planner's prices come as near as they can to what was measured, by ratio: a least-squares fit.
// Tells each measurement's price too.
Topology fit_topology(const std::vector<MeasuredAxis>& axes, std::vector<Measurement>& measured);

// A question that was asked after the fit, of a size that was not measured.
struct CheckRow {
  std::string what;   // "all_gather(x)"
  std::string steps;  // of the best plan
  int64_t bytes = 0;
  double predicted_us = 0, measured_us = 0;
  double noise = 1;  // how far above the best the other rounds are, as a ratio
};

struct CalibrateReport {
  CalibrateOptions options;
  int ranks = 0;
  Topology topology;
  std::vector<MeasuredAxis> axes;
  std::vector<Measurement> measured;
  std::vector<CheckRow> checks;
  double took_s = 0;

  double error() const;  // exp(mean |ln(predicted / measured)|) - 1, over the checks
  double noise() const;
  // exp(mean ln(predicted / measured)) - 1 of each kind of question: what it is off by on the whole.
  std::vector<std::pair<std::string, double>> biases() const;
};

// Throws Error where the ranks cannot be started, or one is lost; bench.hpp's Interrupted on Ctrl-C.
CalibrateReport run_calibrate(const CalibrateOptions& options);

std::string to_text(const CalibrateReport& report, const std::string& path);
std::string to_json(const CalibrateReport& report, const std::string& path);

// The hidden subcommand that it starts. Returns its exit code.
int play_calibrate(const std::string& socket, const std::string& transport, int ranks);

}  // namespace tessera::cli
