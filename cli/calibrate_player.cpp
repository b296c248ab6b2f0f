// The ranks of `tessera calibrate`: they are sent plans, as JSON, and tell how long each call of them took.
#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include <tessera/tessera.hpp>

#include "calibrate.hpp"
#include "plan_runner.hpp"
#include "players/play.hpp"

namespace tessera::cli {
namespace {

class CalibrateRank {
 public:
  CalibrateRank(Comm& comm, const std::string& socket) : comm_(comm), channel_(bench::Channel::connect(socket)) {}

  void run() {
    bench::take_core(comm_.rank(), comm_.size());
    channel_.send(fmt::format("hello tessera {} {}", comm_.rank(), comm_.size()));
    while (const auto line = channel_.receive()) {
      if (*line == "quit") return;
      try {
        channel_.send(line->starts_with("plan ") ? prepare(line->substr(5)) : turn(bench::parse_line(*line)));
      } catch (const std::exception& error) {
        std::string text = error.what();
        std::replace(text.begin(), text.end(), '\n', ' ');
        channel_.send("failed " + text);
        throw;
      }
    }
  }

 private:
  // Calls it with each set of buffers, and answers how long the fastest call took: it says best how many there is time for.
  std::string prepare(const std::string& text) {
    runner_.reset();  // its memory is used again
    const Plan plan = Plan::from_json(text);
    Tensor x;
    if (const auto box = plan.from().box(plan.shape(), comm_.rank())) {
      x = comm_.allocate(plan.dtype(), box->extent);
      std::memset(x.data(), 0x3f, static_cast<size_t>(x.bytes()));  // numbers near 1
    }
    runner_.emplace(comm_, plan, x);
    double ns = sample_ns(1);
    for (size_t i = 0; i < runner_->sets(); ++i) ns = std::min(ns, sample_ns(1));
    return fmt::format("ready ns={:.1f}", ns);
  }

  std::string turn(const bench::Line& line) {
    std::vector<double> times;
    for (int64_t i = -1; i < line.number("samples"); ++i) {
      const double ns = sample_ns(line.number("inner"));
      if (i >= 0) times.push_back(ns);  // the first finds the ranks asleep
    }
    return fmt::format("done ns={:.1f}", fmt::join(times, ","));
  }

  double sample_ns(int64_t inner) {
    comm_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < inner; ++i) runner_->call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(inner);
  }

  Comm& comm_;
  bench::Channel channel_;
  std::optional<PlanRunner> runner_;
};

}  // namespace

int play_calibrate(const std::string& socket, const std::string& transport, int ranks) {
  if (transport == "threads") {
    tessera::run(ranks, [&](Comm& comm) { CalibrateRank(comm, socket).run(); });
  } else {
    Comm comm = Comm::from_env();
    CalibrateRank(comm, socket).run();
  }
  return 0;
}

}  // namespace tessera::cli
