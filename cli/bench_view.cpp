// How a report looks as a table, and as JSON.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tessera/version.hpp>

#include "bench.hpp"

namespace tessera::cli {
namespace {

// Four digits or so, whatever the size.
std::string number(double value) {
  return value < 10     ? fmt::format("{:.2f}", value)
         : value < 1000 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.0f}", value);
}
std::string microseconds(double ns) { return number(ns / 1000); }

double bandwidth(const BenchCase& c, const Times& times) {  // GB/s
  return static_cast<double>(c.algorithm_bytes()) / times.p50_ns;
}

std::string shape_text(const BenchCase& c) {
  const bool cut = c.layout.op != bench::Op::all_reduce && c.layout.op != bench::Op::broadcast;
  return cut ? fmt::format("dim {}, {}", c.layout.dim, c.skew == "one" ? "one rank has all" : c.skew)
             : "one shape on all ranks";
}

class Table {
 public:
  explicit Table(const BenchReport& report) : report_(report) {}

  std::string text() {
    head();
    for (size_t i = 0; i < report_.contenders.size(); ++i) {
      if (report_.contenders[i].ours()) tables_of(i);
    }
    tail();
    return text_;
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    std::string one = fmt::format(format, std::forward<Args>(args)...);
    one.erase(one.find_last_not_of(' ') + 1);
    text_ += one + '\n';
  }

  void head() {
    const Machine& m = report_.machine;
    line("tessera {}: {}, {} {}, transport {}", TESSERA_VERSION, report_.options.op, report_.options.ranks,
         report_.options.ranks == 1 ? "rank" : "ranks", report_.options.transport);
    line("{}, {} cores, {} of last-level cache, {}, load {:.2f}", m.cpu, m.cores, size_text(m.cache_bytes), m.kernel,
         m.load);
    line(
        "The contenders take turns in one run, five rounds; who has no turn sleeps. Rank r is on core r, if there are");
    line("enough. A sample: a barrier, then calls for 50 µs, one at least; its time is that of a call on the slowest");
    line("rank, in µs. Buffers rotate through up to 16 sets until they are twice the cache. size: mean bytes a rank");
    line("brings. algbw, busbw: GB/s of the median, as in nccl-tests. ratio: their best time over ours; above 1 ours");
    line("is faster.");
  }

  // One for each dimension and skew; what they have in common stands above them.
  void tables_of(size_t ours) {
    for (size_t begin = 0; begin < report_.rows.size();) {
      size_t end = begin;
      const std::string shape = shape_text(report_.rows[begin].what);
      while (end < report_.rows.size() && shape_text(report_.rows[end].what) == shape) ++end;
      const Contender& c = report_.contenders[ours];
      line("");
      line("{}: {}; input {}{}, output {}{}", report_.options.op, shape, c.memory,
           report_.options.rewrite ? ", written before each call" : "", c.output,
           report_.options.read ? ", read after each call" : "");
      table(ours, begin, end);
      begin = end;
    }
  }

  void table(size_t ours, size_t begin, size_t end) {
    std::string above = fmt::format("{:>9}  {:>52}", "", ""),
                below = fmt::format("{:>9}  {:>9}{:>9}{:>9}{:>9}{:>9}{:>7}", "size", "p50", "p99", "best", "algbw",
                                    "busbw", "#wrong");
    for (const size_t i : others()) {
      above += fmt::format("  {:>17}", report_.contenders[i].name);
      below += fmt::format("  {:>9}{:>8}", "best", "ratio");
    }
    line("{}", above);
    line("{}", below);
    for (size_t row = begin; row < end; ++row) this->row(ours, report_.rows[row]);
    for (size_t row = begin; row < end; ++row) {
      const std::string& how = report_.rows[row].times[ours].how;
      if (!how.empty()) line("{:>9}  {}", size_text(report_.rows[row].what.size_bytes), how);
    }
  }

  void row(size_t ours, const BenchRow& row) {
    const Times& t = row.times[ours];
    const double gbs = bandwidth(row.what, t);
    std::string text = fmt::format("{:>9}  {:>9}{:>9}{:>9}{:>9.2f}{:>9.2f}{:>7}", size_text(row.what.size_bytes),
                                   microseconds(t.p50_ns), microseconds(t.p99_ns), microseconds(t.best_ns), gbs,
                                   gbs * row.what.bus_factor(), t.wrong);
    for (const size_t i : others()) {
      const Times& other = row.times[i];
      text += fmt::format("  {:>9}{:>8}", microseconds(other.best_ns), number(other.best_ns / t.best_ns));
    }
    line("{}", text);
  }

  std::vector<size_t> others() const {
    std::vector<size_t> list;
    for (size_t i = 0; i < report_.contenders.size(); ++i) {
      if (!report_.contenders[i].ours()) list.push_back(i);
    }
    return list;
  }

  void tail() {
    if (!report_.notes.empty()) line("");
    for (const std::string& note : report_.notes) line("{}", note);
    for (const BenchRow& row : report_.rows) {
      for (size_t i = 0; i < row.times.size(); ++i) {
        if (row.times[i].wrong == 0) continue;
        line("WRONG: {}: {} elements at {}, {}", report_.contenders[i].label(), row.times[i].wrong,
             size_text(row.what.size_bytes), shape_text(row.what));
      }
    }
  }

  const BenchReport& report_;
  std::string text_;
};

nlohmann::ordered_json result_json(const BenchReport& report, const BenchRow& row, size_t i) {
  const Contender& c = report.contenders[i];
  const Times& t = row.times[i];
  nlohmann::ordered_json json{{"contender", c.name}};
  if (c.ours()) {
    json["memory"] = c.memory;
    json["output"] = c.output;
  }
  const double gbs = bandwidth(row.what, t);
  json.update({{"samples", t.samples},
               {"calls_a_sample", t.inner},
               {"best_us", t.best_ns / 1000},
               {"p50_us", t.p50_ns / 1000},
               {"p99_us", t.p99_ns / 1000},
               {"algbw_gb_s", gbs},
               {"busbw_gb_s", gbs * row.what.bus_factor()},
               {"wrong", t.wrong}});
  if (!t.how.empty()) json["schedule"] = t.how;
  if (!c.ours()) return json;
  for (size_t other = 0; other < report.contenders.size(); ++other) {
    if (report.contenders[other].ours()) continue;
    json["ratio"][report.contenders[other].name] = row.times[other].best_ns / t.best_ns;
  }
  return json;
}

nlohmann::ordered_json row_json(const BenchReport& report, const BenchRow& row) {
  const bench::Case& layout = row.what.layout;
  nlohmann::ordered_json json{{"size_bytes", row.what.size_bytes}, {"dim", layout.dim}, {"skew", row.what.skew}};
  for (int r = 0; r < layout.ranks(); ++r) {
    json["input_bytes"].push_back(bench::input_of(layout, r).elements() * 4);
  }
  json["sets_of_buffers"] = layout.sets;
  for (size_t i = 0; i < report.contenders.size(); ++i) json["results"].push_back(result_json(report, row, i));
  return json;
}

}  // namespace

std::string to_text(const BenchReport& report) { return Table(report).text(); }

std::string to_json(const BenchReport& report) {
  const Machine& m = report.machine;
  nlohmann::ordered_json json{{"version", TESSERA_VERSION},
                              {"command", report.options.command},
                              {"machine",
                               {{"cpu", m.cpu},
                                {"cores", m.cores},
                                {"last_level_cache_bytes", m.cache_bytes},
                                {"kernel", m.kernel},
                                {"load", m.load}}},
                              {"op", report.options.op},
                              {"ranks", report.options.ranks},
                              {"rewrite", report.options.rewrite},
                              {"read", report.options.read},
                              {"transport", report.options.transport},
                              {"ratio_is", "their best time over ours"},
                              {"notes", report.notes}};
  for (const BenchRow& row : report.rows) json["cases"].push_back(row_json(report, row));
  return json.dump(2) + '\n';
}

}  // namespace tessera::cli
