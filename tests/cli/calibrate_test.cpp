// `tessera calibrate`: what it writes, what it prints, and that it leaves nothing behind. No figure is compared with a time.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <tessera/topology.hpp>

#include "launched.hpp"

namespace tessera::testing_support {
namespace {

using Arguments = std::vector<std::string>;

// As short as it can be.
Arguments calibration(const std::string& output, const Arguments& more, const std::string& up_to = "16KiB") {
  Arguments words = {"calibrate", "--seconds", "0.01", "--up-to", up_to, "--output", output};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Calibrate, WritesPricesForAnyMesh) {
  const Folder folder;
  const std::string file = folder / "new/folder/topology.json";
  const Ending ending = run_cli(calibration(file, {"--ranks", "2"}));
  ASSERT_EQ(ending.code, 0) << ending.errors;
  EXPECT_EQ(ending.errors, "");
  for (const char* piece : {"calibrated for 2 ranks, transport shm", "all_gather(2 ranks)", "reduce_scatter(2 ranks)",
                            "all_reduce(2 ranks)", "all_to_all(2 ranks)", "to other ranks", "predicted", "measured",
                            "geometric mean of the error", "of the noise", "written to"}) {
    EXPECT_NE(ending.output.find(piece), std::string::npos) << piece << "\n" << ending.output;
  }
  const Topology topology = Topology::from_json(read_file(file));
  ASSERT_EQ(topology.axes.size(), 1u);
  EXPECT_EQ(topology.axes[0].name, "*");
  EXPECT_EQ(topology.axes[0].ranks, 2);
  EXPECT_GT(topology.axes[0].link.transfer(1e6), 0);
  EXPECT_LE(topology.axes[0].link.transfer.knots.size(), 10u);
  // With one axis of two ranks the fit cannot tell a base from a hop.
  EXPECT_GT(topology.base_us + topology.axes[0].link.latency_us, 0);
  EXPECT_GT(topology.copy(1e6), 0);
  for (const char* mesh : {"x=2", "dp=2,tp=4"}) {
    const Ending plan = run_cli({"plan", "--mesh", mesh, "--shape", "64x64", "--from", mesh[0] == 'x' ? "S0" : "S0,P",
                                 "--to", mesh[0] == 'x' ? "R" : "R,S1", "--topology", file});
    EXPECT_EQ(plan.code, 0) << plan.errors;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "new/folder"), {}), 1) << "a draft was left";
}

TEST(Calibrate, MeasuresTheAxesOfAMesh) {
  const Folder folder;
  const std::string file = folder / "topology.json";
  // Four ranks on two cores take their time: the fewer sizes, the better.
  const Ending ending =
      run_cli(calibration(file, {"--transport", "threads", "--mesh", "dp=2,one=1,tp=2", "--json"}, "4KiB"));
  ASSERT_EQ(ending.code, 0) << ending.errors;
  const auto report = nlohmann::json::parse(ending.output);
  EXPECT_EQ(report["ranks"], 4);
  EXPECT_EQ(report["transport"], "threads");
  EXPECT_EQ(report["path"], file);
  EXPECT_GE(report["error"].get<double>(), 0);
  EXPECT_GE(report["noise"].get<double>(), 0);
  std::vector<std::string> asked;
  for (const auto& row : report["checks"]) {
    asked.push_back(row["what"]);
    EXPECT_GT(row["predicted_us"].get<double>(), 0) << row;
    EXPECT_GT(row["measured_us"].get<double>(), 0) << row;
  }
  for (const char* what : {"all_gather(dp)", "all_reduce(tp)", "ragged all_to_all(tp)", "direct(dp,tp)"}) {
    EXPECT_NE(std::find(asked.begin(), asked.end(), what), asked.end()) << what;
  }
  const Topology topology = Topology::from_json(read_file(file));
  EXPECT_EQ(topology, Topology::from_json(report["topology"].dump()));
  std::vector<std::string> names;
  for (const auto& axis : topology.axes) names.push_back(axis.name);
  EXPECT_EQ(names, (std::vector<std::string>{"dp", "tp", "*"}));
  // The measured sizes are not asked again.
  for (const auto& m : report["measured"]) {
    for (const auto& row : report["checks"]) {
      if (m["kind"] != row["plan"]) continue;
      EXPECT_NE(m["bytes"].get<double>(), row["bytes"].get<double>()) << row;
    }
  }
}

TEST(Calibrate, WritesWhereItIsLookedFor) {
  const Folder folder;
  const std::string config = folder / "config";
  const char* before = std::getenv("XDG_CONFIG_HOME");
  const std::string kept = before == nullptr ? "" : before;
  setenv("XDG_CONFIG_HOME", config.c_str(), 1);
  unsetenv("TESSERA_TOPOLOGY");
  const Arguments plan = {"plan", "--mesh", "x=2", "--shape",    "8",         "--from",
                          "S0",   "--to",   "R",   "--topology", "calibrated"};
  const Ending without = run_cli(plan);
  const Ending ending = run_cli({"calibrate", "--seconds", "0.05", "--up-to", "1KiB", "--ranks", "2"});
  const Ending with_it = run_cli(plan);
  if (before == nullptr) unsetenv("XDG_CONFIG_HOME");
  else setenv("XDG_CONFIG_HOME", kept.c_str(), 1);
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_NE(ending.output.find(config + "/tessera/topology.json"), std::string::npos) << ending.output;
  EXPECT_EQ(with_it.code, 0) << with_it.errors;
  if (without.code != 0) {  // else there is one in the home of whoever runs this
    EXPECT_NE(without.errors.find("run `tessera calibrate` once"), std::string::npos) << without.errors;
  }
}

TEST(Calibrate, SaysWhereNothingWasChecked) {
  const Folder folder;
  const Ending ending = run_cli(
      {"calibrate", "--seconds", "0.05", "--up-to", "64", "--ranks", "2", "--output", folder / "elsewhere.json"});
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_NE(ending.output.find("Nothing was checked"), std::string::npos) << ending.output;
  EXPECT_EQ(ending.output.find("geometric mean"), std::string::npos) << ending.output;
  EXPECT_NE(ending.output.find("tessera plan --topology " + (folder / "elsewhere.json")), std::string::npos)
      << ending.output;
}

TEST(Calibrate, SaysWhatWasTypedWrongly) {
  const Folder folder;
  const auto complaint = [&](const Arguments& words) {
    const Ending ending = run_cli(calibration(folder / "t.json", words));
    EXPECT_EQ(ending.code, 2) << ending.errors;
    return ending.errors;
  };
  EXPECT_NE(complaint({"--transport", "pigeon"}).find("none of shm, threads"), std::string::npos);
  EXPECT_NE(complaint({"--mesh", "dp"}).find("--mesh: \"dp\" is no mesh axis"), std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=1"}).find("has 1 ranks"), std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=2", "--ranks", "2"}).find("has its own number of ranks"), std::string::npos);
  EXPECT_NE(complaint({"--ranks", "1"}).find("--ranks"), std::string::npos);
  const Ending size = run_cli({"calibrate", "--up-to", "lots"});
  EXPECT_EQ(size.code, 2);
  EXPECT_NE(size.errors.find("--up-to: lots is no size"), std::string::npos) << size.errors;
  const Ending place = run_cli({"calibrate", "--output", "/proc/none/topology.json"});
  EXPECT_EQ(place.code, 1);
  EXPECT_NE(place.errors.find("cannot write /proc/none/topology.json"), std::string::npos) << place.errors;
  EXPECT_FALSE(std::filesystem::exists(folder / "t.json"));
}

// Who leads them, the janitor, the launcher and its keeper, and two ranks.
bool has_begun(const Launched& calibrate) {
  for (int i = 0; i < 6000 && calibrate.family().size() < 6; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return calibrate.family().size() >= 6;
}

TEST(Calibrate, CtrlCLeavesNothing) {
  const Folder folder;
  std::filesystem::create_directory(folder / "out");
  Launched calibrate({"calibrate", "--ranks", "2", "--seconds", "100", "--output", folder / "out/t.json"});
  ASSERT_TRUE(has_begun(calibrate));
  calibrate.signal(SIGINT);
  const Ending ending = calibrate.wait();
  EXPECT_EQ(ending.code, 130) << ending.errors;
  EXPECT_NE(ending.errors.find("interrupted"), std::string::npos) << ending.errors;
  EXPECT_TRUE(calibrate.shrinks_to(0));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

TEST(Calibrate, ADeadRankIsNamed) {
  const Folder folder;
  std::filesystem::create_directory(folder / "out");
  Launched calibrate({"calibrate", "--ranks", "2", "--seconds", "100", "--output", folder / "out/t.json"});
  ASSERT_TRUE(has_begun(calibrate));
  for (const pid_t pid : calibrate.family()) {
    const std::string command = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (command.find("calibrate-player") == std::string::npos || command.find("--no-prefix") != std::string::npos)
      continue;
    kill(pid, SIGKILL);
    break;
  }
  const Ending ending = calibrate.wait();
  EXPECT_EQ(ending.code, 1) << ending.errors;
  EXPECT_NE(ending.errors.find("was killed by signal 9"), std::string::npos) << ending.errors;
  EXPECT_TRUE(calibrate.shrinks_to(0));
  EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
}

}  // namespace
}  // namespace tessera::testing_support
