// `tessera doctor`: that it tells the same in both forms, and only what can be.
#include <sys/prctl.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "comm/statement.hpp"
#include "launched.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::testing_support {
namespace {

TEST(Doctor, ReportsReadably) {
  const Ending ending = run_cli({"doctor"});
  EXPECT_TRUE(ending.output.starts_with("tessera ")) << ending.output;
  EXPECT_EQ(ending.output.find('\033'), std::string::npos) << "colours in a pipe";
  EXPECT_EQ(ending.errors, "");
  for (const char* topic : {"cores", "memory", "huge pages", "/dev/shm", "shared memory", "ends", "waking",
                            "cross-memory", "small", "shared heap", "other memory", "address space", "open files",
                            "hwloc", "MPI", "between hosts", "PyTorch", "GPUs"}) {
    EXPECT_NE(ending.output.find(topic), std::string::npos) << topic;
  }
  EXPECT_EQ(ending.output.ends_with("\nRanks can be processes of this machine.\n"), ending.code == 0) << ending.output;
}

TEST(Doctor, TellsTheSameAsJson) {
  const Ending ending = run_cli({"doctor", "--json"});
  const auto json = nlohmann::json::parse(ending.output);
  EXPECT_EQ(json["ranks_work"], ending.code == 0);
  std::set<std::string> topics;
  for (const auto& check : json["checks"]) {
    EXPECT_TRUE(topics.insert(check["topic"]).second) << check;
    const std::string mark = check["mark"];
    EXPECT_TRUE(mark == "ok" || mark == "note" || mark == "problem") << check;
    EXPECT_FALSE(check["text"].get<std::string>().empty()) << check;
    EXPECT_TRUE(mark != "problem" || !check["remedy"].get<std::string>().empty()) << check;
  }
  EXPECT_GE(topics.size(), 14u);
}

// What it says of the thresholds is what is in use.
TEST(Doctor, NamesTheThresholdsInUse) {
  const std::string text = run_cli({"doctor"}).output;
  EXPECT_NE(text.find(fmt::format("up to {} KiB: travels within", kInlineBytes / 1024)), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("{} KiB with 2 ranks", shm::eager_bytes(2) / 1024)), std::string::npos) << text;
}

// What a process must not have, those that it starts must not have either.
TEST(Doctor, TriesHugePagesForSharedMemory) {
  const auto said = [] {
    const auto json = nlohmann::json::parse(run_cli({"doctor", "--json"}).output);
    for (const auto& check : json["checks"]) {
      if (check["topic"] == "huge pages") return check["text"].get<std::string>();
    }
    return std::string("nothing");
  };
  ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  const std::string forbidden = said();
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  if (forbidden.starts_with("this kernel has no")) GTEST_SKIP() << forbidden;
  EXPECT_NE(forbidden.find("none, its pages are of 4 KiB"), std::string::npos) << forbidden;
  const std::string allowed = said();
  EXPECT_NE(allowed.find("shared memory ("), std::string::npos) << allowed;
}

// By what schedules between hosts are chosen.
TEST(Doctor, NamesThePricesBetweenHosts) {
  EXPECT_NE(run_cli({"doctor"}).output.find("20 us a round, 1 us a message, 10 GB/s"), std::string::npos);
  const Folder folder;
  std::ofstream(folder / "prices.json")
      << R"({"exchange_base_us": 7, "axes": [{"name": "hosts", "latency_us": 2, "transfer": [[5000, 1]]}]})";
  setenv("TESSERA_NETWORK", (folder / "prices.json").c_str(), 1);
  const std::string given = run_cli({"doctor"}).output;
  setenv("TESSERA_NETWORK", (folder / "none").c_str(), 1);
  const std::string wrong = run_cli({"doctor"}).output;
  unsetenv("TESSERA_NETWORK");
  EXPECT_NE(given.find("7 us a round, 2 us a message, 5 GB/s"), std::string::npos) << given;
  EXPECT_NE(wrong.find("cannot read the topology"), std::string::npos) << wrong;
}

// Every test of ranks as processes passes here, so these must work here.
TEST(Doctor, FindsWhatRanksNeed) {
  const auto json = nlohmann::json::parse(run_cli({"doctor", "--json"}).output);
  for (const auto& check : json["checks"]) EXPECT_NE(check["mark"], "problem") << check;
}

TEST(Doctor, MeasuresEachWay) {
  const auto json = nlohmann::json::parse(run_cli({"doctor", "--json"}).output);
  if (shm::memory_limit().available_bytes < int64_t{1} << 30) GTEST_SKIP() << "too little memory is free to measure";
  ASSERT_TRUE(json.contains("bytes_per_second"));
  const auto& speeds = json["bytes_per_second"];
  ASSERT_EQ(speeds["copies"].size(), 4u);
  EXPECT_EQ(speeds["copies"][0]["bytes"], 4096);
  EXPECT_EQ(speeds["copies"][3]["bytes"], 16 << 20);
  for (const auto& copy : speeds["copies"]) {
    EXPECT_GT(copy["in_place"], 1e6);
    EXPECT_GT(copy["two_copies"], 1e6);
    if (!copy["cross_memory"].is_null()) {
      EXPECT_GT(copy["cross_memory"], 1e6);
    }
  }
  if (!speeds["cross_memory_wins"].is_null()) {
    EXPECT_GE(speeds["cross_memory_wins"]["from"], 4096);
  }
  for (const char* name : {"fresh_shared", "warm_shared", "fresh_private_huge"}) {
    EXPECT_GT(speeds["first_write"][name], 1e6) << name;
  }
}

}  // namespace
}  // namespace tessera::testing_support
