#include <algorithm>
#include <mutex>
#include <thread>

#include <tessera/comm.hpp>

#include "comm/comm_state.hpp"
#include "transport/threads/threads.hpp"

namespace tessera {
namespace {

// Which of the ranks' exceptions is the cause, and which only follow from it.
class Failures {
 public:
  void add(int rank, std::exception_ptr error) {
    std::string text;
    const ErrorKind kind = detail::kind_of(error, text);
    const bool follows = kind == ErrorKind::peer_lost || kind == ErrorKind::aborted;
    std::lock_guard lock(guard_);
    if (cause_ == nullptr || (cause_follows_ && !follows)) {
      cause_ = std::move(error);
      cause_follows_ = follows;
      rank_ = rank;
      text_ = text;
    }
  }

  void rethrow() const {
    if (cause_ == nullptr) return;
    try {
      std::rethrow_exception(cause_);
    } catch (Error& error) {
      if (!error.collective()) error.add_context(fmt::format("rank {}", rank_));
      throw;
    } catch (...) {
      throw RankError(rank_, text_);  // nests what is being handled
    }
  }

 private:
  std::mutex guard_;
  std::exception_ptr cause_;
  bool cause_follows_ = false;
  int rank_ = -1;
  std::string text_;
};

void run_rank(const std::shared_ptr<Group>& group, int rank, const std::function<void(Comm&)>& fn,
              const RunOptions& options, Failures& failures) {
  const auto state = std::make_shared<detail::CommState>(std::make_unique<ThreadsTransport>(group, rank), options.name,
                                                         options.timeout);
  Comm comm(state);
  std::string farewell = "its function returned";
  try {
    fn(comm);
  } catch (...) {
    std::string text;
    detail::kind_of(std::current_exception(), text);
    farewell = "it threw: " + text.substr(0, text.find('\n'));
    failures.add(rank, std::current_exception());
  }
  state->close(farewell);
}

}  // namespace

void run(int ranks, const std::function<void(Comm&)>& fn, const RunOptions& options) {
  if (ranks < 1) throw Error(fmt::format("run: {} ranks; at least one is needed", ranks));
  if (options.timeout.count() <= 0)
    throw Error(fmt::format("run: a timeout of {} ns is not positive", options.timeout.count()));
  auto group = std::make_shared<Group>(ranks, options.probe);
  Failures failures;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { run_rank(group, r, fn, options, failures); });
  }
  for (std::thread& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace tessera
