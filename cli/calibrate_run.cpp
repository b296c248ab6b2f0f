// The coordinator of `tessera calibrate`: which plans the ranks are asked to run, and what follows from the times.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <sstream>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"
#include "bench_session.hpp"
#include "calibrate.hpp"
#include "collective/moves.hpp"
#include "comm/board.hpp"
#include "progress.hpp"
#include "tensor/cache.hpp"

namespace tessera::cli {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kCalibrateRounds = 4;  // others disturb for a while, and nobody helps, so the best of them counts
constexpr double kCallsNs = 100e3;   // shorter calls are timed several at once
constexpr const char* kPlayerName = "tessera";
constexpr double kElementBytes = 4, kMostColumns = 2048;

// What is measured for the fit: one step of one kind between two layouts.
struct FitCase {
  StepKind kind;
  size_t axis;
  Plan plan;
  double bytes;                     // as the planner counts them
  std::vector<double> rounds = {};  // the best of each, in microseconds
};

struct Question {
  std::string what;
  Layout from, to;
  Dims shape;
};

// A question with the plan that answers it, and how long that took.
struct Asked {
  std::string what;
  Plan plan;
  std::vector<double> rounds = {};
};

double least_of(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

// About so many bytes, each way divisible by `ranks`: square, but with rows of no more than 8 KiB, as weights have them.
Dims matrix(double bytes, int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  const auto divisible = [&](double extent) { return std::max<int64_t>(std::llround(extent / n), 1) * ranks; };
  const int64_t columns = divisible(std::min(std::sqrt(bytes / kElementBytes), kMostColumns));
  return {divisible(bytes / kElementBytes / static_cast<double>(columns)), columns};
}

double bytes_of_shape(const Dims& shape) { return static_cast<double>(volume(shape)) * kElementBytes; }

// The first is all latency. `announced`: so much is received where a rank's part is the largest that travels with its
// announcement, so there are sizes on both sides of that. `streamed`: the same where results begin to go around the cache.
// From there on a byte costs less, so sizes are some way before it and just behind it: one just before it would stand for
// few others.
std::vector<double> measured_sizes(double most, double announced, double streamed) {
  std::vector<double> sizes = {16};
  for (double bytes = 1024; bytes < 0.6 * announced; bytes *= 2) sizes.push_back(bytes);
  for (const double times : {0.7, 0.92, 1.1, 1.5}) sizes.push_back(times * announced);
  for (double bytes = 2 * announced; bytes < 0.6 * streamed; bytes *= 2) sizes.push_back(bytes);
  for (const double times : {0.75, 1.05}) sizes.push_back(times * streamed);
  for (double bytes = 2 * streamed; bytes < most; bytes *= 2) sizes.push_back(bytes);
  std::erase_if(sizes, [&](double bytes) { return bytes > 0.8 * most; });
  sizes.push_back(most);
  return sizes;
}

// None of those, and no multiple of them.
std::vector<double> checked_sizes(int64_t most) {
  std::vector<double> sizes;
  for (double bytes = 700; bytes < static_cast<double>(most); bytes *= 4.6) sizes.push_back(bytes);
  return sizes;
}

std::vector<double> nanoseconds(const std::string& text) {
  std::vector<double> list;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) list.push_back(std::stod(item));
  return list;
}

// The axes to measure. A mesh that was named has its own. Else there are groups of 2, 4, … neighbours, and one of all.
std::vector<MeasuredAxis> axes_for(const CalibrateOptions& options, int ranks) {
  std::vector<MeasuredAxis> axes;
  if (!options.mesh.empty()) {
    const Mesh mesh = Mesh::parse(options.mesh);
    for (size_t a = 0; a < mesh.ndim(); ++a) {
      if (mesh.size(a) > 1) axes.push_back({mesh, a, mesh.axes()[a].name});
    }
    return axes;
  }
  for (int64_t group = 2; group <= ranks; group = group * 2 > ranks && group < ranks ? ranks : group * 2) {
    axes.push_back({Mesh({{"group", ranks / group}, {"x", group}}), 1, "*"});
  }
  return axes;
}

class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options)
      : ranks_(ranks_for(options)), most_bytes_(parse_size(options.up_to)), session_(ranks_) {
    report_.options = options;
    report_.ranks = ranks_;
    report_.axes = axes_for(options, ranks_);
  }

  CalibrateReport run() {
    const auto start = std::chrono::steady_clock::now();
    session_.start(launch());
    session_.await_all();
    std::vector<FitCase> cases = fit_cases();
    const std::vector<Question> questions = all_questions();
    const size_t steps = (cases.size() + questions.size()) * kCalibrateRounds + cases.size();
    share_ns_ = report_.options.seconds * 1e9 / static_cast<double>(steps);
    Progress progress(steps);
    // One round for plans to begin with. Then what is fitted and what is checked takes turns, in another order each round, so
    // that a machine which gets busier meanwhile does so for all of them.
    take_round(cases, progress);
    fit(cases);
    plan_all(questions);
    for (FitCase& c : cases) c.rounds.clear();
    const auto begun = std::chrono::steady_clock::now();
    for (rounds_ = 0; rounds_ < kCalibrateRounds; ++rounds_) {
      if (rounds_ > 1 && Seconds(std::chrono::steady_clock::now() - begun).count() > report_.options.seconds) break;
      take_round(cases, progress);
    }
    fit(cases);
    report(questions, progress);
    session_.finish();
    report_.took_s = Seconds(std::chrono::steady_clock::now() - start).count();
    return std::move(report_);
  }

 private:
  static int ranks_for(const CalibrateOptions& options) {
    if (options.mesh.empty()) return options.ranks;
    const Mesh mesh = Mesh::parse(options.mesh);
    for (const int rank : mesh.ranks()) {
      if (rank >= mesh.size())
        throw Error(fmt::format("the mesh {} has rank {}: leave out what follows @", mesh, rank));
    }
    return static_cast<int>(mesh.size());
  }

  Launch launch() const {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string count = std::to_string(ranks_);
    std::vector<std::string> words{self, "calibrate-player", session_.socket(), report_.options.transport, count};
    if (report_.options.transport == "shm")
      words.insert(words.begin(), {self, "run", "-n", count, "--no-prefix", "--"});
    return {kPlayerName, {std::move(words)}};
  }

  // What is asked ------------------------------------------------------------------------------------------------------

  // Each group of ranks along the axis has such a matrix of its own: the other axes cut one more dimension. If all groups had
  // the same one, a plan could let them share the work, which is no collective on one axis.
  static Dims in_groups(const MeasuredAxis& axis, const Dims& shape) {
    Dims whole = shape;
    whole.push_back(axis.mesh.size() / axis.ranks());
    return whole;
  }
  static Layout along(const MeasuredAxis& axis, const Placement& placement, const Dims& shape) {
    std::vector<Placement> placements(axis.mesh.ndim(), Shard(2));
    placements[axis.axis] = placement;
    return Layout(axis.mesh, std::move(placements)).resolved(in_groups(axis, shape));
  }

  // Half of the ranks, to hand something to the other half.
  Layout half(bool second, const Dims& shape) const {
    std::vector<int> members(static_cast<size_t>(ranks_ / 2));
    std::iota(members.begin(), members.end(), second ? ranks_ / 2 : 0);
    return Layout(Mesh({{"x", ranks_ / 2}}, members), {Shard(0)}).resolved(shape);
  }

  static FitCase one_step(StepKind kind, size_t axis, double bytes, const Layout& from, const Layout& to,
                          const Dims& shape) {
    Step step;
    step.kind = kind;
    step.before = from;
    step.after = to;
    return {kind, axis, Plan(from, to, shape, DType::f32, {step}, Topology()), bytes};
  }

  void add_fit_cases(std::vector<FitCase>& cases, size_t a) const {
    const MeasuredAxis& axis = report_.axes[a];
    const auto n = static_cast<double>(axis.ranks()), most = static_cast<double>(most_bytes_);
    // `whole`: the bytes of the tensor for each that the busiest rank is to receive.
    const auto add = [&](StepKind kind, const Placement& from, const Placement& to, double whole, auto&& fits) {
      const auto part = [&](const Placement& p) { return p.kind == Placement::Kind::shard ? whole / n : whole; };
      // The sums of an all_reduce are shared out, and read by others next.
      const bool shared_out = kind == StepKind::all_reduce, sums = from.kind == Placement::Kind::partial;
      const int64_t streams = sums && !shared_out ? sum_stream_bytes() : copy_stream_bytes();
      const auto jump = static_cast<double>(streams) / (shared_out ? whole / n : part(to));
      for (const double bytes : measured_sizes(most, kInlineBoxesBytes / part(from), jump)) {
        const Dims shape = matrix(bytes * whole, axis.ranks());
        if (!fits(bytes_of_shape(shape))) continue;
        cases.push_back(one_step(kind, a, bytes_of_shape(shape) / whole, along(axis, from, shape),
                                 along(axis, to, shape), in_groups(axis, shape)));
      }
    };
    const auto all = [](double) { return true; };
    const double missing = n / (n - 1);
    add(StepKind::all_gather, Shard(0), Replicate(), missing, all);
    add(StepKind::reduce_scatter, Partial(), Shard(0), missing, all);
    // Smaller ones are one round, and no dearer than the exchange below.
    add(StepKind::all_reduce, Partial(), Replicate(), missing, [](double bytes) { return bytes > kOneRoundBytes; });
    add(StepKind::all_to_all, Shard(0), Shard(1), missing * n, all);
    // A reduction in one exchange, which is what the planner takes where an all-reduce would need two rounds. All ranks read
    // the same, so that more of it is in a cache than of a reduce-scatter, which has the same curve: larger ones, which no
    // plan takes, are left out.
    add(StepKind::direct, Partial(), Replicate(), 1 / (n - 1), [](double bytes) { return bytes < 65536; });
    if (a == 0) add(StepKind::embed, Shard(0), Partial(), 1, all);
  }

  std::vector<FitCase> fit_cases() const {
    std::vector<FitCase> cases;
    for (size_t a = 0; a < report_.axes.size(); ++a) add_fit_cases(cases, a);
    const auto jump = static_cast<double>(copy_stream_bytes());
    for (const double bytes : measured_sizes(static_cast<double>(most_bytes_), kInlineBoxesBytes, jump)) {
      const int receivers = ranks_ / 2;
      const Dims shape = matrix(bytes * receivers, receivers);
      cases.push_back(one_step(StepKind::direct, report_.axes.size(), bytes_of_shape(shape) / receivers,
                               half(false, shape), half(true, shape), shape));
    }
    return cases;
  }

  void add_questions(std::vector<Question>& questions, const MeasuredAxis& axis, double bytes) const {
    const auto n = static_cast<double>(axis.ranks());
    const std::string of = fmt::format("({})", axis.name == "*" ? fmt::format("{} ranks", axis.ranks()) : axis.name);
    const Dims shape = matrix(bytes * n / (n - 1), axis.ranks()),
               larger = matrix(bytes * n * n / (n - 1), axis.ranks());
    const auto add = [&](const char* what, const Placement& from, const Placement& to, const Dims& whole) {
      questions.push_back({what + of, along(axis, from, whole), along(axis, to, whole), in_groups(axis, whole)});
    };
    add("all_gather", Shard(0), Replicate(), shape);
    add("reduce_scatter", Partial(), Shard(0), shape);
    add("all_reduce", Partial(), Replicate(), shape);
    add("all_to_all", Shard(0), Shard(1), larger);
    Sizes sizes(static_cast<size_t>(axis.ranks()), larger[1] / axis.ranks());
    sizes.front() -= sizes.front() / 4;
    sizes.back() = larger[1] - std::accumulate(sizes.begin(), sizes.end() - 1, int64_t{0});
    add("ragged all_to_all", Shard(0), Shard(1, sizes), larger);
  }

  // Over all axes at once, each of which gets the other's dimension: no collective does that.
  void add_direct(std::vector<Question>& questions, double bytes) const {
    const MeasuredAxis& last = report_.axes.back();
    if (report_.axes.size() < 2 || last.name == "*") return;
    const auto n = static_cast<double>(ranks_);
    const Dims shape = matrix(bytes * n * n / (n - 1), ranks_);
    std::vector<Placement> from(last.mesh.ndim(), Replicate()), to = from;
    for (size_t i = 0; i < 2; ++i) {
      from[report_.axes[i].axis] = Shard(static_cast<int64_t>(i));
      to[report_.axes[i].axis] = Shard(static_cast<int64_t>(1 - i));
    }
    questions.push_back({fmt::format("direct({},{})", report_.axes[0].name, report_.axes[1].name),
                         Layout(last.mesh, from).resolved(shape), Layout(last.mesh, to).resolved(shape), shape});
  }

  std::vector<Question> all_questions() const {
    std::vector<Question> questions;
    for (const double bytes : checked_sizes(most_bytes_)) {
      for (const MeasuredAxis& axis : report_.axes) add_questions(questions, axis, bytes);
      add_direct(questions, bytes);
      const Dims shape = matrix(bytes * ranks_ / 2, ranks_ / 2);
      questions.push_back({"to other ranks", half(false, shape), half(true, shape), shape});
    }
    std::stable_sort(questions.begin(), questions.end(),
                     [](const Question& a, const Question& b) { return a.what < b.what; });
    return questions;
  }

  // What it takes ------------------------------------------------------------------------------------------------------

  // By sample, the slowest rank.
  std::vector<double> slowest(const std::string& line) {
    std::vector<double> most;
    for (const std::string& answer : session_.ask(kPlayerName, line)) {
      const auto times = nanoseconds(bench::parse_line(answer).word("ns"));
      most.resize(std::max(most.size(), times.size()));
      for (size_t i = 0; i < times.size(); ++i) most[i] = std::max(most[i], times[i]);
    }
    return most;
  }

  // The best, in microseconds, of as many calls as the case's share of the time allows: what others do on the machine only
  // adds to a time, and both what is fitted and what is checked is measured so.
  double best_us(const std::string& plan) {
    constexpr double kLeast = 5, kMost = 300;
    const double once = std::max(slowest("plan " + plan)[0], 1.0);
    const double inner = std::clamp(std::floor(kCallsNs / once), 1.0, 100.0);
    const double samples = std::clamp(std::floor(share_ns_ / (once * inner)), kLeast, kMost);
    return least_of(slowest(fmt::format("turn samples={:.0f} inner={:.0f}", samples, inner))) / 1000;
  }

  void take_round(std::vector<FitCase>& cases, Progress& progress) {
    std::vector<size_t> order(cases.size() + asked_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), shuffling_);
    for (const size_t i : order) {
      if (i < cases.size()) measure(cases[i], progress);
      else check(asked_[i - cases.size()], progress);
    }
  }

  void measure(FitCase& c, Progress& progress) {
    progress.step(fmt::format("measuring {} of {}", name(c.kind), size_text(std::llround(c.bytes))));
    c.rounds.push_back(best_us(c.plan.to_json()));
  }

  void fit(const std::vector<FitCase>& cases) {
    report_.measured.clear();
    for (const FitCase& c : cases) report_.measured.push_back({c.kind, c.axis, c.bytes, least_of(c.rounds)});
    report_.topology = fit_topology(report_.axes, report_.measured);
  }

  Plan plan_of(const Question& q) const { return plan(q.from, q.to, q.shape, DType::f32, report_.topology); }

  void plan_all(const std::vector<Question>& questions) {
    for (const Question& q : questions) asked_.push_back({q.what, plan_of(q)});
  }

  void check(Asked& asked, Progress& progress) {
    progress.step(fmt::format("checking {} of {}", asked.what, size_text(asked.plan.bytes_moved())));
    asked.rounds.push_back(best_us(asked.plan.to_json()));
  }

  // By the last prices. What has another plan by them is measured too, in as many rounds.
  void report(const std::vector<Question>& questions, Progress& progress) {
    std::vector<Asked> last;
    for (size_t i = 0; i < questions.size(); ++i) {
      last.push_back({questions[i].what, plan_of(questions[i])});
      if (goes_as(last[i].plan, asked_[i].plan)) last[i].rounds = asked_[i].rounds;
    }
    for (size_t round = 0; round < static_cast<size_t>(rounds_); ++round) {
      for (Asked& asked : last) {
        if (asked.rounds.size() <= round) check(asked, progress);
      }
    }
    for (const Asked& asked : last) report_.checks.push_back(row_of(asked));
  }

  static bool goes_as(const Plan& a, const Plan& b) {
    return std::equal(
        a.steps().begin(), a.steps().end(), b.steps().begin(), b.steps().end(),
        [](const Step& x, const Step& y) { return x.kind == y.kind && x.before == y.before && x.after == y.after; });
  }

  static CheckRow row_of(const Asked& asked) {
    CheckRow row{.what = asked.what, .steps = {}};
    for (const Step& step : asked.plan.steps())
      row.steps += (row.steps.empty() ? "" : ", ") + std::string(name(step.kind));
    row.bytes = asked.plan.bytes_moved();
    row.predicted_us = asked.plan.cost_us();
    row.measured_us = least_of(asked.rounds);
    double apart = 0;
    for (const double us : asked.rounds) apart += std::abs(std::log(us / row.measured_us));
    row.noise = std::exp(apart / std::max<double>(static_cast<double>(asked.rounds.size()) - 1, 1));
    return row;
  }

  int ranks_;
  int64_t most_bytes_;
  Session session_;
  CalibrateReport report_;
  double share_ns_ = 0;  // of a case, in a round
  int rounds_ = 0;       // that there was time for
  std::vector<Asked> asked_;
  std::mt19937 shuffling_;
};

}  // namespace

double CalibrateReport::error() const {
  double sum = 0;
  for (const CheckRow& row : checks) sum += std::abs(std::log(row.predicted_us / row.measured_us));
  return checks.empty() ? 0 : std::exp(sum / static_cast<double>(checks.size())) - 1;
}

std::vector<std::pair<std::string, double>> CalibrateReport::biases() const {
  std::vector<std::pair<std::string, double>> list;
  for (size_t begin = 0, end = 0; begin < checks.size(); begin = end) {  // they are in the order of `what`
    double sum = 0;
    for (end = begin; end < checks.size() && checks[end].what == checks[begin].what; ++end) {
      sum += std::log(checks[end].predicted_us / checks[end].measured_us);
    }
    list.emplace_back(checks[begin].what, std::exp(sum / static_cast<double>(end - begin)) - 1);
  }
  return list;
}

double CalibrateReport::noise() const {
  double sum = 0;
  for (const CheckRow& row : checks) sum += std::log(row.noise);
  return checks.empty() ? 0 : std::exp(sum / static_cast<double>(checks.size())) - 1;
}

CalibrateReport run_calibrate(const CalibrateOptions& options) { return Calibration(options).run(); }

}  // namespace tessera::cli
