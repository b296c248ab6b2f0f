// Runs `tessera bench` as a user does, in small. Nothing here looks at how fast anything is.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "players/case.hpp"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// As far as it goes: a file of a process may end with it.
std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <class Pred>
bool eventually(const Pred& pred) {
  for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;) {
    if (pred()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

// A folder of its own for temporary files, by which what a run leaves behind is found: files in it, and processes that
// have it in their environment.
class Bench : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
    fs::create_directory(temp());
  }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(temp())) << "left behind: " << fs::directory_iterator(temp())->path();
    EXPECT_EQ(players("").size(), 0u) << "a process was left behind";
    for (const pid_t pid : players("")) kill(pid, SIGKILL);
    fs::remove_all(folder_);
  }

  fs::path temp() const { return folder_ / "tmp"; }
  fs::path file(const std::string& name) const { return folder_ / name; }

  pid_t start(const std::vector<std::string>& arguments) const {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    setenv("TMPDIR", temp().c_str(), 1);
    if (freopen(file("out").c_str(), "w", stdout) == nullptr) _exit(99);
    if (freopen(file("err").c_str(), "w", stderr) == nullptr) _exit(99);
    std::vector<char*> words = {const_cast<char*>(TESSERA_CLI), const_cast<char*>("bench")};
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(99);
  }
  static int code_of(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int run(const std::vector<std::string>& arguments) const { return code_of(start(arguments)); }
  std::string out() const { return read_file(file("out")); }
  std::string err() const { return read_file(file("err")); }

  // Processes of this run, other than zombies, whose command line has these words.
  std::vector<pid_t> players(const std::string& words) const {
    std::vector<pid_t> list;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::string line = read_file(entry.path() / "cmdline");
      std::replace(line.begin(), line.end(), '\0', ' ');
      if (read_file(entry.path() / "environ").find("TMPDIR=" + temp().string()) == std::string::npos) continue;
      if (line.find(words) != std::string::npos) list.push_back(std::stoi(name));
    }
    return list;
  }

  fs::path folder_;
};

const std::vector<std::string> kSmall = {"--transport", "threads",    "--against", "memcpy,memcpy-fresh",
                                         "--sizes",     "1KiB,20KiB", "--seconds", "0.01"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kSmallProcesses = {"--against", "none", "--sizes", "1KiB,20KiB", "--seconds", "0.01"};

TEST_F(Bench, InputsAreWrittenBeforeEachCallAndOutputsReadAfterItIfAsked) {
  for (const char* op : {"redistribute", "broadcast", "all_reduce"}) {
    ASSERT_EQ(run(with({op, "--rewrite", "--read", "--json", file("json")}, kSmall)), 0) << err();
    EXPECT_NE(out().find("written before each call"), std::string::npos) << out();
    EXPECT_NE(out().find("read after each call"), std::string::npos) << out();
    EXPECT_EQ(nlohmann::json::parse(read_file(file("json")))["rewrite"], true);
    EXPECT_EQ(nlohmann::json::parse(read_file(file("json")))["read"], true);
  }
}

class BenchOp : public Bench, public testing::WithParamInterface<std::string> {};

TEST_P(BenchOp, MeasuresBothAndFindsNothingWrong) {
  for (const char* ranks : {"1", "2", "3"}) {
    const auto arguments =
        with({GetParam(), "--ranks", ranks, "--output", "recycled,fresh,given", "--json", file("json")}, kSmall);
    ASSERT_EQ(run(arguments), 0) << err();
    EXPECT_EQ(err(), "") << "a progress bar in a file";
    EXPECT_NE(out().find("#wrong"), std::string::npos) << out();
    const auto json = nlohmann::json::parse(read_file(file("json")));
    EXPECT_EQ(json["op"], GetParam());
    EXPECT_EQ(json["ranks"], std::stoi(ranks));
    EXPECT_TRUE(json["notes"].empty());
    EXPECT_GT(json["machine"]["cores"], 0);
    ASSERT_EQ(json["cases"].size(), 2u);
    for (const auto& row : json["cases"]) {
      ASSERT_EQ(row["results"].size(), 5u);  // recycled, fresh, given, memcpy, memcpy-fresh
      for (const auto& result : row["results"]) {
        EXPECT_EQ(result["wrong"], 0) << result;
        EXPECT_GT(result["samples"], 0);
        EXPECT_LE(result["best_us"], result["p50_us"]);
        EXPECT_LE(result["p50_us"], result["p99_us"]);
        for (const char* column : {"algbw_gb_s", "busbw_gb_s"}) EXPECT_TRUE(result.contains(column)) << column;
      }
      EXPECT_GT(row["results"][0]["ratio"]["memcpy"], 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, BenchOp,
                         testing::Values("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast",
                                         "redistribute"),
                         [](const auto& op) { return op.param; });

TEST_F(Bench, MeasuresRanksThatAreProcesses) {
  ASSERT_EQ(run(with({"all_gather", "--ranks", "3", "--json", file("json")}, kSmallProcesses)), 0) << err();
  const auto json = nlohmann::json::parse(read_file(file("json")));
  EXPECT_EQ(json["transport"], "shm");
  for (const auto& row : json["cases"]) {
    ASSERT_EQ(row["results"].size(), 2u);
    EXPECT_EQ(row["results"][0]["memory"], "heap");
    EXPECT_EQ(row["results"][1]["memory"], "ordinary");
    for (const auto& result : row["results"]) EXPECT_EQ(result["wrong"], 0) << result;
  }
}

TEST_F(Bench, CutsAsAsked) {
  const auto arguments = with(
      {"all_gather", "--ranks", "4", "--dims", "0,1", "--skew", "even,ragged,one", "--json", file("json")}, kSmall);
  ASSERT_EQ(run(arguments), 0) << err();
  const auto json = nlohmann::json::parse(read_file(file("json")));
  ASSERT_EQ(json["cases"].size(), 12u);
  for (const auto& row : json["cases"]) {
    const auto bytes = row["input_bytes"].get<std::vector<int64_t>>();
    const int64_t size = row["size_bytes"];
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), 4 * size) << row;
    const auto mean_of = [&](double factor) { return static_cast<int64_t>(static_cast<double>(size) * factor); };
    if (row["skew"] == "even") {
      EXPECT_EQ(bytes, std::vector<int64_t>(4, size));
    }
    if (row["skew"] == "ragged") {
      EXPECT_EQ(bytes, (std::vector<int64_t>{mean_of(0.5), mean_of(1.5), mean_of(0.75), mean_of(1.25)}));
    }
    if (row["skew"] == "one") {
      EXPECT_GE(bytes[0], 3 * size);
    }
  }
}

// Not a parser of XML: every tag is closed in order, and there is a line for each contender.
TEST_F(Bench, DrawsAChart) {
  const auto arguments = with({"all_gather", "--skew", "even,ragged", "--svg", file("chart.svg")}, kSmall);
  ASSERT_EQ(run(arguments), 0) << err();
  const std::string svg = read_file(file("chart.svg"));
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, svg.find_first_of(" >", at) - at - 1);
    if (tag.starts_with("/")) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (svg[end - 1] != '/') {
      open.push_back(tag);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_NE(svg.find(">memcpy</text>"), std::string::npos);
  EXPECT_NE(svg.find(">20 KiB</text>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST_F(Bench, RefusesWhatItDoesNotKnowInOneLine) {
  const std::vector<std::vector<std::string>> mistakes = {{},
                                                          {"bogus"},
                                                          {"all_gather", "--sizes", "big"},
                                                          {"all_gather", "--sizes", "0"},
                                                          {"all_gather", "--sizes", ""},
                                                          {"all_gather", "--sizes", "1KiB,8GiB"},
                                                          {"all_gather", "--sizes", "999TiB"},
                                                          {"all_gather", "--skew", "odd"},
                                                          {"all_gather", "--dims", "2"},
                                                          {"all_gather", "--ranks", "0"},
                                                          {"all_gather", "--against", "nccl"},
                                                          {"all_gather", "--seconds", "-1"},
                                                          {"all_gather", "--seconds", "0"},
                                                          {"reduce_scatter", "--dims", "1"},
                                                          {"reduce_scatter", "--against", "mpi-raw"},
                                                          {"all_to_all", "--against", "mpich-least"},
                                                          {"all_reduce", "--skew", "ragged"},
                                                          {"all_gather", "--bogus"}};
  for (const auto& arguments : mistakes) {
    const std::string last = arguments.empty() ? "" : arguments.back();
    EXPECT_EQ(run(arguments), 2) << last;
    EXPECT_EQ(out(), "") << last;
    const std::string text = err();
    EXPECT_TRUE(text.starts_with("tessera")) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_LT(text.size(), 200u) << text;
  }
  run({"all_gather", "--sizes", "999TiB"});
  EXPECT_NE(err().find("999TiB is not between 1 byte and 4 GiB"), std::string::npos);
  EXPECT_EQ(run({"all_gather", "--json", "/nowhere/at/all"}), 1);
  EXPECT_NE(err().find("/nowhere/at/all"), std::string::npos) << err();
}

TEST_F(Bench, LeavesOutWhoIsNotThere) {
  ASSERT_EQ(run({"all_gather", "--transport", "threads", "--against", "gloo,memcpy", "--python", "/nowhere/python",
                 "--sizes", "1KiB", "--seconds", "0.01"}),
            0)
      << err();
  EXPECT_NE(out().find("gloo: /nowhere/python"), std::string::npos) << out();
  EXPECT_NE(out().find("memcpy"), std::string::npos) << out();
}

TEST_F(Bench, NamesAPlayerThatDies) {
  const pid_t pid = start(
      with({"all_gather", "--seconds", "100"}, {"--transport", "threads", "--against", "memcpy", "--sizes", "1KiB"}));
  ASSERT_TRUE(eventually([&] { return players("bench-player memcpy").size() == 2; }));
  std::this_thread::sleep_for(200ms);
  kill(players("bench-player memcpy").back(), SIGKILL);
  EXPECT_EQ(code_of(pid), 1);
  EXPECT_NE(err().find("memcpy"), std::string::npos) << err();
}

TEST_F(Bench, EndsAllOnCtrlC) {
  for (const auto wait : {0ms, 300ms}) {  // while they start, and while they play
    const pid_t pid = start({"all_gather", "--seconds", "100", "--against", "memcpy"});
    ASSERT_TRUE(eventually([&] { return !players("bench-player").empty(); }));
    std::this_thread::sleep_for(wait);
    kill(pid, SIGINT);
    EXPECT_EQ(code_of(pid), 130);
    EXPECT_EQ(players("").size(), 0u);
    EXPECT_TRUE(fs::is_empty(temp()));
  }
}

TEST_F(Bench, LeavesNothingWhenItIsKilled) {
  const pid_t pid = start({"all_gather", "--seconds", "100", "--against", "memcpy"});
  ASSERT_TRUE(eventually([&] { return players("bench-player memcpy").size() == 2; }));
  kill(pid, SIGKILL);
  EXPECT_EQ(code_of(pid), -1);
  EXPECT_TRUE(eventually([&] { return players("").empty() && fs::is_empty(temp()); }));
}

// What #wrong rests on: every player counts with these functions, or, in Python, with ones that give the same numbers.
TEST(BenchValues, AWrongElementIsCounted) {
  using namespace tessera::bench;
  Case c{.op = Op::all_gather, .dim = 0, .across = 64, .extents = {65536, 3}, .sets = 2};
  std::vector<float> whole(static_cast<size_t>(output_elements(c, 0)));
  fill_input(c, 0, 0, whole.data());
  fill_input(c, 1, 0, whole.data() + 65536 * 64);
  EXPECT_EQ(count_wrong(c, 0, 0, whole.data()), 0);
  EXPECT_GT(count_wrong(c, 0, 1, whole.data()), 65000 * 64) << "another set's result passes";
  std::copy_n(whole.begin(), 64, whole.begin() + 65536 * 64);
  EXPECT_GT(count_wrong(c, 0, 0, whole.data()), 60) << "a row from 2¹⁶ rows before passes";

  Case sum{.op = Op::all_reduce, .dim = 0, .across = 2, .extents = {1, 1}, .sets = 1};
  std::vector<float> a(4), b(4), total(4);
  fill_input(sum, 0, 0, a.data());
  fill_input(sum, 1, 0, b.data());
  for (size_t i = 0; i < 4; ++i) total[i] = a[i] + b[i];
  EXPECT_EQ(count_wrong(sum, 1, 0, total.data()), 0);
  EXPECT_EQ(count_wrong(sum, 1, 0, a.data()), 4);
}

TEST(BenchValues, ALineTellsTheWholeCase) {
  using namespace tessera::bench;
  const Case c{.op = Op::all_to_all,
               .dim = 0,
               .across = 8,
               .extents = {2, 5},
               .counts = {0, 2, 4, 1},
               .sets = 3,
               .memory = "heap",
               .output = "fresh"};
  const Case again = to_case(parse_line(to_line(c)));
  EXPECT_EQ(to_line(again), to_line(c));
  EXPECT_EQ(again.counts, c.counts);
  EXPECT_EQ(output_elements(again, 0), 4 * 8);
  EXPECT_EQ(output_of(again, 1)[1].row, 2 + 4);
}

}  // namespace
