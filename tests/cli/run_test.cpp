// `tessera run`: what it passes on, what it returns, how it ends a job. Scripts wait for events, never for a time.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "launched.hpp"

namespace tessera::testing_support {
namespace {

// Shell: waits until the process whose number is in the file has ended and the launcher has noticed.
std::string until_gone(const std::string& file) {
  return "until [ -s " + file + " ]; do sleep 0.01; done; while kill -0 $(cat " + file +
         ") 2>/dev/null; do sleep 0.01; done; ";
}

TEST(Run, ReturnsWhatTheFailedRankReturned) {
  struct Case {
    const char* end;
    int code;
    const char* line;
  };
  for (const Case& c : {Case{"exit 3", 3, "exited with code 3"}, Case{"exit 255", 255, "exited with code 255"},
                        Case{"kill -KILL $$", 137, "was killed by signal 9 (Killed)"},
                        Case{"ulimit -c 0; kill -ABRT $$", 134, "was killed by signal 6 (Aborted)"},
                        Case{"ulimit -c 0; kill -SEGV $$", 139, "was killed by signal 11 (Segmentation fault)"}}) {
    const Ending ending = run_cli(
        bash_ranks(3, std::string("test $TESSERA_RANK != 2 || { ") + c.end + "; }; " + kForever, {"--grace", "0"}));
    EXPECT_EQ(ending.code, c.code);
    EXPECT_EQ(ending.errors, std::string("tessera run: rank 2 failed: ") + c.line + "\n");
  }
}

TEST(Run, SaysNothingWhenAllIsWell) {
  const Ending ending = run_cli(bash_ranks(4, "true"));
  EXPECT_EQ(ending.code, 0);
  EXPECT_EQ(ending.output + ending.errors, "");
}

// Rank `first` ends with that code; when it is gone, the others go on with `then`.
Ending run_with_one_that_fails(int ranks, int first, int code, const std::string& then) {
  const Folder folder;
  const std::string file = folder / "first";
  const std::string fails =
      fmt::format("if [ $TESSERA_RANK = {} ]; then echo $$ > {}; exit {}; fi; ", first, file, code);
  return run_cli(bash_ranks(ranks, fails + until_gone(file) + then, {"--grace", "60"}));
}

TEST(Run, NamesTheFirstCauseAndNotWhoFollowed) {
  const Ending ending = run_with_one_that_fails(4, 3, 4, "exit 6");
  EXPECT_EQ(ending.code, 4);
  EXPECT_EQ(ending.errors, "tessera run: rank 3 failed: exited with code 4\n");
}

TEST(Run, GivesTheOthersTimeToEndByThemselves) {
  const Ending ending = run_with_one_that_fails(3, 1, 5, "echo saved");
  EXPECT_EQ(ending.code, 5);
  EXPECT_EQ(ending.output.size(), std::string("[0] saved\n[2] saved\n").size()) << ending.output;
  EXPECT_EQ(count_of(ending.output, "saved"), 2);
}

TEST(Run, AsksThenKillsThoseThatDoNotEnd) {
  const Folder folder;
  const std::string ready = folder / "ready";
  // Rank 1 ends when asked, rank 2 does not.
  const Ending ending = run_cli(bash_ranks(3,
                                           "case $TESSERA_RANK in"
                                           "  0) until [ -e " +
                                               ready + "1 -a -e " + ready +
                                               "2 ]; do sleep 0.01; done; exit 7;;"
                                               "  1) trap 'echo asked; exit 0' TERM;;"
                                               "  2) trap 'echo asked' TERM;;"
                                               "esac; touch " +
                                               ready + "$TESSERA_RANK; " + kForever,
                                           {"--grace", "0.1"}));
  EXPECT_EQ(ending.code, 7);
  EXPECT_EQ(count_of(ending.output, "[1] asked\n"), 1) << ending.output;
  EXPECT_EQ(count_of(ending.output, "[2] asked\n"), 1) << ending.output;
  EXPECT_EQ(count_of(ending.errors, "tessera run:"), 1) << ending.errors;
}

TEST(Run, LeavesTheOthersAloneWhereAsked) {
  const Folder folder;
  const std::string first = folder / "first";
  const Ending ending = run_cli(bash_ranks(
      3, "if [ $TESSERA_RANK = 2 ]; then echo $$ > " + first + "; exit 9; fi; " + until_gone(first) + "echo done",
      {"--keep-going", "--grace", "0"}));
  EXPECT_EQ(ending.code, 9);
  EXPECT_EQ(count_of(ending.output, "done\n"), 2) << ending.output;
  EXPECT_EQ(ending.errors, "tessera run: rank 2 failed: exited with code 9; the others go on\n");
}

TEST(Run, SaysWhatCannotBeRun) {
  const Folder folder;
  std::ofstream(folder / "text") << "just text\n";
  std::ofstream(folder / "script") << "#!/no/such/interpreter\n";
  std::filesystem::permissions(folder / "script", std::filesystem::perms::owner_all);
  struct Case {
    std::string program;
    int code;
    const char* reason;
  };
  for (const Case& c : {Case{folder / "nothing", 127, "No such file or directory"},
                        Case{"tessera-no-such-program", 127, "No such file or directory"},
                        Case{(folder / "text") + "/below", 127, "Not a directory"},
                        Case{folder / "text", 126, "Permission denied"}, Case{folder / "", 126, "Permission denied"},
                        Case{folder / "script", 127, "No such file or directory: the interpreter in its first line"}}) {
    const Ending ending = run_cli({"run", "-n", "4", "--", c.program, "argument"});
    EXPECT_EQ(ending.code, c.code) << c.program;
    EXPECT_EQ(ending.errors, "tessera run: cannot run " + c.program + ": " + c.reason + "\n");
  }
}

TEST(Run, RefusesWrongOptionsInOneLine) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{},
                                                                                     {"--"},
                                                                                     {"--bogus", "true"},
                                                                                     {"-n", "0", "true"},
                                                                                     {"-n", "4097", "true"},
                                                                                     {"-n", "x", "true"},
                                                                                     {"--heap", "8Q", "true"},
                                                                                     {"--heap", "-1", "true"},
                                                                                     {"--timeout", "0", "true"},
                                                                                     {"--grace", "-1", "true"}}) {
    std::vector<std::string> arguments = {"run"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Ending ending = run_cli(arguments);
    EXPECT_EQ(ending.code, 2) << testing::PrintToString(words);
    EXPECT_EQ(lines_of(ending.errors).size(), 1u) << ending.errors;
    EXPECT_TRUE(ending.errors.starts_with("tessera: ")) << ending.errors;
    EXPECT_EQ(ending.output, "");
  }
}

TEST(Run, TakesTheProgramWithItsArgumentsAsTheyAre) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"run", "-n", "1", "--", "echo", "-n", "--", "--help"},
                                             {"run", "--ranks", "1", "echo", "-n", "--", "--help"}}) {
    const Ending ending = run_cli(words);
    EXPECT_EQ(ending.code, 0);
    EXPECT_EQ(ending.output, "[0] -- --help\n");
  }
}

// Environment ----------------------------------------------------------------------------------------------------------

TEST(Run, TellsEachRankWhichItIs) {
  constexpr int kRanks = 64;  // more than cores, on most machines
  const Ending ending =
      run_cli(bash_ranks(kRanks, "echo $TESSERA_RANK/$TESSERA_RANKS $(readlink /proc/$$/fd/$TESSERA_SHM_FD)"));
  EXPECT_EQ(ending.code, 0) << ending.errors;
  std::set<std::string> expected;
  for (int r = 0; r < kRanks; ++r) {
    expected.insert((r < 10 ? "[ " : "[") + std::to_string(r) + "] " + std::to_string(r) +
                    "/64 /memfd:tessera (deleted)");
  }
  const auto lines = lines_of(ending.output);
  EXPECT_EQ(lines.size(), static_cast<size_t>(kRanks));
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()), expected);
}

TEST(Run, PassesTheTimeoutOnAndSizesTheHeap) {
  const Ending ending = run_cli(bash_ranks(2, "echo $TESSERA_TIMEOUT; stat -Lc %s /proc/$$/fd/$TESSERA_SHM_FD",
                                           {"--timeout", "2.5", "--heap", "64MiB", "--no-prefix"}));
  EXPECT_EQ(count_of(ending.output, "2.5\n"), 2) << ending.output;
  const int64_t bytes = std::stoll(lines_of(ending.output).back());
  EXPECT_GE(bytes, 2 * (int64_t{64} << 20));
  EXPECT_LT(bytes, 2 * (int64_t{64} << 20) + (int64_t{16} << 20));
}

TEST(Run, GivesRanksTheStreamsAndTheSegmentAndNothingElse) {
  for (const char* option : {"--verbose", "--no-prefix"}) {
    const Ending ending = run_cli(bash_ranks(3,
                                             "list=; for d in {0..99}; do [ -e /proc/$$/fd/$d ] && [ $d != "
                                             "$TESSERA_SHM_FD ] && list+=$d; done; echo got $list",
                                             {option}));
    EXPECT_EQ(count_of(ending.output, "got 012\n"), 3) << ending.output;
  }
}

TEST(Run, GivesStdinToRankZeroOnly) {
  const Ending ending = run_cli(bash_ranks(3, "cat; readlink /proc/$$/fd/0"), {.input = "one\ntwo"});
  EXPECT_EQ(count_of(ending.output, "[0] one\n"), 1) << ending.output;
  EXPECT_EQ(count_of(ending.output, "two"), 1);
  EXPECT_EQ(count_of(ending.output, "/dev/null"), 2);
  const Ending terminal = run_cli(bash_ranks(1, "readlink /proc/$$/fd/0"), {.terminal = true});
  EXPECT_EQ(count_of(terminal.output, "/dev/null"), 1) << terminal.output;
}

TEST(Run, BindsRanksToCores) {
  const Ending ending =
      run_cli(bash_ranks(5, "sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus /p' /proc/self/status", {"--bind", "-v"}));
  if (!TESSERA_HWLOC) {  // as the build says: one that has it must bind
    EXPECT_EQ(ending.code, 1);
    EXPECT_NE(ending.errors.find("libhwloc-dev"), std::string::npos) << ending.errors;
    GTEST_SKIP() << "built without hwloc";
  }
  EXPECT_EQ(ending.code, 0) << ending.errors;
  std::map<std::string, int> ranks_on;
  for (const std::string& line : lines_of(ending.output)) ++ranks_on[line.substr(line.find("cpus"))];
  const auto allowed = static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_LE(ranks_on.size(), std::min<size_t>(5, allowed));
  int most = 0, least = 5;
  for (const auto& [cpus, count] : ranks_on) {
    most = std::max(most, count);
    least = std::min(least, count);
  }
  EXPECT_LE(most - least, 1) << ending.output;
  EXPECT_EQ(count_of(ending.errors, ", bound to CPU "), 5) << ending.errors;
}

// Processes that hold the anonymous file with this number, open or mapped.
int holders_of(const std::string& inode) {
  int count = 0;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    bool holds = false;
    for (const std::string& line : lines_of(read_file(process.path() / "maps"))) {
      holds = holds ||
              (line.find(" " + inode + " ") != std::string::npos && line.find("/memfd:tessera") != std::string::npos);
    }
    for (const auto& file : std::filesystem::directory_iterator(process.path() / "fd", error)) {
      struct stat status = {};
      holds = holds || (std::filesystem::read_symlink(file, error).string().starts_with("/memfd:tessera") &&
                        stat(file.path().c_str(), &status) == 0 && std::to_string(status.st_ino) == inode);
    }
    count += holds ? 1 : 0;
  }
  return count;
}

// The memory is an anonymous file: it is gone when no process holds it.
TEST(Run, LeavesNothingInSharedMemory) {
  for (const std::string end : {"kill -KILL $$", "true", "kill -KILL $PPID; sleep 1000"}) {
    const Folder folder;
    const std::string script = "echo \"inode $(stat -L -c %i /proc/$$/fd/$TESSERA_SHM_FD) .\"; until [ -e " +
                               (folder / "go") + " ]; do sleep 0.01; done; ";
    Launched job(bash_ranks(2, script + end, {"--grace", "0.1"}));
    ASSERT_TRUE(job.until(" .\n", 2));
    const size_t at = job.output().find("inode ") + 6;
    const std::string inode = job.output().substr(at, job.output().find(' ', at) - at);
    EXPECT_GT(holders_of(inode), 0) << "while it runs: " << job.output();
    std::ofstream(folder / "go") << "go";
    job.wait();
    EXPECT_TRUE(job.shrinks_to(0));
    EXPECT_EQ(holders_of(inode), 0) << end;
  }
}

// Programs that use the library ----------------------------------------------------------------------------------------

Ending run_program(int ranks, const std::string& what, std::vector<std::string> options = {}) {
  std::vector<std::string> words = {"run", "-n", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", TESSERA_RANK_PROGRAM, what});
  return run_cli(words);
}

TEST(RunProgram, JoinsAllRanks) {
  for (const int ranks : {1, 2, 3, 7}) {
    const Ending ending = run_program(ranks, "gather");
    EXPECT_EQ(ending.code, 0) << ending.errors;
    const std::string rows =
        " of " + std::to_string(ranks) + " has " + std::to_string(ranks * (ranks - 1) / 2) + " rows\n";
    EXPECT_EQ(count_of(ending.output, rows), ranks) << ending.output;
  }
}

TEST(RunProgram, ToldOfAMismatchSaysWhatItWas) {
  const Ending ending = run_program(3, "mismatch");
  EXPECT_EQ(ending.code, 134);
  const std::string last = lines_of(ending.errors).back();
  EXPECT_TRUE(last.starts_with("tessera run: rank ")) << last;
  EXPECT_NE(last.find(" failed: was killed by signal 6 (Aborted) after an exception that nobody caught: "
                      "tessera::MismatchError: call #1 of communicator \"world\""),
            std::string::npos)
      << last;
}

TEST(RunProgram, NamesTheRankThatThrew) {
  const Ending ending = run_program(4, "throw");
  EXPECT_EQ(ending.code, 134);
  EXPECT_EQ(lines_of(ending.errors).back(),
            "tessera run: rank 1 failed: was killed by signal 6 (Aborted) after an exception that nobody caught: "
            "std::runtime_error: out of?disk");
}

TEST(RunProgram, ThatCannotJoinSaysWhy) {
  const Ending ending =
      run_cli(bash_ranks(2, std::string("TESSERA_SHM_WAY=foo exec ") + TESSERA_RANK_PROGRAM + " gather"));
  EXPECT_EQ(ending.code, 134);
  EXPECT_NE(lines_of(ending.errors).back().find("nobody caught: tessera::Error: TESSERA_SHM_WAY is \"foo\""),
            std::string::npos)
      << ending.errors;
}

TEST(RunProgram, NamesTheRankThatLeftThoughOthersEndedBefore) {
  const Ending ending = run_program(3, "leave", {"--grace", "60"});
  EXPECT_EQ(ending.code, 3);
  EXPECT_EQ(lines_of(ending.errors).back(), "tessera run: rank 1 failed: exited with code 3");
}

TEST(RunProgram, CanGoOnWithoutARank) {
  const Ending ending = run_program(4, "shrink", {"--keep-going"});
  EXPECT_EQ(ending.code, 137);
  EXPECT_EQ(count_of(ending.output, "3 are left\n"), 3) << ending.output << ending.errors;
}

TEST(RunProgram, EndsWithTheLauncher) {
  for (const bool wrapped : {false, true}) {
    Launched job(wrapped ? bash_ranks(3, std::string(TESSERA_RANK_PROGRAM) + " wait; true")
                         : std::vector<std::string>{"run", "-n", "3", "--", TESSERA_RANK_PROGRAM, "wait"});
    ASSERT_TRUE(job.until("waiting", 3));
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait().signal, SIGKILL);
    EXPECT_TRUE(job.shrinks_to(0));
  }
}

}  // namespace
}  // namespace tessera::testing_support
