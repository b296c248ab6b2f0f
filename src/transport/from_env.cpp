// Comm::from_env(): which launcher started this process, and what that means.
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include <tessera/comm.hpp>
#include <tessera/detail/from_mpi.hpp>

#include "comm/comm_state.hpp"
#include "transport/mpi/connect.hpp"
#include "transport/mpi/library.hpp"
#include "transport/shm/connect.hpp"
#include "transport/threads/threads.hpp"

namespace tessera {
namespace {

std::chrono::nanoseconds timeout_from_environment(std::chrono::nanoseconds otherwise) {
  const char* text = std::getenv("TESSERA_TIMEOUT");
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != 0 || !(seconds > 0)) {
    throw Error(fmt::format("TESSERA_TIMEOUT is \"{:.40}\", not a number of seconds", text));
  }
  constexpr double kLongest = 365.0 * 24 * 3600;
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, kLongest) * 1e9));
}

Comm under_mpi(const std::string& mpi, const RunOptions& options) {
  Comm comm = mpi::connect(mpi, options);
  setenv("TESSERA_MPI", "none", 1);  // what this rank starts in its turn is no rank
  return comm;
}

// Each of srun's processes would go on as the only one.
void check_not_of_srun() {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (tasks == nullptr || std::atoi(tasks) < 2 || mpi::names_mpi()) return;
  throw Error(
      fmt::format("srun has started {} processes, but tells none of the others: start them with srun --mpi=pmix (Open "
                  "MPI) or --mpi=pmi2 (MPICH). TESSERA_MPI=none: each is to be one rank",
                  tasks));
}

}  // namespace

Comm Comm::from_env(const RunOptions& options) {
  static std::atomic<bool> joined{false};
  if (options.timeout.count() <= 0)
    throw Error(fmt::format("Comm::from_env(): a timeout of {} ns is not positive", options.timeout.count()));
  const auto given = shm::hand_over_from_environment();
  const auto mpi = given ? std::nullopt : mpi::launched_by();
  if (!given && !mpi && !joined) {
    check_not_of_srun();
    return alone(options);
  }
  if (joined.exchange(true)) {
    throw Error("Comm::from_env() works once in a process: use comm.split(0) for another communicator");
  }
  if (mpi) return under_mpi(*mpi, options);
  auto segment = shm::Segment::attach(given->descriptor);
  if (segment->ranks() != given->ranks) {
    throw Error(fmt::format("{} is {}, but the launcher's memory is for {}", shm::kRanksVariable, given->ranks,
                            segment->ranks()));
  }
  shm::keep_last_words(segment, given->rank);  // first: what goes wrong from here on is told too
  // What this rank starts in its turn is no rank.
  for (const char* name : {shm::kRankVariable, shm::kRanksVariable, shm::kDescriptorVariable}) unsetenv(name);
  return shm::connect(std::move(segment), given->rank, shm::parse_way(std::getenv("TESSERA_SHM_WAY")), options);
}

RunOptions detail::options_from_env() {
  RunOptions options;
  options.timeout = timeout_from_environment(options.timeout);
  return options;
}

Comm Comm::from_env() { return from_env(detail::options_from_env()); }

}  // namespace tessera
