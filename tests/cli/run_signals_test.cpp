// `tessera run`: signals, and that nothing stays behind whoever is killed.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "launched.hpp"

namespace tessera::testing_support {
namespace {

TEST(RunSignals, ArePassedOn) {
  for (const auto& [name, number] : {std::pair{"INT", SIGINT},
                                     {"TERM", SIGTERM},
                                     {"HUP", SIGHUP},
                                     {"QUIT", SIGQUIT},
                                     {"USR1", SIGUSR1},
                                     {"USR2", SIGUSR2}}) {
    Launched job(
        bash_ranks(3, std::string("trap 'echo got ") + name + "; exit 0' " + name + "; echo ready; " + kForever));
    ASSERT_TRUE(job.until("ready", 3)) << name;
    job.signal(number);
    const Ending ending = job.wait();
    EXPECT_EQ(ending.code, 0) << name << ending.errors;
    EXPECT_EQ(count_of(ending.output, std::string("got ") + name), 3) << ending.output;
  }
}

TEST(RunSignals, ThatEndTheRanksAreNamed) {
  Launched job(bash_ranks(3, std::string("echo ready; ") + kForever));
  ASSERT_TRUE(job.until("ready", 3));
  job.signal(SIGTERM);
  const Ending ending = job.wait();
  EXPECT_EQ(ending.code, 128 + SIGTERM);
  EXPECT_EQ(lines_of(ending.errors).back(), "tessera run: stopped by signal 15 (Terminated)");
}

TEST(RunSignals, ASecondInterruptKills) {
  Launched job(bash_ranks(2, std::string("trap 'echo once' INT; echo ready; ") + kForever));
  ASSERT_TRUE(job.until("ready", 2));
  job.signal(SIGINT);
  ASSERT_TRUE(job.until("once", 2));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait().code, 128 + SIGKILL);
}

TEST(RunSignals, ThatWereIgnoredStayIgnored) {
  // As nohup does.
  Launched job(bash_ranks(1, std::string("trap 'echo end; exit 0' USR1; echo ready; ") + kForever, {"--verbose"}));
  ASSERT_TRUE(job.until("ready"));
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait().code, 0);
  struct sigaction ignore = {}, before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &ignore, &before);
  Launched deaf(bash_ranks(1, std::string("trap 'echo end; exit 0' USR1; echo ready; ") + kForever));
  sigaction(SIGHUP, &before, nullptr);
  ASSERT_TRUE(deaf.until("ready"));
  deaf.signal(SIGHUP);
  deaf.signal(SIGUSR1);
  const Ending ending = deaf.wait();
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_EQ(count_of(ending.output, "end\n"), 1);
}

char state_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos ? '?' : stat[name_end + 2];
}

bool reaches_state(pid_t pid, bool stopped) {
  for (int i = 0; i < 6000; ++i) {
    if ((state_of(pid) == 'T') == stopped) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(RunSignals, StopAndGoOn) {
  Launched job(bash_ranks(1, std::string("echo pid $$; ") + kForever));
  ASSERT_TRUE(job.until("\n"));
  pid_t rank = -1;
  ASSERT_EQ(std::sscanf(job.output().c_str(), "[0] pid %d", &rank), 1) << job.output();
  job.signal(SIGTSTP);
  EXPECT_TRUE(reaches_state(job.pid(), true));
  EXPECT_TRUE(reaches_state(rank, true));
  job.signal(SIGCONT);
  EXPECT_TRUE(reaches_state(job.pid(), false));
  EXPECT_TRUE(reaches_state(rank, false));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait().code, 128 + SIGTERM);
}

// The launcher is killed -----------------------------------------------------------------------------------------------

const char* const kWithChildren = "(sleep 1000 & echo ready; sleep 1000; true); true";

TEST(RunKilled, TakesRanksAndTheirChildrenAlong) {
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{{}, {"--no-prefix"}}) {
    Launched job(bash_ranks(4, kWithChildren, options));
    ASSERT_TRUE(job.until("ready", 4));
    job.signal(SIGKILL);
    EXPECT_TRUE(job.shrinks_to(0));
    EXPECT_EQ(job.wait().signal, SIGKILL);
  }
}

TEST(RunKilled, WithItsWholeGroupToo) {
  Launched job(bash_ranks(2, kWithChildren));
  ASSERT_TRUE(job.until("ready", 2));
  ASSERT_EQ(kill(-job.pid(), SIGKILL), 0);
  EXPECT_TRUE(job.shrinks_to(0));
  job.wait();
}

TEST(RunKilled, WhileRanksAreStoppedToo) {
  Launched job(bash_ranks(2, "echo ready; kill -STOP $$"));
  ASSERT_TRUE(job.until("ready", 2));
  job.signal(SIGKILL);
  EXPECT_TRUE(job.shrinks_to(0));
  job.wait();
}

TEST(RunKilled, WhileItStartsRanksToo) {
  // At any moment: before the gate, at it, behind it.
  for (int microseconds = 0; microseconds < 40'000; microseconds += 2'000) {
    Launched job(bash_ranks(16, "sleep 1000"));
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    job.signal(SIGKILL);
    EXPECT_TRUE(job.shrinks_to(0)) << microseconds;
    job.wait();
  }
}

TEST(RunKeeper, HoldsOnlyProcesses) {
  Launched job(bash_ranks(3, std::string("echo ready; ") + kForever));
  ASSERT_TRUE(job.until("ready", 3));
  const pid_t pid = job.keeper();
  const std::string keeper = "/proc/" + std::to_string(pid);
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(keeper + "/fd")) {
    EXPECT_NE(std::filesystem::read_symlink(entry).string().find("pidfd"), std::string::npos);
    ++count;
  }
  EXPECT_EQ(count, 4) << "the launcher and three ranks";
  EXPECT_EQ(read_file(keeper + "/maps").find("memfd:tessera"), std::string::npos);
  EXPECT_EQ(getsid(pid), pid);
  job.signal(SIGTERM);
  job.wait();
}

TEST(RunKeeper, CanBeKilled) {
  Launched job(bash_ranks(2, std::string("trap 'exit 0' USR1; echo ready; ") + kForever));
  ASSERT_TRUE(job.until("ready", 2));
  ASSERT_EQ(kill(job.keeper(), SIGKILL), 0);
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait().code, 0);
}

TEST(RunKeeper, IsReplacedSoThatTheLauncherMayBeKilledAfterIt) {
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{{}, {"--no-prefix"}}) {
    Launched job(bash_ranks(3, kWithChildren, options));
    ASSERT_TRUE(job.until("ready", 3));
    pid_t keeper = job.keeper();
    for (int i = 0; i < 3; ++i) {
      const pid_t before = keeper;
      ASSERT_EQ(kill(before, SIGKILL), 0);
      while ((keeper = job.keeper()) == before) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ASSERT_GT(keeper, 0) << "there is no new one";
    }
    job.signal(SIGKILL);
    EXPECT_TRUE(job.shrinks_to(0));
    EXPECT_EQ(job.wait().signal, SIGKILL);
  }
}

TEST(RunLeftBehind, IsEndedWithTheJob) {
  const Ending ending = run_cli(bash_ranks(2, "sleep 1000 & echo bye", {"--grace", "0.1"}));
  EXPECT_EQ(ending.code, 0) << ending.errors;
  EXPECT_EQ(count_of(ending.output, "bye\n"), 2);
  EXPECT_EQ(ending.errors, "");
}

}  // namespace
}  // namespace tessera::testing_support
