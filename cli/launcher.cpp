#include "launcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/error.hpp>

#include "relay.hpp"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kAfterTerm = 3s;  // from SIGTERM to SIGKILL
constexpr uint64_t kSignal = UINT64_MAX, kRelay = UINT64_MAX - 1;
constexpr int kNotFound = 127, kNotRunnable = 126, kBySignal = 128;

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stderr, "tessera run: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

// A descriptor that we open must not become one of the three streams of a rank.
void fill_streams() {
  for (int d = 0; d <= STDERR_FILENO; ++d) {
    if (fcntl(d, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", d == 0 ? O_RDONLY : O_WRONLY);
  }
}

bool one_file(int a, int b) {
  struct stat x = {}, y = {};
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// The first line, without what could upset a terminal.
std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return text;
}

class Launcher {
 public:
  explicit Launcher(const Job& job)
      : job_(job), segment_(shm::Segment::create(job.ranks, job.heap_bytes)), starter_(job, *segment_, signals_) {}

  int run() {
    start();
    while (!is_over()) {
      wait();
      if (Clock::now() >= deadline_) escalate();
    }
    if (keeper_ > 0) kill(keeper_, SIGKILL);
    if (keeper_ > 0) waitpid(keeper_, nullptr, 0);
    const int code = report();
    if (abandoned_) _exit(code);  // a relay is stuck in a write, and cannot be waited for
    return code;
  }

 private:
  // What is done about ranks, or what they left behind, that should end.
  enum class Phase { none, grace, term, kill };

  void start();
  void start_relays(std::vector<Descriptor> output, std::vector<Descriptor> errors);
  void watch(int descriptor, uint64_t as) const;

  void wait();
  void reap();
  void replace_keeper();
  void on_end(RankProcess& rank);
  void on_failure(int rank);
  void on_signal(int signal);

  void end_soon();
  void escalate();
  void signal_all(int signal) const;
  bool is_over();
  bool relays_ended();

  bool follows(int rank) const;
  std::string cause(int rank) const;
  int report() const;

  const Job& job_;
  const Signals signals_;  // first: nothing may come while ranks are started
  std::shared_ptr<shm::Segment> segment_;
  Starter starter_;
  Descriptor poll_;
  std::vector<RankProcess> ranks_;
  std::unordered_map<pid_t, size_t> rank_of_;
  std::vector<std::unique_ptr<Relay>> relays_;
  pid_t keeper_ = -1;
  int keepers_replaced_ = 0;
  size_t running_ = 0;

  Phase phase_ = Phase::none;
  Clock::time_point deadline_ = Clock::time_point::max();
  int failed_ = -1;  // the rank that failed first
  std::optional<StartFailure> not_started_;
  sigset_t passed_on_ = {};
  int interrupts_ = 0;
  bool finishing_ = false;
  bool abandoned_ = false;
};

void Launcher::start() {
  // What a rank leaves behind becomes our child, so that we know of it and can end it.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!poll_) fail_with_errno("epoll");
  watch(signals_.descriptor(), kSignal);
  std::vector<Descriptor> output, errors;
  for (int r = 0; r < job_.ranks; ++r) {
    auto started = starter_.start(r);
    watch(started.rank.process.get(), static_cast<uint64_t>(r));
    rank_of_[started.rank.pid] = static_cast<size_t>(r);
    ranks_.push_back(std::move(started.rank));
    output.push_back(std::move(started.output));
    errors.push_back(std::move(started.errors));
  }
  running_ = ranks_.size();
  keeper_ = start_keeper(ranks_, *segment_);
  if (job_.prefix) start_relays(std::move(output), std::move(errors));  // threads: after the ranks are forked
  if (job_.verbose) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      say("rank {} is process {}{}", r, ranks_[r].pid,
          job_.cpus.empty() ? "" : fmt::format(", bound to CPU {}", fmt::join(job_.cpus[r], ",")));
    }
  }
  starter_.open_gate();
}

void Launcher::start_relays(std::vector<Descriptor> output, std::vector<Descriptor> errors) {
  const auto guard = std::make_shared<std::mutex>();
  relays_.push_back(std::make_unique<Relay>(STDOUT_FILENO, std::move(output), guard));
  relays_.push_back(
      std::make_unique<Relay>(STDERR_FILENO, std::move(errors),
                              one_file(STDOUT_FILENO, STDERR_FILENO) ? guard : std::make_shared<std::mutex>()));
  for (const auto& relay : relays_) watch(relay->ended(), kRelay);
}

void Launcher::watch(int descriptor, uint64_t as) const {
  epoll_event event = {};
  event.events = EPOLLIN | (as == kRelay ? EPOLLONESHOT : 0u);
  event.data.u64 = as;
  if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) fail_with_errno("epoll");
}

void Launcher::wait() {
  int timeout_ms = -1;
  if (deadline_ != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    // That a process has left a rank's group is no event: look now and then.
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, running_ == 0 ? 20 : 60'000));
  }
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  bool signaled = false;
  // The kernel lists what became ready in that order: so the first rank here is the first that ended.
  for (int i = 0; i < count; ++i) {
    const uint64_t what = events[static_cast<size_t>(i)].data.u64;
    if (what == kSignal) signaled = true;
    if (what < ranks_.size()) on_end(ranks_[what]);
  }
  if (!signaled) return;
  while (const auto signal = signals_.next()) on_signal(*signal);
}

// A rank's status is kept until its turn; others are the keeper, and what ranks left behind.
void Launcher::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == keeper_) replace_keeper();
    const auto found = rank_of_.find(pid);
    if (found == rank_of_.end() || ranks_[found->second].reaped) continue;
    ranks_[found->second].status = status;
    ranks_[found->second].reaped = true;
  }
}

// Without one the ranks that have not joined would outlive a launcher that is killed.
void Launcher::replace_keeper() {
  constexpr int kMostKeepers = 16;  // something that kills each of them would else keep this one busy
  keeper_ = -1;
  if (++keepers_replaced_ > kMostKeepers) return;
  try {
    keeper_ = start_keeper(ranks_, *segment_);
  } catch (const Error&) {  // no room for another process: the job goes on without
  }
}

void Launcher::on_end(RankProcess& rank) {
  const int r = static_cast<int>(&rank - ranks_.data());
  epoll_ctl(poll_.get(), EPOLL_CTL_DEL, rank.process.get(), nullptr);
  if (!rank.reaped) waitpid(rank.pid, &rank.status, 0);
  rank.reaped = rank.ended = true;
  --running_;
  segment_->note_end(r, rank.status);
  if (job_.verbose) say("rank {} {}", r, shm::text_of_status(rank.status));
  while (const auto failure = starter_.failure()) {
    if (!not_started_) not_started_ = failure;
  }
  if (rank.status != 0) on_failure(r);
}

void Launcher::on_failure(int rank) {
  const bool first = failed_ < 0;
  // A rank that fell with another may end before it does, but says so.
  if (first || (phase_ <= Phase::grace && follows(failed_) && !follows(rank))) failed_ = rank;
  if (!job_.keep_going) {
    end_soon();
  } else if (first && !not_started_) {
    say("{}; the others go on", cause(rank));
  }
}

void Launcher::on_signal(int signal) {
  if (signal == SIGCHLD) return reap();
  if (finishing_ && (signal == SIGINT || signal == SIGTERM)) abandoned_ = true;
  if (signal == SIGINT && ++interrupts_ > 1) {
    phase_ = Phase::term;
    return escalate();
  }
  sigaddset(&passed_on_, signal);
  signal_all(signal);
  if (signal == SIGTSTP) raise(SIGSTOP);
}

void Launcher::end_soon() {
  if (phase_ != Phase::none) return;
  phase_ = Phase::grace;
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(job_.grace_s));
}

void Launcher::escalate() {
  if (phase_ == Phase::grace) {
    phase_ = Phase::term;
    deadline_ = Clock::now() + kAfterTerm;
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process would not see it
  } else {
    phase_ = Phase::kill;
    deadline_ = Clock::time_point::max();
    signal_all(SIGKILL);
  }
}

void Launcher::signal_all(int signal) const {
  for (const RankProcess& rank : ranks_) rank.signal_group(signal);
}

bool Launcher::is_over() {
  if (abandoned_) return true;
  if (running_ > 0) return false;
  if (!finishing_) {
    // Something like `tee` may still have to write; it has as long as ranks have when one failed.
    const bool left_behind =
        std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.group_lives(); });
    if (left_behind) {
      end_soon();
      return false;
    }
    finishing_ = true;
    deadline_ = Clock::time_point::max();
    for (const auto& relay : relays_) relay->finish();
  }
  return relays_ended();
}

bool Launcher::relays_ended() {
  return std::all_of(relays_.begin(), relays_.end(), [](const auto& relay) {
    pollfd ended = {relay->ended(), POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  });
}

bool Launcher::follows(int rank) const {
  const std::string words = segment_->last_words(rank);
  return words.starts_with("tessera::PeerLostError") || words.starts_with("tessera::AbortedError");
}

std::string Launcher::cause(int rank) const {
  const int status = ranks_[static_cast<size_t>(rank)].status;
  if (WIFSIGNALED(status) && sigismember(&passed_on_, WTERMSIG(status)) == 1) {
    return fmt::format("stopped by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  std::string text = fmt::format("rank {} failed: {}", rank, shm::text_of_status(status));
  const std::string words = first_line(segment_->last_words(rank));
  if (!words.empty()) text += " after an exception that nobody caught: " + words;
  return text;
}

int Launcher::report() const {
  if (failed_ < 0) return 0;
  if (not_started_) {
    const char* error = std::strerror(not_started_->error);
    if (not_started_->step == StartFailure::Step::bind) {
      say("cannot bind rank {} to CPU {}: {}", not_started_->rank,
          fmt::join(job_.cpus[static_cast<size_t>(not_started_->rank)], ","), error);
      return 1;
    }
    const bool script = not_started_->error == ENOENT && access(job_.command[0].c_str(), X_OK) == 0;
    say("cannot run {}: {}{}", job_.command[0], error, script ? ": the interpreter in its first line" : "");
    return not_started_->error == ENOENT || not_started_->error == ENOTDIR ? kNotFound : kNotRunnable;
  }
  if (!job_.keep_going) say("{}", cause(failed_));
  const int status = ranks_[static_cast<size_t>(failed_)].status;
  return WIFSIGNALED(status) ? kBySignal + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

int launch(const Job& job) {
  fill_streams();
  return Launcher(job).run();
}

}  // namespace tessera::cli
