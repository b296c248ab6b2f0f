#include <algorithm>
#include <mutex>
#include <thread>

#include <tessera/comm.hpp>

#include "comm/comm_state.hpp"
#include "transport/threads/threads.hpp"

namespace tessera {
namespace {

// Whether an exception only says that another rank failed.
bool follows(const std::exception_ptr& error) {
  std::string text;
  const ErrorKind kind = detail::kind_of(error, text);
  return kind == ErrorKind::peer_lost || kind == ErrorKind::aborted;
}

// Which of the ranks' exceptions is the cause, and which only follow from it.
class Failures {
 public:
  void add(int rank, std::exception_ptr error) {
    const bool only_follows = follows(error);
    std::lock_guard lock(guard_);
    if (cause_ != nullptr && (only_follows || !cause_follows_)) return;
    detail::kind_of(error, text_);
    cause_ = std::move(error);
    cause_follows_ = only_follows;
    rank_ = rank;
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

std::string first_line(const std::exception_ptr& error) {
  std::string text;
  detail::kind_of(error, text);
  return text.substr(0, text.find('\n'));
}

void run_function(const std::shared_ptr<detail::CommState>& state, const std::function<void(Comm&)>& fn,
                  Failures& failures) {
  std::string farewell = "its function returned";
  {
    Comm comm(state);
    try {
      fn(comm);
    } catch (...) {
      farewell = "it threw: " + first_line(std::current_exception());
      failures.add(state->rank(), std::current_exception());
    }
  }
  state->close(farewell);
  // What a dropped Work threw, where no later call told it. That the communicator died follows from another cause.
  const auto dropped = state->take_deferred();
  if (dropped != nullptr && !follows(dropped)) failures.add(state->rank(), dropped);
}

// For a rank that could not be started: the others must not wait for it.
void give_up(const std::shared_ptr<Group>& group, int rank, Failures& failures) {
  failures.add(rank, std::current_exception());
  ThreadsTransport(group, rank).leave("it could not be started: " + first_line(std::current_exception()));
}

void run_rank(const std::shared_ptr<Group>& group, int rank, const std::function<void(Comm&)>& fn,
              const RunOptions& options, Failures& failures) {
  std::shared_ptr<detail::CommState> state;
  try {
    state = std::make_shared<detail::CommState>(std::make_unique<ThreadsTransport>(group, rank), options.name,
                                                options.timeout);
  } catch (...) {
    give_up(group, rank, failures);
    return;
  }
  run_function(state, fn, failures);
}

}  // namespace

Comm alone(const RunOptions& options) {
  auto group = std::make_shared<Group>(1, options.probe);
  return Comm(std::make_shared<detail::CommState>(std::make_unique<ThreadsTransport>(std::move(group), 0), options.name,
                                                  options.timeout));
}

void run(int ranks, const std::function<void(Comm&)>& fn, const RunOptions& options) {
  if (ranks < 1 || ranks > static_cast<int>(kMostRanks)) {
    throw Error(fmt::format("run: {} ranks; 1 to {} work", ranks, kMostRanks));
  }
  if (options.timeout.count() <= 0)
    throw Error(fmt::format("run: a timeout of {} ns is not positive", options.timeout.count()));
  auto group = std::make_shared<Group>(ranks, options.probe);
  Failures failures;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    try {
      threads.emplace_back([&, r] { run_rank(group, r, fn, options, failures); });
    } catch (const std::exception&) {
      give_up(group, r, failures);
    }
  }
  for (std::thread& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace tessera
