// `tessera demo`: what it runs, and how it tells of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

namespace tessera::cli {

// What every rank counted while it did one thing, by rank.
struct Cost {
  std::string what;
  std::vector<Stats> by_rank;
};

struct DemoReport {
  int ranks = 0;
  int64_t columns = 0;  // of every row
  int64_t row_bytes = 0;
  Sizes rows;   // of every rank, as all_gather found them out
  Dims result;  // the shape of the gathered tensor

  // The gradient of the first element of each rank's rows; ranks without rows have none and are left out.
  struct Gradient {
    int rank = 0;
    double one_process = 0;
    double sum = 0;
    double slice = 0;
  };
  std::vector<Gradient> gradients;
  bool slice_is_right = false;

  std::string error_class;  // of the call in which the ranks do not fit
  std::string error_text;
  std::vector<Cost> costs;

  std::vector<std::string> failures;  // empty: all checks passed
};

// Runs the demo on `ranks` threads. Throws what the library throws where even a rank's function fails.
DemoReport run_demo(int ranks);

// For a terminal of 80 columns; colour is ANSI escapes.
std::string to_text(const DemoReport& report, bool color);
std::string to_json(const DemoReport& report);

}  // namespace tessera::cli
