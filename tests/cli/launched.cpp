#include "launched.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

namespace tessera::testing_support {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 240s;  // far more than anything here takes, also where ten others have the cores
constexpr const char* kMark = "TESSERA_TEST_MARK";

std::string new_mark() {
  static int count = 0;
  return std::string(kMark) + '=' + std::to_string(getpid()) + '.' + std::to_string(++count) + '.';
}

template <class Pred>
bool eventually(const Pred& pred) {
  for (const auto end = std::chrono::steady_clock::now() + kLong; std::chrono::steady_clock::now() < end;) {
    if (pred()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return pred();
}

struct Streams {
  int input = -1, output = -1, errors = -1;              // of the process
  int own_input = -1, own_output = -1, own_errors = -1;  // our ends
};

Streams make_streams(bool terminal) {
  Streams s;
  if (terminal) {
    s.own_output = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    grantpt(s.own_output);
    unlockpt(s.own_output);
    s.input = s.output = s.errors = open(ptsname(s.own_output), O_RDWR | O_NOCTTY | O_CLOEXEC);
    return s;
  }
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  s = {in[0], out[1], err[1], in[1], out[0], err[0]};
  return s;
}

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::string& mark, const Streams& streams) {
  setpgid(0, 0);
  putenv(const_cast<char*>(mark.c_str()));
  unsetenv("NO_COLOR");
  dup2(streams.input, STDIN_FILENO);
  dup2(streams.output, STDOUT_FILENO);
  dup2(streams.errors, STDERR_FILENO);
  syscall(SYS_close_range, 3u, ~0u, 0u);
  std::vector<char*> words = {const_cast<char*>(TESSERA_CLI)};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  _exit(99);
}

}  // namespace

Launched::Launched(const std::vector<std::string>& arguments, const LaunchOptions& options) : mark_(new_mark()) {
  const Streams streams = make_streams(options.terminal);
  pid_ = fork();
  if (pid_ == 0) become(arguments, mark_, streams);
  setpgid(pid_, pid_);
  output_ = streams.own_output;
  errors_ = streams.own_errors;
  close(streams.input);
  if (options.terminal) return;
  close(streams.output);
  close(streams.errors);
  // Short, so it fits into the pipe.
  EXPECT_EQ(write(streams.own_input, options.input.data(), options.input.size()),
            static_cast<ssize_t>(options.input.size()));
  close(streams.own_input);
}

Launched::~Launched() {
  if (!waited_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  EXPECT_TRUE(shrinks_to(0)) << "processes were left behind";
  for (const pid_t pid : family()) kill(pid, SIGKILL);
  if (output_ >= 0) close(output_);
  if (errors_ >= 0) close(errors_);
}

void Launched::signal(int number) const { EXPECT_EQ(kill(pid_, number), 0); }

bool Launched::read_some() {
  pollfd polled[] = {{output_, POLLIN, 0}, {errors_, POLLIN, 0}};
  if (output_ < 0 && errors_ < 0) return false;
  if (poll(polled, 2, static_cast<int>(std::chrono::milliseconds(kLong).count())) <= 0) return false;
  char chunk[1 << 16];
  for (pollfd& p : polled) {
    if (p.revents == 0) continue;
    const bool is_output = p.fd == output_;
    const ssize_t got = read(p.fd, chunk, sizeof(chunk));
    if (got > 0) {
      (is_output ? ending_.output : ending_.errors).append(chunk, static_cast<size_t>(got));
      continue;
    }
    close(p.fd);
    (is_output ? output_ : errors_) = -1;
  }
  return true;
}

bool Launched::until(const std::string& text, int times) {
  while (count_of(ending_.output, text) < times) {
    if (!read_some()) return false;
  }
  return true;
}

bool Launched::until_full() {
  int waiting = 0;
  return eventually([&] { return ioctl(output_, FIONREAD, &waiting) == 0 && waiting >= 60'000; });
}

void Launched::stop_reading() {
  close(output_);
  output_ = -1;
}

Ending Launched::wait() {
  while (read_some()) continue;
  int status = 0;
  EXPECT_TRUE(eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) << "it does not end";
  waited_ = true;
  if (WIFEXITED(status)) ending_.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ending_.signal = WTERMSIG(status);
  return ending_;
}

std::vector<pid_t> Launched::family() const {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) == getpid()) continue;
    // A zombie's is empty.
    if (read_file(entry.path() / "environ").find(mark_) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

bool Launched::shrinks_to(size_t count) const {
  return eventually([&] { return family().size() <= count; });
}

pid_t Launched::keeper() const {
  pid_t keeper = -1;
  eventually([&] {
    for (const pid_t pid : family()) {
      const std::string folder = "/proc/" + std::to_string(pid);
      std::error_code error;
      // To go to / is the last thing it does before it waits.
      if (read_file(folder + "/comm") == "tessera-keeper\n" &&
          std::filesystem::read_symlink(folder + "/cwd", error) == "/") {
        keeper = pid;
      }
    }
    return keeper > 0;
  });
  return keeper;
}

Ending run_cli(const std::vector<std::string>& arguments, const LaunchOptions& options) {
  return Launched(arguments, options).wait();
}

std::vector<std::string> bash_ranks(int ranks, const std::string& script, const std::vector<std::string>& options) {
  std::vector<std::string> words = {"run", "-n", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "bash", "-c", script});
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int count_of(const std::string& text, const std::string& piece) {
  int count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++count;
  return count;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // as far as it goes: a file of a process may end with it
  return text.str();
}

}  // namespace tessera::testing_support
