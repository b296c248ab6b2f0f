// `tessera run`: what ranks print, on its way.
#include <unistd.h>

#include <csignal>
#include <map>

#include <gtest/gtest.h>

#include "launched.hpp"

namespace tessera::testing_support {
namespace {

// Each rank's lines in order, whole, and none lost.
void expect_numbered_lines(const std::string& text, const std::string& stream, int ranks, int count) {
  std::map<int, int> next;
  for (const std::string& line : lines_of(text)) {
    int prefix = -1, rank = -1, number = -1;
    char name[16] = {};
    ASSERT_EQ(std::sscanf(line.c_str(), "[%d] %15s of rank %d line %d", &prefix, name, &rank, &number), 4) << line;
    EXPECT_EQ(prefix, rank);
    EXPECT_EQ(name, stream);
    EXPECT_EQ(number, next[rank]++) << line;
  }
  EXPECT_EQ(next.size(), static_cast<size_t>(ranks));
  for (const auto& [rank, lines] : next) EXPECT_EQ(lines, count) << rank;
}

TEST(RunOutput, PutsTheRankBeforeEachLine) {
  // In pieces of lines, so that they would mix.
  const Ending ending = run_cli(bash_ranks(4,
                                           "for ((i = 0; i < 300; ++i)); do"
                                           "  echo -n \"output of rank \"; echo -n \"errors of \" >&2;"
                                           "  echo \"$TESSERA_RANK line $i\"; echo \"rank $TESSERA_RANK line $i\" >&2;"
                                           "done"));
  EXPECT_EQ(ending.code, 0);
  expect_numbered_lines(ending.output, "output", 4, 300);
  expect_numbered_lines(ending.errors, "errors", 4, 300);
}

TEST(RunOutput, AlignsAndCompletesLines) {
  const Ending ending = run_cli(bash_ranks(11, "printf 'a\\n\\nb'"));
  EXPECT_EQ(count_of(ending.output, "[ 3] a\n"), 1) << ending.output;
  EXPECT_EQ(count_of(ending.output, "[10] b\n"), 1) << ending.output;
  EXPECT_EQ(count_of(ending.output, "] \n"), 11) << ending.output;
  EXPECT_EQ(ending.output.find('\033'), std::string::npos) << "colours in a pipe";
}

TEST(RunOutput, CutsEndlessLines) {
  const Ending ending = run_cli(bash_ranks(2, "head -c 2000000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(count_of(ending.output, "x"), 4'000'000);
  for (const std::string& line : lines_of(ending.output)) {
    EXPECT_TRUE(line.starts_with("[0] x") || line.starts_with("[1] x"));
    EXPECT_LT(line.size(), 400'000u);
  }
}

TEST(RunOutput, IsTheRanksOwnWithoutPrefix) {
  const Ending ending = run_cli(bash_ranks(2, "printf a; printf b >&2", {"--no-prefix"}));
  EXPECT_EQ(ending.code, 0);
  EXPECT_EQ(ending.output, "aa");
  EXPECT_EQ(ending.errors, "bb");
}

TEST(RunOutput, HasColoursOnATerminal) {
  const Ending ending = run_cli(bash_ranks(1, "echo plain"), {.terminal = true});
  EXPECT_NE(ending.output.find("\033["), std::string::npos) << ending.output;
  EXPECT_NE(ending.output.find("[0]"), std::string::npos);
  EXPECT_NE(ending.output.find(" plain"), std::string::npos);
}

TEST(RunOutput, OfWhatARankLeavesToFinishComesToo) {
  const Ending ending = run_cli(bash_ranks(2, "exec > >(sed s/^/seen:/); echo text"));
  EXPECT_EQ(ending.code, 0);
  EXPECT_EQ(count_of(ending.output, "seen:text\n"), 2) << ending.output;
}

TEST(RunOutput, IsNotWaitedForWhereAStrangerHoldsThePipe) {
  // setsid: out of the rank's group, so it is not ended with the job.
  Launched job(bash_ranks(1, "setsid sleep 1000 & echo pid $!"));
  const Ending ending = job.wait();
  EXPECT_EQ(ending.code, 0);
  int stranger = -1;
  ASSERT_EQ(std::sscanf(ending.output.c_str(), "[0] pid %d", &stranger), 1) << ending.output;
  EXPECT_EQ(kill(stranger, SIGKILL), 0);
}

TEST(RunOutput, ThatNobodyReadsEndsTheRanks) {
  Launched job(bash_ranks(2, "while :; do echo again; done", {"--grace", "0"}));
  ASSERT_TRUE(job.until("again"));
  job.stop_reading();
  const Ending ending = job.wait();
  EXPECT_EQ(ending.code, 128 + SIGPIPE) << ending.errors;
}

TEST(RunOutput, ThatIsStuckDoesNotKeepAFailureFromEndingTheJob) {
  // Rank 0 fills the pipe that this test does not read, with lines of nearly a page; rank 1 then fails.
  const Folder folder;
  const std::string ready = folder / "ready";
  Launched job(bash_ranks(2,
                          "if [ $TESSERA_RANK = 1 ]; then trap 'exit 3' USR1; touch " + ready +
                              "; while :; do sleep 0.02; done; fi; trap '' USR1; until [ -e " + ready +
                              " ]; do sleep 0.02; done; while :; do printf '%4000s\\n' fill; done",
                          {"--grace", "0"}));
  ASSERT_TRUE(job.until_full());
  job.signal(SIGUSR1);
  EXPECT_TRUE(job.shrinks_to(2)) << "the launcher and its keeper";
  // No more patience for the output. Before the launcher has seen the last end, an interrupt is for the ranks.
  for (int i = 0; i < 1000 && !job.family().empty(); ++i) {
    job.signal(SIGINT);
    usleep(20'000);
  }
  EXPECT_EQ(job.wait().code, 3);
}

}  // namespace
}  // namespace tessera::testing_support
