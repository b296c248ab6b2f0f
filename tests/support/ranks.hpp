// Ranks for tests: one body, run on every transport. A new transport adds one line to transports().
//
// Bodies keep to what ranks in processes of their own can do: they read what they capture, and check on the rank itself.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/comm.hpp>

#include "support/mailboxes.hpp"
#include "support/processes.hpp"
#include "transport/mpi/connect.hpp"

namespace tessera::testing_support {

using Body = std::function<void(Comm&)>;

struct TransportUnderTest {
  std::string name;
  std::function<void(int ranks, const Body& body)> run;  // throws what tessera::run() throws
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // everything takes five to twenty times as long
#else
inline constexpr bool kSanitized = false;
#endif

// Processes that read each other's ordinary memory in that way.
inline std::function<void(int, const Body&)> on_processes(shm::Way way) {
  return [way](int ranks, const Body& body) {
    run_processes_well(ranks, body, {.way = way, .run = {.timeout = std::chrono::seconds(120)}});
  };
}

// Under an MPI's launcher every process runs the whole test program, as one rank of each test. How many it started is told
// in TESSERA_TEST_MPI, so that ranks which did not find each other are noticed; 0: no MPI.
inline int mpi_ranks() {
  const char* text = std::getenv("TESSERA_TEST_MPI");
  return text == nullptr ? 0 : std::atoi(text);
}

// Joined before the first test, and left after the last one: MPI must be finalised before main() returns.
class MpiWorld : public testing::Environment {
 public:
  void SetUp() override {
    world() = Comm::from_env({.timeout = std::chrono::seconds(60)});
    ASSERT_EQ(world().size(), mpi_ranks());
  }
  void TearDown() override { world() = Comm(); }
  static Comm& world() {
    static Comm comm;
    return comm;
  }
};
inline testing::Environment* const mpi_world = mpi_ranks() > 0 ? testing::AddGlobalTestEnvironment(new MpiWorld)
                                                               : nullptr;

// A communicator of its own for each test, as one that failed is dead.
inline void on_mpi(int, const Body& body) {
  Comm comm = MpiWorld::world().split(0);
  body(comm);
}

// Messages over a carrier; every rank is a host of its own.
inline void on_carrier(int ranks, const Body& body) {
  setenv("TESSERA_HOSTS", std::to_string(ranks).c_str(), 1);
  const auto boxes = std::make_shared<Mailboxes>();
  const RunOptions options{.timeout = std::chrono::seconds(120)};
  run(
      ranks,
      [&](Comm& thread) {
        auto carrier = std::make_shared<MailboxCarrier>(boxes, thread.rank());
        Comm comm = mpi::connect(std::move(carrier), thread.rank(), ranks, options);
        body(comm);
      },
      options);
  unsetenv("TESSERA_HOSTS");
}

inline const std::vector<TransportUnderTest>& transports() {
  // Long enough for a sanitizer on a busy machine, short enough that a hang is an error and not the end of the suite.
  static const std::vector<TransportUnderTest> list = [] {
    if (mpi_ranks() > 0) return std::vector<TransportUnderTest>{{"mpi", on_mpi}};
    std::vector<TransportUnderTest> all = {
        {"threads", [](int ranks, const Body& body) { run(ranks, body, {.timeout = std::chrono::seconds(120)}); }},
        {"shm_staged", on_processes(shm::Way::staged)},
    };
    // Ways.OrdinaryMemoryMayBeReadByTheKernel is skipped, and says so, where this one is left out.
    if (attach_allowed()) all.push_back({"shm_attach", on_processes(shm::Way::attach)});
    // A sanitizer finds nothing here that it does not find in the ways above, and takes minutes.
    if (!kSanitized) all.push_back({"carrier", on_carrier});  // Post.* has what is its own
    if (!kSanitized) all.push_back({"shm", on_processes(shm::Way::choose)});
    if (!kSanitized) all.push_back({"shm_in_place", on_processes(shm::Way::in_place)});
    return all;
  }();
  return list;
}

// Runs body on every rank. Whatever a rank throws is a failure of the test. A rank that a failed ASSERT_ sends home early
// does not keep the others waiting: they come out with a PeerLostError.
inline void on_ranks(const TransportUnderTest& transport, int ranks, const Body& body) {
  try {
    transport.run(ranks, body);
  } catch (const std::exception& e) {
    ADD_FAILURE() << transport.name << ", " << ranks << " ranks: " << e.what();
  }
}

// Every transport with 1, 2, 3, 4 and 7 ranks (under a sanitizer 1, 3 and 7). Derive a suite in each source and instantiate it with everywhere().
class Conformance : public testing::TestWithParam<std::tuple<size_t, int>> {
 protected:
  const TransportUnderTest& transport() const { return transports()[std::get<0>(GetParam())]; }
  int ranks() const { return std::get<1>(GetParam()); }
  void on_ranks(const Body& body) const { testing_support::on_ranks(transport(), ranks(), body); }
};

inline auto everywhere() {
  const std::vector<int> ranks = mpi_ranks() > 0 ? std::vector{mpi_ranks()}
                                 : kSanitized    ? std::vector{1, 3, 7}
                                                 : std::vector{1, 2, 3, 4, 7};
  return testing::Combine(testing::Range(size_t{0}, transports().size()), testing::ValuesIn(ranks));
}

inline std::string name_of(const testing::TestParamInfo<std::tuple<size_t, int>>& info) {
  return transports()[std::get<0>(info.param)].name + "_" + std::to_string(std::get<1>(info.param));
}

}  // namespace tessera::testing_support
