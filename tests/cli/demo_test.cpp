// Runs the built command line, as a user does.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace {

struct Ended {
  std::string output;
  int code = -1;
};

// What it prints on stdout, and on stderr too where `both`.
Ended tessera(const std::string& arguments, bool both = false) {
  const std::string command = std::string("'") + TESSERA_CLI + "' " + arguments + (both ? " 2>&1" : " 2>/dev/null");
  Ended ended;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) ended.output.append(buffer, got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

size_t lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

// Characters, not bytes, of the longest line.
size_t width(const std::string& text) {
  size_t longest = 0, length = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    length = c == '\n' ? 0 : length + 1;
    longest = std::max(longest, length);
  }
  return longest;
}

class Demo : public testing::TestWithParam<int> {
 protected:
  std::string ranks() const { return " --ranks " + std::to_string(GetParam()); }
};

TEST_P(Demo, PassesAndFitsATerminal) {
  const Ended ended = tessera("demo" + ranks(), true);
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_TRUE(ended.output.ends_with("\nall checks passed\n")) << ended.output;
  EXPECT_LE(width(ended.output), 80u) << ended.output;
  EXPECT_LE(lines(ended.output), 45u);
  EXPECT_EQ(ended.output.find('\033'), std::string::npos) << "colours in a pipe";
}

TEST_P(Demo, TellsTheSameAsJson) {
  const Ended ended = tessera("demo --json" + ranks());
  ASSERT_EQ(ended.code, 0);
  const auto json = nlohmann::json::parse(ended.output);
  const auto n = static_cast<size_t>(GetParam());
  EXPECT_EQ(json["ranks"], n);
  EXPECT_EQ(json["passed"], true);
  EXPECT_TRUE(json["failures"].empty());

  const auto rows = json["gather"]["rows"].get<std::vector<int64_t>>();
  ASSERT_EQ(rows.size(), n);
  int64_t total = 0;
  for (const int64_t r : rows) total += r;
  EXPECT_EQ(json["gather"]["result"][0], total);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 0) > 0, n >= 3);

  const auto& gradients = json["gradient"]["of_first_row"];
  EXPECT_FALSE(gradients.empty());
  for (const auto& g : gradients) {
    EXPECT_EQ(g["sum"], g["one_process"]);
    EXPECT_EQ(g["slice"] == g["one_process"], n == 1);
  }
  EXPECT_EQ(json["error"]["class"], n == 1 ? "ShapeError" : "MismatchError");
  EXPECT_NE(json["error"]["text"].get<std::string>().find("Nothing was moved."), std::string::npos);
}

TEST_P(Demo, CountsOneCopyOfEachByte) {
  const auto json = nlohmann::json::parse(tessera("demo --json" + ranks()).output);
  const int64_t row_bytes = json["gather"]["row_bytes"];
  const int64_t whole = json["gather"]["result"][0].get<int64_t>() * row_bytes;
  const auto& gather = json["costs"][0];
  const auto& padded = json["costs"][1];
  ASSERT_EQ(gather["what"], "all_gather");
  ASSERT_EQ(gather["by_rank"].size(), static_cast<size_t>(GetParam()));
  for (size_t r = 0; r < gather["by_rank"].size(); ++r) {
    const int64_t own = json["gather"]["rows"][r].get<int64_t>() * row_bytes;
    EXPECT_EQ(gather["by_rank"][r]["bytes_copied"], whole);
    EXPECT_EQ(gather["by_rank"][r]["bytes_received"], whole - own);
    EXPECT_EQ(gather["by_rank"][r]["exchanges"], 1);
    EXPECT_EQ(gather["by_rank"][r]["allocations"], 1);
    EXPECT_GT(padded["by_rank"][r]["bytes_copied"], whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Demo, testing::Values(1, 2, 3, 4, 7));

// Whoever changes the demo pastes its new output into the README.
TEST(Readme, ShowsWhatTheDemoPrints) {
  std::ifstream file(TESSERA_README);
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(readme.find("\n" + tessera("demo").output), std::string::npos) << tessera("demo").output;
  const auto json = nlohmann::json::parse(tessera("demo --json --ranks 1").output);
  const std::string mistake = json["error"]["text"];
  EXPECT_NE(readme.find(mistake), std::string::npos) << mistake;
}

TEST(CommandLine, HelpsAndSaysItsVersion) {
  const Ended version = tessera("--version");
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(version.output.starts_with("tessera ")) << version.output;
  for (const char* arguments : {"", "--help", "demo --help"}) {
    const Ended help = tessera(arguments);
    EXPECT_EQ(help.code, 0) << arguments;
    EXPECT_NE(help.output.find("Usage:"), std::string::npos) << arguments;
  }
}

TEST(CommandLine, RefusesWhatItDoesNotKnowInOneLine) {
  for (const char* arguments : {"--bogus", "bogus", "demo --bogus", "demo 3", "demo --ranks", "demo --ranks 0",
                                "demo --ranks 65", "demo --ranks four", "demo --rank 3 --json"}) {
    const Ended ended = tessera(arguments, true);
    EXPECT_EQ(ended.code, 2) << arguments;
    EXPECT_EQ(lines(ended.output), 1u) << ended.output;
    EXPECT_TRUE(ended.output.starts_with("tessera: ")) << ended.output;
    EXPECT_EQ(tessera(arguments).output, "") << "errors belong on stderr";
  }
}

}  // namespace
