#include "support/processes.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <thread>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "transport/shm/connect.hpp"

namespace tessera::testing_support {
namespace {

int tell_descriptor = -1;

// One line of the pipe: a letter for what it is, the length, the text.
void put(char what, const std::string& text) {
  const std::string line = fmt::format("{}{:010}", what, text.size()) + text;
  for (size_t at = 0; at < line.size();) {
    const ssize_t written = write(tell_descriptor, line.data() + at, line.size() - at);
    if (written <= 0) _exit(98);
    at += static_cast<size_t>(written);
  }
}

[[noreturn]] void be_rank(const std::shared_ptr<shm::Segment>& segment, int rank,
                          const std::function<void(Comm&)>& body, const ProcessOptions& options) {
  int code = 0;
  testing::TestPartResultArray found;
  try {
    testing::ScopedFakeTestPartResultReporter reporter(testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS,
                                                       &found);
    Comm comm = options.come ? options.come(rank) : shm::connect(segment, rank, options.way, options.run);
    body(comm);
  } catch (const std::exception& e) {
    put('t', e.what());
    code = 3;
  }
  std::string failures;
  for (int i = 0; i < found.size(); ++i) {
    const testing::TestPartResult& one = found.GetTestPartResult(i);
    if (one.failed()) failures += fmt::format("{}:{}: {}\n", one.file_name(), one.line_number(), one.message());
  }
  if (!failures.empty()) put('f', failures);
  _exit(code);
}

struct Rank {
  pid_t pid = 0;
  int pipe = -1;
  bool over = false;
  std::string output;
  Ended ended;

  void drain() {
    char buffer[4096];
    for (ssize_t got = 0; (got = read(pipe, buffer, sizeof(buffer))) > 0;)
      output.append(buffer, static_cast<size_t>(got));
  }
  void sort_output() {
    for (size_t at = 0; at + 11 <= output.size();) {
      const size_t length = std::stoul(output.substr(at + 1, 10));
      const std::string text = output.substr(at + 11, length);
      (output[at] == 'f' ? ended.failures : output[at] == 't' ? ended.threw : ended.said) += text;
      at += 11 + length;
    }
  }
};

Rank start(const std::shared_ptr<shm::Segment>& segment, int rank, const std::function<void(Comm&)>& body,
           const ProcessOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("pipe2");
  Rank result;
  result.pid = fork();
  if (result.pid < 0) throw Error("fork");
  if (result.pid == 0) {
    close(ends[0]);
    tell_descriptor = ends[1];
    be_rank(segment, rank, body, options);
  }
  close(ends[1]);
  result.pipe = ends[0];
  fcntl(result.pipe, F_SETFL, O_NONBLOCK);
  return result;
}

}  // namespace

void tell(const std::string& text) { put('s', text); }

bool attach_allowed() {
  static const bool allowed = [] {
    static uint64_t word = 0;
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) throw Error("pipe2");
    const pid_t owner = fork();
    if (owner == 0) {
      word = 17;
      prctl(PR_SET_PTRACER, static_cast<unsigned long>(getppid()), 0, 0, 0);
      if (write(ready[1], "r", 1) != 1) _exit(1);
      while (true) pause();
    }
    const pid_t reader = fork();
    if (reader == 0) {
      uint64_t got = 0;
      char byte = 0;
      const iovec here{&got, sizeof(got)}, there{&word, sizeof(word)};
      if (read(ready[0], &byte, 1) != 1) _exit(1);
      _exit(process_vm_readv(owner, &here, 1, &there, 1, 0) == sizeof(got) && got == 17 ? 0 : 1);
    }
    int status = 1;
    waitpid(reader, &status, 0);
    kill(owner, SIGKILL);
    waitpid(owner, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    return status == 0;
  }();
  return allowed;
}

std::vector<shm::Way> ways() {
  std::vector list = {shm::Way::choose, shm::Way::in_place, shm::Way::staged};
  if (attach_allowed()) list.push_back(shm::Way::attach);
  return list;
}

std::vector<Ended> run_processes(int ranks, const std::function<void(Comm&)>& body, const ProcessOptions& options,
                                 const std::function<void(const std::vector<pid_t>&)>& started) {
  const auto segment = shm::Segment::create(ranks, options.heap_bytes);
  std::vector<Rank> all;
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    all.push_back(start(segment, r, body, options));
    pids.push_back(all.back().pid);
  }
  if (started) started(pids);
  const auto end = std::chrono::steady_clock::now() + options.limit;
  for (int left = ranks; left > 0;) {
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = all[static_cast<size_t>(r)];
      if (rank.over) continue;
      rank.drain();
      if (waitpid(rank.pid, &rank.ended.status, WNOHANG) != rank.pid) continue;
      segment->note_end(r, rank.ended.status);
      rank.over = true;
      --left;
    }
    if (std::chrono::steady_clock::now() > end) {
      for (const Rank& rank : all) {
        if (!rank.over) kill(rank.pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  std::vector<Ended> result;
  for (Rank& rank : all) {
    rank.drain();
    close(rank.pipe);
    rank.sort_output();
    result.push_back(rank.ended);
  }
  return result;
}

void run_processes_well(int ranks, const std::function<void(Comm&)>& body, const ProcessOptions& options) {
  const auto ended = run_processes(ranks, body, options);
  std::string wrong;
  for (size_t r = 0; r < ended.size(); ++r) {
    const Ended& e = ended[r];
    if (e.exited(0) && e.failures.empty()) continue;
    wrong += fmt::format("rank {} {}: {}{}\n", r, shm::text_of_status(e.status), e.failures, e.threw);
  }
  if (!wrong.empty()) throw Error(wrong);
}

}  // namespace tessera::testing_support
