// The built command line as a process that a test can watch, read and signal.
#pragma once

#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::testing_support {

inline const char* const kForever = "while :; do sleep 0.02; done";  // in bash

struct Ending {
  std::string output, errors;
  int code = -1;  // -1: killed by `signal`
  int signal = 0;
};

struct LaunchOptions {
  std::string input = {};  // what it can read on stdin
  bool terminal = false;   // all three streams are one terminal; `output` is what appears on it
};

// build/tessera with these arguments. Its environment, and so that of all it starts, has a mark by which they are found.
class Launched {
 public:
  explicit Launched(const std::vector<std::string>& arguments, const LaunchOptions& options = {});
  // Kills what is left, and complains of it.
  ~Launched();
  Launched(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads on until stdout has this text so many times. False: it ended, or a minute passed.
  bool until(const std::string& text, int times = 1);
  bool until_full();    // the pipe of stdout, which is not read here
  void stop_reading();  // closes our end of stdout
  Ending wait();        // reads to the end

  // Processes with the mark that live (zombies do not), this one's launcher and keeper among them.
  std::vector<pid_t> family() const;
  // Waits until so many are left. False: a minute passed.
  bool shrinks_to(size_t count) const;
  pid_t keeper() const;                                         // once it has settled; -1: a minute passed
  const std::string& output() const { return ending_.output; }  // so far

 private:
  bool read_some();  // false: both streams are at their end, or a minute passed

  std::string mark_;
  pid_t pid_ = -1;
  int output_ = -1, errors_ = -1;
  Ending ending_;
  bool waited_ = false;
};

// A folder for one test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/tessera-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Runs it to its end.
Ending run_cli(const std::vector<std::string>& arguments, const LaunchOptions& options = {});

// "tessera run -n RANKS OPTIONS -- bash -c SCRIPT".
std::vector<std::string> bash_ranks(int ranks, const std::string& script, const std::vector<std::string>& options = {});

std::vector<std::string> lines_of(const std::string& text);
int count_of(const std::string& text, const std::string& piece);
std::string read_file(const std::string& path);

}  // namespace tessera::testing_support
