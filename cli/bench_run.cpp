// The coordinator: who plays, and how many samples each of them takes in each turn.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"
#include "bench_session.hpp"
#include "progress.hpp"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kBenchRounds = 5;
constexpr double kSampleNs = 50e3;  // shorter calls are timed several at once
constexpr int64_t kMostInner = 1000;
constexpr int64_t kMostSamples = 400;  // a turn
// A contender that spins where ranks share cores can take seconds for a call. With so many times its --seconds spent on a
// case, it gets no further turn there.
constexpr double kPatience = 10;

// How the players are started -----------------------------------------------------------------------------------------

class PlayerLauncher {
 public:
  PlayerLauncher(const BenchOptions& options, const Session& session)
      : options_(options), session_(session), self_(fs::read_symlink("/proc/self/exe")) {}

  // `name` is the one its ranks say. Throws Error with the remedy where what it needs is not built or not installed.
  Launch launch(const Contender& contender, const std::string& name) const {
    if (contender.ours()) return ours(name);
    if (contender.name.starts_with("openmpi")) return openmpi(name);
    if (contender.name.starts_with("mpich")) return mpich(name);
    if (contender.name == "gloo") return gloo(name);
    return {name, {{self_, "bench-player", "memcpy", name, session_.socket(), ranks()}}};
  }

 private:
  std::string ranks() const { return std::to_string(options_.ranks); }

  Launch ours(const std::string& name) const {
    std::vector<std::string> words{self_, "bench-player", options_.transport, name, session_.socket(), ranks()};
    std::vector<std::string> launcher;
    if (options_.transport == "shm") launcher = {self_, "run", "-n", ranks(), "--no-prefix", "--"};
    if (options_.transport == "openmpi") launcher = openmpi_run();
    if (options_.transport == "mpich") launcher = {TESSERA_MPICH_RUN, "-n", ranks()};
    if (!launcher.empty() && launcher[0].empty())
      throw Error(options_.transport + " was not there when this was built");
    words.insert(words.begin(), launcher.begin(), launcher.end());
    return {name, {std::move(words)}};
  }

  std::vector<std::string> openmpi_run() const {
    std::vector<std::string> words{TESSERA_OPENMPI_RUN, "-n", ranks(), "--bind-to", "none"};
    // Only where it must be: told that cores are shared, Open MPI gives its core away whenever it waits.
    if (options_.ranks > static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))) words.emplace_back("--oversubscribe");
    if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
    for (const char* word : {"--mca", "btl_base_warn_component_unused", "0", "--mca", "orte_tmpdir_base"}) {
      words.emplace_back(word);
    }
    // Each its own: two that start at once can fail where both make the same folder. A short name, as sockets lie there.
    const std::string folder = fmt::format("{}/{}", session_.directory(), ++folders_);
    fs::create_directory(folder);
    words.push_back(folder);
    return words;
  }

  Launch openmpi(const std::string& name) const {
    return mpi(name, openmpi_run(), "player_openmpi", "apt-get install libopenmpi-dev openmpi-bin");
  }

  Launch mpich(const std::string& name) const {
    return mpi(name, {TESSERA_MPICH_RUN, "-n", ranks()}, "player_mpich", "apt-get install libmpich-dev mpich");
  }

  Launch mpi(const std::string& name, std::vector<std::string> words, const char* program, const char* remedy) const {
    const std::string path = beside(program);
    if (words[0].empty() || path.empty()) throw Error(fmt::format("not found; {}, and build again", remedy));
    words.insert(words.end(), {path, name, session_.socket()});
    return {name, {std::move(words)}};
  }

  Launch gloo(const std::string& name) const {
    const char* named = std::getenv("TESSERA_PYTHON");
    const std::string python = !options_.python.empty()             ? options_.python
                               : named != nullptr && *named != '\0' ? named
                                                                    : "python3";
    const std::string script = beside("gloo_player.py");
    if (script.empty()) throw Error("not found: build again, with the benchmarks");
    Launch launch{name, {}};
    for (int rank = 0; rank < options_.ranks; ++rank) {
      launch.processes.push_back(
          {python, script, name, session_.socket(), std::to_string(rank), ranks(), session_.directory() + "/store"});
    }
    return launch;
  }

  // Where the build or the installation has put it; empty: nowhere.
  std::string beside(const char* program) const {
    const fs::path here = fs::path(self_).parent_path();
    for (const fs::path& path : {here / "bench" / program, here / "../libexec/tessera" / program}) {
      if (fs::exists(path)) return path;
    }
    return {};
  }

  const BenchOptions& options_;
  const Session& session_;
  std::string self_;
  mutable int folders_ = 0;
};

// What they measure ---------------------------------------------------------------------------------------------------

struct Turn {
  std::vector<double> samples;  // ns a call, of the slowest rank
  int64_t wrong = 0;
  double took_ns = 0;
};

std::vector<double> decimals(const std::string& text) {
  std::vector<double> list;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) list.push_back(std::stod(item));
  return list;
}

Turn take_turn(Session& session, const std::string& name, int64_t samples, int64_t inner, bool check) {
  Turn turn;
  const auto start = std::chrono::steady_clock::now();
  const auto answers =
      session.ask(name, fmt::format("turn samples={} inner={} check={}", samples, inner, check ? 1 : 0));
  for (const std::string& answer : answers) {
    const bench::Line line = bench::parse_line(answer);
    const auto times = decimals(line.word("ns"));
    turn.samples.resize(std::max(turn.samples.size(), times.size()));
    for (size_t i = 0; i < times.size(); ++i) turn.samples[i] = std::max(turn.samples[i], times[i]);
    turn.wrong += line.number("wrong");
  }
  turn.took_ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  return turn;
}

double quantile(const std::vector<double>& sorted, double q) {
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : session_(options.ranks, "--against leaves a contender out.") {
    report_.options = options;
    report_.machine = this_machine();
    cases_ = make_cases(options, report_.machine.cache_bytes);
  }

  BenchReport run() {
    invite();
    check_memory();
    Progress progress(cases_.size() * names_.size() * (kBenchRounds + 1));
    for (const BenchCase& c : cases_) report_.rows.push_back({c, measure(c, progress)});
    session_.finish();
    return std::move(report_);
  }

 private:
  void invite() {
    const PlayerLauncher launcher(report_.options, session_);
    std::vector<Contender> wanted;
    for (const std::string& memory : report_.options.memory) {
      for (const std::string& output : report_.options.output) wanted.push_back({"tessera", memory, output});
    }
    for (const std::string& name : report_.options.against) {
      const size_t dash = name.find('-');  // memcpy-fresh, openmpi-raw, mpich-least
      wanted.push_back({.name = name, .output = dash == std::string::npos ? "" : name.substr(dash + 1)});
    }
    for (const Contender& contender : wanted) {
      std::string name = contender.label();
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
      try {
        session_.start(launcher.launch(contender, name));
      } catch (const Error& error) {
        report_.notes.push_back(fmt::format("{}: {}", contender.name, error.what()));
        continue;
      }
      names_.push_back(name);
      report_.contenders.push_back(contender);
    }
    for (const auto& [name, reason] : session_.await_all()) {
      report_.notes.push_back(fmt::format("{}: {}", name, reason));
      const auto at = std::find(names_.begin(), names_.end(), name) - names_.begin();
      names_.erase(names_.begin() + at);
      report_.contenders.erase(report_.contenders.begin() + at);
    }
  }

  void check_memory() const {
    int64_t most = 0;
    for (const BenchCase& c : cases_) most = std::max(most, c.bytes_per_set() * c.layout.sets);
    const int64_t needed = most * static_cast<int64_t>(names_.size());
    if (report_.machine.available_bytes > 0 && needed > report_.machine.available_bytes) {
      throw Error(
          fmt::format("the buffers of {} contenders take {}, and only {} of memory are free; "
                      "choose smaller --sizes, or fewer with --against",
                      names_.size(), size_text(needed), size_text(report_.machine.available_bytes)));
    }
  }

  // What one contender has shown in one case.
  struct Record {
    std::vector<double> samples = {};
    int64_t wrong = 0;
    int64_t inner = 1;
    double best_ns = 0;
    double usual_ns = 0;  // in the last turn
    double spent_ns = 0;

    void add(const Turn& turn, bool counts) {
      spent_ns += turn.took_ns;
      wrong += turn.wrong;
      std::vector<double> sorted = turn.samples;
      std::sort(sorted.begin(), sorted.end());
      const double best = std::max(1.0, sorted.front());
      best_ns = best_ns == 0 ? best : std::min(best_ns, best);
      usual_ns = quantile(sorted, 0.5);
      if (counts) samples.insert(samples.end(), turn.samples.begin(), turn.samples.end());
    }

    Times times() {
      std::sort(samples.begin(), samples.end());
      return {.best_ns = samples.front(),
              .p50_ns = quantile(samples, 0.5),
              .p99_ns = quantile(samples, 0.99),
              .samples = static_cast<int64_t>(samples.size()),
              .inner = inner,
              .wrong = wrong};
    }
  };

  std::vector<Times> measure(const BenchCase& c, Progress& progress) {
    const std::string label = fmt::format("{} {} {}", report_.options.op, size_text(c.size_bytes), c.skew);
    std::vector<Record> records(names_.size());
    for (size_t i = 0; i < names_.size(); ++i) {
      progress.step(label + ": " + names_[i] + " prepares");
      prepare(c, i, records[i]);
    }
    for (int round = 0; round < kBenchRounds; ++round) {
      for (size_t i = 0; i < names_.size(); ++i) {
        progress.step(label + ": " + names_[i]);
        if (round > 0 && records[i].spent_ns > kPatience * report_.options.seconds * 1e9) continue;
        records[i].add(timed_turn(i, records[i], round == kBenchRounds - 1), true);
      }
    }
    std::vector<Times> times;
    for (size_t i = 0; i < names_.size(); ++i) {
      times.push_back(records[i].times());
      if (report_.contenders[i].ours()) times.back().how = session_.ask(names_[i], "how")[0].substr(4);
    }
    return times;
  }

  // Turns that are not counted: one call that tells how long it takes, then as many as there are sets of buffers, if they
  // do not take too long. They warm up and are checked.
  void prepare(const BenchCase& c, size_t i, Record& record) {
    bench::Case layout = c.layout;
    layout.memory = report_.contenders[i].memory;
    layout.output = report_.contenders[i].output;
    layout.rewrite = report_.options.rewrite;
    layout.read = report_.options.read;
    session_.ask(names_[i], bench::to_line(layout));
    record.add(take_turn(session_, names_[i], 1, 1, true), false);
    const auto samples = static_cast<int64_t>(report_.options.seconds * 1e9 / std::max(1.0, record.usual_ns));
    record.add(take_turn(session_, names_[i], std::clamp<int64_t>(samples, 1, layout.sets), 1, true), false);
  }

  // Calls a sample by the best time so far, because the first turn may have been disturbed; samples a turn by the usual
  // time, so that on a busy machine a run does not take for ever.
  Turn timed_turn(size_t i, Record& record, bool check) {
    record.inner = std::clamp<int64_t>(static_cast<int64_t>(kSampleNs / record.best_ns) + 1, 1, kMostInner);
    const double turn_ns = report_.options.seconds * 1e9 / kBenchRounds;
    const double sample_ns = std::max(1.0, record.usual_ns) * static_cast<double>(record.inner);
    const auto samples = std::clamp<int64_t>(static_cast<int64_t>(turn_ns / sample_ns), 1, kMostSamples);
    return take_turn(session_, names_[i], samples, record.inner, check);
  }

  Session session_;
  BenchReport report_;
  std::vector<BenchCase> cases_;
  std::vector<std::string> names_;  // of the players, by contender
};

}  // namespace

bool BenchReport::right() const {
  for (const BenchRow& row : rows) {
    for (const Times& times : row.times) {
      if (times.wrong != 0) return false;
    }
  }
  return true;
}

BenchReport run_bench(const BenchOptions& options) { return Bench(options).run(); }

}  // namespace tessera::cli
