// `tessera plan`: its answers for people, for programs and for a browser.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launched.hpp"

namespace tessera::testing_support {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Ending run_plan(const Words& words) {
  Words all = {"plan"};
  all.insert(all.end(), words.begin(), words.end());
  return run_cli(all);
}

const Words kNested = {"--mesh", "dp=4,tp=4", "--shape", "4096x4096", "--from", "S0,P", "--to", "S1,S0"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PlanCommand, ShowsStepsBesidePyTorchs) {
  const Ending ending = run_plan(kNested);
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_EQ(ending.errors, "");
  for (const char* piece :
       {"float32 [4096, 4096] on dp=4,tp=4: S0,P(sum) → S1,S0\n", "1 reduce_scatter(tp)", "2 direct(dp,tp)", "total",
        "peak", "PyTorch's default route, in the same prices: 900.52 us, 2.54 times as much", "P(sum) → R"}) {
    EXPECT_NE(ending.output.find(piece), std::string::npos) << piece << "\n" << ending.output;
  }
}

TEST(PlanCommand, TellsTheSameAsJson) {
  const auto plan = json::parse(run_plan(with(kNested, {"--json"})).output);
  EXPECT_EQ(plan["mesh"], "dp=4,tp=4");
  EXPECT_EQ(plan["from"], "S0,P(sum)");
  ASSERT_EQ(plan["steps"].size(), 2u);
  double sum = 0;
  for (const auto& step : plan["steps"]) sum += step["cost_us"].get<double>();
  EXPECT_NEAR(plan["cost_us"], sum, 1e-9);
  EXPECT_EQ(plan["steps"][0]["before"], plan["from"]);
  EXPECT_EQ(plan["steps"][0]["after"], plan["steps"][1]["before"]);
  EXPECT_EQ(plan["steps"][1]["after"], plan["to"]);
  EXPECT_EQ(plan["dtensor_steps"].size(), 3u);
}

TEST(PlanCommand, GoesToAnotherMesh) {
  const auto plan = json::parse(run_plan({"--mesh", "dp=4", "--to-mesh", "tp=2,pp=2@4-7", "--shape", "8x8", "--from",
                                          "S0", "--to", "S1,R", "--json"})
                                    .output);
  EXPECT_EQ(plan["to_mesh"], "tp=2,pp=2@4-7");
  EXPECT_TRUE(plan["dtensor_us"].is_null());
  EXPECT_TRUE(plan["seed_us"].is_null());
  EXPECT_EQ(plan["steps"].back()["after"], "S1,R");
}

TEST(PlanCommand, TakesPricesFromAFile) {
  const Folder folder;
  const std::string path = folder / "topology.json";
  std::ofstream(path) << R"({"base_us": 100, "axes": [{"name": "x", "latency_us": 1, "transfer": [[1024, 2]]}]})";
  const auto plan = json::parse(
      run_plan({"--mesh", "x=2", "--shape", "1024", "--from", "S0", "--to", "R", "--topology", path, "--json"}).output);
  EXPECT_NEAR(plan["cost_us"], 100 + 1 + 4, 1e-9);
  std::ofstream(path) << R"({"base_us": "much", "axes": []})";
  const Ending wrong = run_plan({"--mesh", "x=2", "--shape", "8", "--from", "S0", "--to", "R", "--topology", path});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.errors.find("base_us is no number"), std::string::npos) << wrong.errors;
}

TEST(PlanCommand, KeepsWithinTheLimit) {
  const Words words = {"--mesh", "x=4", "--shape", "8", "--from", "S0", "--to", "R"};
  EXPECT_EQ(run_plan(with(words, {"--max-bytes", "40"})).code, 0);
  const Ending ending = run_plan(with(words, {"--max-bytes", "39"}));
  EXPECT_EQ(ending.code, 1);
  EXPECT_NE(ending.errors.find("the least that would do is 40 bytes"), std::string::npos) << ending.errors;
}

TEST(PlanCommand, SaysWhatWasTypedWrongly) {
  const auto complaint = [](const Words& words) {
    const Ending ending = run_plan(words);
    EXPECT_EQ(ending.code, 2) << ending.errors;
    EXPECT_EQ(ending.output, "");
    return ending.errors;
  };
  EXPECT_NE(complaint({}).find("--mesh is required"), std::string::npos);
  EXPECT_NE(
      complaint({"--mesh", "dp", "--shape", "8", "--from", "R", "--to", "R"}).find("--mesh: \"dp\" is no mesh axis"),
      std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=2", "--shape", "8x", "--from", "R", "--to", "R"}).find("--shape"),
            std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=2", "--shape", "8", "--from", "S1", "--to", "R"}).find("--from: axis x: dim 1 "),
            std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=2", "--shape", "8", "--from", "R", "--to", "R,R"}).find("--to: the layout"),
            std::string::npos);
  EXPECT_NE(complaint({"--mesh", "x=2", "--shape", "8", "--dtype", "f33", "--from", "R", "--to", "R"}).find("--dtype"),
            std::string::npos);
  EXPECT_NE(complaint({"--batch", "/nowhere"}).find("cannot read /nowhere"), std::string::npos);
}

// Every case of the golden file, through the command line.
TEST(PlanCommand, AnswersABatch) {
  const auto data = std::filesystem::path(__FILE__).parent_path().parent_path() / "data/redistribute_cost.json";
  const auto cases = json::parse(read_file(data.string()));
  const Folder folder;
  {
    std::ofstream lines(folder / "cases");
    for (const auto& c : cases) lines << c.dump() << "\n";
  }
  const Ending ending = run_plan({"--batch", folder / "cases"});
  EXPECT_EQ(ending.code, 0) << ending.errors;
  const auto answers = lines_of(ending.output);
  ASSERT_EQ(answers.size(), cases.size());
  const auto near = [](const json& a, const json& b) {
    return std::abs(a.get<double>() - b.get<double>()) <= 1e-9 * std::max(1.0, b.get<double>());
  };
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto answer = json::parse(answers[i]);
    EXPECT_TRUE(near(answer["seed_us"], cases[i]["seed_us"])) << cases[i] << answer;
    EXPECT_TRUE(near(answer["dtensor_us"], cases[i]["torch_us"])) << cases[i] << answer;
    EXPECT_LE(answer["cost_us"].get<double>(), cases[i]["torch_min_us"].get<double>() + 1e-9) << cases[i] << answer;
    EXPECT_TRUE(answer["steps"].is_array());
  }
}

TEST(PlanCommand, ABatchGoesOnAfterAWrongLine) {
  LaunchOptions options;
  options.input = "{\"mesh\":[2]}\n\nnonsense\n{\"mesh\":\"x=2\",\"shape\":[4],\"from\":\"S0\",\"to\":\"R\"}\n";
  const Ending ending = run_cli({"plan", "--batch", "-"}, options);
  EXPECT_EQ(ending.code, 1);
  const auto answers = lines_of(ending.output);
  ASSERT_EQ(answers.size(), 3u) << ending.output;
  EXPECT_TRUE(json::parse(answers[0]).contains("error"));
  EXPECT_TRUE(json::parse(answers[1]).contains("error"));
  EXPECT_EQ(json::parse(answers[2])["steps"].size(), 1u);
}

TEST(PlanCommand, ABatchNamesTheField) {
  LaunchOptions options;
  const std::pair<const char*, const char*> lines[] = {
      {R"({"mesh":[2.9],"shape":[4],"from":"S0","to":"R"})", "the line's mesh: the line's mesh[0] is no whole number"},
      {R"({"mesh":null,"shape":[4],"from":"S0","to":"R"})", "the line's mesh: the line's mesh is no list"},
      {R"({"mesh":[2],"shape":[8.7],"from":"S0","to":"R"})", "the line's shape[0] is no whole number"},
      {R"({"mesh":[2],"shape":[18446744073709551615],"from":"S0","to":"R"})", "the line's shape[0] is no whole number"},
      {R"({"mesh":[2],"shape":[4],"from":"S0"})", "the line has no to"},
      {R"({"mesh":[2],"shape":[4],"from":"S0","to":"R","max_bytes":1e300})", "the line's max_bytes is no whole number"},
      {R"({"mesh":[2],"shape":[4],"from":"S0\xff","to":"R"})", "invalid string"},
      {R"({"mesh":[2],"shape":[4],"from":"S0,\u00e9","to":"R"})", "the line's from: "},
  };
  for (const auto& [line, complaint] : lines) options.input += std::string(line) + "\n";
  options.input += "{\"mesh\":[2],\"shape\":[4],\"from\":\"S\xff\",\"to\":\"R\"}\n";
  options.input += R"({"mesh":[2],"shape":[4],"from":"S0","to":"R"})";
  const Ending ending = run_cli({"plan", "--batch", "-"}, options);
  const auto answers = lines_of(ending.output);
  ASSERT_EQ(answers.size(), std::size(lines) + 2) << ending.output << ending.errors;
  for (size_t i = 0; i < std::size(lines); ++i) {
    const std::string error = json::parse(answers[i]).value("error", "");
    EXPECT_NE(error.find(lines[i].second), std::string::npos) << lines[i].first << ": " << error;
  }
  EXPECT_TRUE(json::parse(answers[answers.size() - 2]).contains("error"));
  EXPECT_TRUE(json::parse(answers.back()).contains("steps")) << answers.back();
}

// The page in a browser: what it shows once its script has run.
class PlanPage : public ::testing::Test {
 protected:
  std::string page(const Words& words) {
    path_ = folder_ / "plan.html";
    const Ending ending = run_plan(with(words, {"--html", path_}));
    EXPECT_EQ(ending.code, 0) << ending.errors;
    return read_file(path_);
  }
  // The document at that step.
  std::string browse(int step) {
    const std::string out = folder_ / "dom";
    const std::string command =
        "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=" +
        (folder_ / "profile") + " --virtual-time-budget=5000 --dump-dom 'file://" + path_ +
        "#step=" + std::to_string(step) + "' > " + out + " 2> /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_file(out);
  }
  static bool has_browser() { return std::system("command -v chromium > /dev/null 2>&1") == 0; }

  Folder folder_;
  std::string path_;
};

TEST_F(PlanPage, NeedsNothingFromElsewhere) {
  const std::string text = page(kNested);
  EXPECT_EQ(text.find("src="), std::string::npos);
  EXPECT_EQ(text.find("href"), std::string::npos);
  EXPECT_EQ(text.find("@import"), std::string::npos);
  EXPECT_EQ(count_of(text, "http"), 1) << "only the name of SVG";
}

TEST_F(PlanPage, ShowsEachStepInABrowser) {
  if (!has_browser()) GTEST_SKIP() << "chromium is not installed";
  page(kNested);
  for (const int step : {0, 1, 2}) {
    const std::string dom = browse(step);
    EXPECT_NE(dom.find("data-ready=\"yes\""), std::string::npos);
    EXPECT_NE(dom.find("data-step=\"" + std::to_string(step) + "\""), std::string::npos);
    EXPECT_EQ(count_of(dom, "class=\"rank\""), 16);
    EXPECT_EQ(count_of(dom, "class=\"part\""), 16);
    // A reduce-scatter within each of four rows of four, then one box to another rank for all off the diagonal.
    EXPECT_EQ(count_of(dom, "class=\"arrow\""), step == 0 ? 0 : step == 1 ? 4 * 4 * 3 : 12);
    EXPECT_EQ(count_of(dom, "fill=\"url(#stripes)\""), step == 0 ? 16 : 0);
  }
}

TEST_F(PlanPage, TheSliderMovesThroughTheSteps) {
  if (!has_browser()) GTEST_SKIP() << "chromium is not installed";
  page(kNested);
  std::ofstream(path_, std::ios::app) << "<script>const knob = document.getElementById('slider'); knob.value = 2;"
                                         "knob.dispatchEvent(new Event('input'));</script>";
  const std::string dom = browse(0);
  EXPECT_NE(dom.find("data-step=\"2\""), std::string::npos);
  EXPECT_NE(dom.find("after step 2: S1,S0"), std::string::npos);
}

TEST_F(PlanPage, ShowsThreeDimensionsAndManyRanks) {
  if (!has_browser()) GTEST_SKIP() << "chromium is not installed";
  page({"--mesh", "a=4,b=4,c=4", "--shape", "64x32x16", "--from", "S0,S1,S2", "--to", "At(0),R,R"});
  const std::string before = browse(0);
  EXPECT_EQ(count_of(before, "class=\"rank\""), 64);
  EXPECT_EQ(count_of(before, "class=\"part\""), 64 * 3) << "three faces each";
  const std::string after = browse(9);  // past the last is the last
  EXPECT_EQ(count_of(after, "class=\"part\""), 16 * 3);
  EXPECT_EQ(count_of(after, ">nothing<"), 48);
}

TEST_F(PlanPage, RefusesWhatItCannotShow) {
  const Words more = {"--html", folder_ / "page.html"};
  const Ending ranks = run_plan(with({"--mesh", "x=65", "--shape", "8", "--from", "S0", "--to", "R"}, more));
  EXPECT_EQ(ranks.code, 1);
  EXPECT_NE(ranks.errors.find("at most 64 ranks"), std::string::npos) << ranks.errors;
  const Ending dims = run_plan(with({"--mesh", "x=2", "--shape", "2x2x2x2", "--from", "S0", "--to", "R"}, more));
  EXPECT_NE(dims.errors.find("up to 3 dimensions"), std::string::npos) << dims.errors;
  const Ending place = run_plan(with(kNested, {"--html", "/nowhere/page.html"}));
  EXPECT_EQ(place.code, 1);
  EXPECT_NE(place.errors.find("cannot write /nowhere/page.html"), std::string::npos) << place.errors;
}

}  // namespace
}  // namespace tessera::testing_support
