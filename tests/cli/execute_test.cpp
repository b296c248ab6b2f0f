// `tessera plan --execute`: plans that run on ranks and are checked there.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tessera/tessera.hpp>

#include "../../cli/layout_values.hpp"
#include "launched.hpp"

namespace tessera::testing_support {
namespace {

struct PlannedMove {
  int ranks;
  const char *mesh, *from, *to;
  const char* shape = "24x20";
  const char* dtype = "f32";
  const char* to_mesh = "";
  int holders = 0;  // 0: all
};

std::vector<std::string> words_of(const PlannedMove& move, int ranks, bool json) {
  std::vector<std::string> words = {"run",         "-n",       std::to_string(ranks),
                                    "--no-prefix", "--",       TESSERA_CLI,
                                    "plan",        "--mesh",   move.mesh,
                                    "--from",      move.from,  "--to",
                                    move.to,       "--shape",  move.shape,
                                    "--dtype",     move.dtype, "--execute"};
  if (*move.to_mesh != '\0') words.insert(words.end(), {"--to-mesh", move.to_mesh});
  if (json) words.emplace_back("--json");
  return words;
}

// One rank, and no launcher.
TEST(PlanExecute, RunsAlone) {
  const Ending ending = run_cli({"plan", "--mesh", "a=1", "--shape", "4x4", "--from", "S0", "--to", "S1", "--execute"});
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_TRUE(ending.output.ends_with("checked 16 elements on 1 rank: all right\n")) << ending.output;
}

TEST(PlanExecute, EveryElementIsRight) {
  const PlannedMove moves[] = {
      {2, "x=2", "S0", "S1"},
      {2, "x=2", "P", "R"},
      {2, "x=2", "S0[5,19]", "S0"},
      {2, "x=2", "At(0)", "S1", "7x3", "bf16"},
      {2, "x=2", "R", "At(1)", "24x20", "f32", "", 1},
      {4, "dp=2,tp=2", "S0,P", "S1,S0", "10x10", "i32"},
      {4, "dp=2,tp=2", "P(max),R", "S0[3,21],S1", "24x20", "f16"},
      {4, "dp=2,tp=2", "P(bit_xor),P(bit_xor)", "R,R", "24x20", "u8"},
      {4, "dp=2", "S0", "S1", "24x20", "c64", "x=2@2-3", 2},
      {4, "dp=2", "P", "S0[20,4]", "24x20", "f64", "x=2@1,3", 2},
      {8, "dp=2,tp=4", "S0,P(avg)", "R,S1[1,0,10,9]"},
      {8, "dp=2,tp=4", "S0[9,15]@dp,At(3)", "P(sum),S0", "24x20", "bool"},
      {8, "dp=2,tp=4", "S0@tp,dp", "R,P(prod)", "24x20", "f8e4m3"},
      // So large that an all_reduce has two halves, beside axes that cut in an order of their own.
      {8, "a=2,b=2,c=2", "S0@b,a,P", "S0@b,a,R", "64x256"},
      {8, "a=2,b=2,c=2", "P,S0@c,b", "R,S0@c,b", "64x256"},
      {8, "a=2,b=2,c=2", "S0[10,20,30,4]@b,a,P(max)", "S0[10,20,30,4]@b,a,R", "64x256"},
  };
  for (const PlannedMove& move : moves) {
    const Ending ending = run_cli(words_of(move, move.ranks, false));
    EXPECT_EQ(ending.code, 0) << move.from << " to " << move.to << ": " << ending.errors << ending.output;
    EXPECT_EQ(ending.errors, "");
    const int holders = move.holders == 0 ? move.ranks : move.holders;
    const std::string end = holders == 1 ? " elements on 1 rank: all right\n"
                                         : " elements on " + std::to_string(holders) + " ranks: all right\n";
    EXPECT_TRUE(ending.output.ends_with(end)) << ending.output;
    EXPECT_EQ(count_of(ending.output, "all right"), 1) << "only rank 0 prints";
    EXPECT_NE(ending.output.find("predicted"), std::string::npos) << ending.output;
  }
}

TEST(PlanExecute, TheBytesAreThoseOfThePlan) {
  const PlannedMove move{4, "dp=2,tp=2", "S0,P", "S1,S0", "256x256"};
  const Ending ending = run_cli(words_of(move, 4, true));
  ASSERT_EQ(ending.code, 0) << ending.errors;
  const auto plan = nlohmann::json::parse(ending.output);
  const auto& executed = plan["executed"];
  EXPECT_EQ(executed["bytes"], plan["bytes"]);
  ASSERT_EQ(executed["steps"].size(), plan["steps"].size());
  for (size_t i = 0; i < plan["steps"].size(); ++i) {
    EXPECT_EQ(executed["steps"][i]["bytes"], plan["steps"][i]["bytes"]);
    EXPECT_GT(executed["steps"][i]["measured_us"].get<double>(), 0);
  }
  EXPECT_EQ(executed["elements"], 256 * 256);
  EXPECT_EQ(executed["ranks"], 4);
  EXPECT_EQ(executed["wrong"], "");
  EXPECT_GE(executed["runs"].get<int>(), 5);
}

TEST(PlanExecute, MoreRanksThanAPlanHasAreFine) {
  const Ending ending = run_cli(words_of({2, "x=2", "S0", "R"}, 3, false));
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_NE(ending.output.find("checked 960 elements on 2 ranks: all right"), std::string::npos) << ending.output;
}

TEST(PlanExecute, FewerRanksThanAPlanHasAreAnError) {
  const Ending few = run_cli(words_of({8, "dp=2,tp=4", "S0,R", "R,R"}, 2, false));
  EXPECT_EQ(few.code, 2) << few.output;
  EXPECT_EQ(few.output, "");
  EXPECT_NE(few.errors.find("ranks 0 to 7, and only 2 run; say: tessera run -n 8 --"), std::string::npos) << few.errors;
  EXPECT_EQ(count_of(few.errors, "ranks 0 to 7"), 1) << few.errors;
  const Ending plain = run_cli(
      {"plan", "--mesh", "x=2", "--to-mesh", "y=2@3-4", "--shape", "8", "--from", "S0", "--to", "S0", "--execute"});
  EXPECT_EQ(plain.code, 2) << plain.output;
  EXPECT_NE(plain.errors.find("ranks 0 to 4, and this was started as one; say: tessera run -n 5 --"), std::string::npos)
      << plain.errors;
  const Ending wrong = run_cli(words_of({2, "x=2", "S7", "R"}, 2, false));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(count_of(wrong.errors, "--from"), 1) << wrong.errors;
}

// What "all right" rests on.
TEST(LayoutValues, TermsReduceToTheValue) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2, DType::i64, DType::u8,
                            DType::boolean, DType::c64}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                              ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
      try {
        check_reducible(op, dtype);
      } catch (const DTypeError&) {
        continue;
      }
      for (const int ranks : {1, 2, 3, 4}) {
        const Mesh mesh({{"x", ranks}});
        const Layout terms(mesh, {Partial(op)}), whole(mesh, {Replicate()});
        const Dims shape = {13, 7};
        run(ranks, [&](Comm& comm) {
          const Tensor sum = all_reduce(comm, cli::part_of(terms, shape, dtype, comm.rank()), op);
          const auto wrong = cli::first_wrong(sum, whole, shape, dtype, comm.rank());
          EXPECT_FALSE(wrong) << fmt::format("{} {} {}: {}", dtype, name(op), ranks, *wrong);
        });
      }
    }
  }
}

TEST(LayoutValues, TheFirstWrongElementIsNamed) {
  const Mesh mesh({{"x", 2}});
  const Layout rows(mesh, {Shard(0)});
  const Dims shape = {8, 5};
  const Tensor part = cli::part_of(rows, shape, DType::i32, 1);
  EXPECT_FALSE(cli::first_wrong(part, rows, shape, DType::i32, 1));
  part.at<int32_t>(2, 3) = -7;
  part.at<int32_t>(3, 0) = -8;
  const std::string text = *cli::first_wrong(part, rows, shape, DType::i32, 1);
  EXPECT_NE(text.find("element [6, 3] (local [2, 3])"), std::string::npos) << text;
  EXPECT_NE(text.find("-7"), std::string::npos) << text;
  EXPECT_TRUE(cli::first_wrong(Tensor(), rows, shape, DType::i32, 1));
  EXPECT_TRUE(cli::first_wrong(part, rows, shape, DType::i32, 0)) << "another rank's part";
  EXPECT_TRUE(cli::first_wrong(part, rows, shape, DType::f32, 1));
  EXPECT_TRUE(cli::first_wrong(part, Layout(mesh, {At(0)}), shape, DType::i32, 1));
}

}  // namespace
}  // namespace tessera::testing_support
