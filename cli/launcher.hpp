// Runs a program as several ranks, and stays with them until the last has ended.
#pragma once

#include "rank_process.hpp"

namespace tessera::cli {

// Returns the exit code: 0, that of the rank that failed first (128 + n: killed by signal n), or 127 and 126 where the
// program cannot be found or run. Throws Error where the ranks cannot be started. Call it once, in a process with one
// thread.
int launch(const Job& job);

}  // namespace tessera::cli
