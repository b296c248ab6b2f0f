// `tessera plan --execute`: the plan on ranks, timed and checked.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <tessera/comm.hpp>
#include <tessera/plan.hpp>

namespace tessera::cli {

struct Executed {
  struct Figures {
    double us = 0;      // the median of the runs, of each the slowest rank
    int64_t bytes = 0;  // that the busiest rank received or sent
  };
  std::vector<Figures> steps;  // each by itself
  Figures whole;               // all in one call; bytes: of the steps, added up as the plan does
  int ranks = 0;               // of the communicator
  int64_t runs = 0;            // of the whole
  int64_t elements = 0;        // checked, on all ranks
  int holders = 0;             // ranks that have a part of the result
  std::string wrong;           // the first wrong element and its rank; empty: all are right
};

// How many ranks the plan needs.
int ranks_of(const Plan& plan);

// Collective; the same on every rank. Throws what redistribute() throws.
Executed execute(Comm& comm, const Plan& plan);

std::string to_text(const Executed& executed, const Plan& plan);
nlohmann::json to_json(const Executed& executed);

}  // namespace tessera::cli
