// How the demo's report looks: on a terminal, and as JSON.
#include <algorithm>

#include <fmt/color.h>
#include <nlohmann/json.hpp>

#include "demo.hpp"

namespace tessera::cli {
namespace {

constexpr size_t kDemoWidth = 78;
constexpr size_t kShownRanks = 6;  // of more ranks, the first few

class DemoPage {
 public:
  DemoPage(const DemoReport& report, bool color) : report_(report), color_(color) {}

  std::string text() {
    line("tessera {}: {} as {}; rows of {} float32, {} bytes each", TESSERA_VERSION,
         report_.ranks == 1 ? "1 rank" : fmt::format("{} ranks", report_.ranks),
         report_.ranks == 1 ? "a thread" : "threads", report_.columns, report_.row_bytes);
    gather();
    gradient();
    error();
    costs();
    verdict();
    return text_;
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }
  void heading(const std::string& title) { text_ += '\n' + paint(title, fmt::emphasis::bold) + '\n'; }

  std::string paint(const std::string& text, fmt::text_style style) const {
    return color_ ? fmt::format(style, "{}", text) : text;
  }
  std::string good(const std::string& text) const { return paint(text, fg(fmt::terminal_color::green)); }
  std::string bad(const std::string& text) const { return paint(text, fg(fmt::terminal_color::red)); }

  // One sign a row: a block in the rank's colour, or without colours a character that tells the ranks apart.
  std::string blocks(int rank, int64_t rows) const {
    using enum fmt::terminal_color;
    constexpr fmt::terminal_color kRankColors[] = {bright_blue,    bright_yellow, bright_green,
                                                   bright_magenta, bright_cyan,   red};
    constexpr std::string_view kSigns = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@#";
    if (rows == 0) return {};
    std::string text;
    for (int64_t i = 0; i < rows; ++i)
      text += color_ ? "█" : std::string(1, kSigns[static_cast<size_t>(rank) % kSigns.size()]);
    return paint(text, fg(kRankColors[static_cast<size_t>(rank) % std::size(kRankColors)]));
  }

  void gather() {
    heading("1 all_gather: each rank has its own number of rows; one call, no padding");
    const auto ranks = static_cast<size_t>(report_.ranks);
    for (size_t r = 0; r < std::min(ranks, kShownRanks); ++r) {
      const std::string bar = blocks(static_cast<int>(r), report_.rows[r]);
      line("  rank {:<2} {:>4} row{}{}{}", r, report_.rows[r], report_.rows[r] == 1 ? "" : "s",
           report_.rows[r] == 1 ? "  " : " ", bar.empty() ? "-" : bar);
    }
    if (ranks > kShownRanks) line("  … and {} more ranks", ranks - kShownRanks);
    std::string bar;
    int64_t shown = 0;
    for (size_t r = 0; r < ranks && shown < 40; ++r) {
      bar += blocks(static_cast<int>(r), report_.rows[r]);
      shown += report_.rows[r];
    }
    line("  result  {:>4} rows {}{}  on every rank", report_.result[0], bar, shown < report_.result[0] ? "…" : "");
    heading("2 split: the same sizes cut it again");
    line("  every rank has its own rows back: {}", mark("split"));
  }

  // "ok", unless a failed check begins with that word.
  std::string mark(const std::string& word) const {
    const bool failed = std::any_of(report_.failures.begin(), report_.failures.end(),
                                    [&](const std::string& failure) { return failure.starts_with(word); });
    return failed ? bad("no") : good("ok");
  }

  void gradient() {
    heading("3 gradient: rank r's loss is (r+1)/2 |y|² of all gathered rows y; they add up");
    const size_t count = std::min(report_.gradients.size(), kShownRanks);
    std::string head, whole, sum, slice;
    for (size_t i = 0; i < count; ++i) {
      const auto& g = report_.gradients[i];
      head += fmt::format("{:>8}", fmt::format("rank {}", g.rank));
      whole += fmt::format("{:>8}", g.one_process);
      sum += g.sum == g.one_process ? good(fmt::format("{:>8}", g.sum)) : bad(fmt::format("{:>8}", g.sum));
      slice += g.slice == g.one_process ? good(fmt::format("{:>8}", g.slice)) : bad(fmt::format("{:>8}", g.slice));
    }
    line("  {:<19}{}", "of the first row on", head);
    line("  {:<19}{}", "one process", whole);
    line("  {:<19}{}", "GradReduce::sum", sum);
    line("  {:<19}{}", "GradReduce::slice", slice);
    line("  {}", report_.slice_is_right ? "One rank has no others: slice and sum are the same."
                                        : "slice is wrong: what the other ranks' losses contribute is lost.");
  }

  void error() {
    heading(fmt::format("4 a mistake: {}", report_.ranks == 1 ? "sizes that do not fit the tensor"
                                                              : "the last rank's rows are half as wide"));
    line("  tessera::{}, the same on every rank:", report_.error_class);
    std::string_view rest = report_.error_text;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      wrapped(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

  // Broken between words, with the rest further in.
  void wrapped(std::string_view words) {
    std::string indent = "  | ";
    while (indent.size() + words.size() > kDemoWidth) {
      const size_t cut = words.rfind(' ', kDemoWidth - indent.size());
      line("{}{}", indent, words.substr(0, cut));
      words.remove_prefix(cut);
      words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
      indent = "  |       ";
    }
    line("{}{}", indent, words);
  }

  void costs() {
    heading("5 what it took a rank (bytes: the mean; counts: the most), from comm.stats()");
    line("  {:<24}{:>10}{:>10}{:>8}{:>11}{:>13}", "", "received", "copied", "copies", "exchanges", "allocations");
    for (const Cost& cost : report_.costs) {
      const auto most = [&](int64_t Stats::*field) {
        int64_t count = 0;
        for (const Stats& stats : cost.by_rank) count = std::max(count, stats.*field);
        return count;
      };
      line("  {:<24}{:>8.0f} B{:>8.0f} B{:>8}{:>11}{:>13}", cost.what, mean(cost, &Stats::bytes_received),
           mean(cost, &Stats::bytes_copied), most(&Stats::copies), most(&Stats::exchanges), most(&Stats::allocations));
    }
    const double whole = static_cast<double>(report_.result[0] * report_.row_bytes);
    line("  The padded way {}: {:.3g} bytes written for",
         report_.ranks == 1 ? "gathers and concatenates" : "pads, gathers, concatenates and selects",
         mean(report_.costs[1], &Stats::bytes_copied) / whole);
    line("  each byte of the result, where all_gather writes {:.3g}.",
         mean(report_.costs[0], &Stats::bytes_copied) / whole);
  }

  double mean(const Cost& cost, int64_t Stats::*field) const {
    double sum = 0;
    for (const Stats& stats : cost.by_rank) sum += static_cast<double>(stats.*field);
    return sum / report_.ranks;
  }

  void verdict() {
    text_ += '\n';
    if (report_.failures.empty()) line("{}", good("all checks passed"));
    for (const std::string& failure : report_.failures) line("{} {}", bad("FAILED:"), failure);
  }

  const DemoReport& report_;
  bool color_;
  std::string text_;
};

nlohmann::ordered_json to_json(const Stats& s) {
  return {{"calls", s.calls},
          {"exchanges", s.exchanges},
          {"messages", s.messages},
          {"bytes_received", s.bytes_received},
          {"bytes_sent", s.bytes_sent},
          {"copies", s.copies},
          {"bytes_copied", s.bytes_copied},
          {"allocations", s.allocations},
          {"bytes_allocated", s.bytes_allocated}};
}

}  // namespace

std::string to_text(const DemoReport& report, bool color) { return DemoPage(report, color).text(); }

std::string to_json(const DemoReport& report) {
  using nlohmann::ordered_json;
  ordered_json gradients = ordered_json::array();
  for (const auto& g : report.gradients) {
    gradients.push_back({{"rank", g.rank}, {"one_process", g.one_process}, {"sum", g.sum}, {"slice", g.slice}});
  }
  ordered_json costs = ordered_json::array();
  for (const Cost& cost : report.costs) {
    ordered_json by_rank = ordered_json::array();
    for (const Stats& stats : cost.by_rank) by_rank.push_back(to_json(stats));
    costs.push_back({{"what", cost.what}, {"by_rank", by_rank}});
  }
  const ordered_json json = {{"version", TESSERA_VERSION},
                             {"ranks", report.ranks},
                             {"gather",
                              {{"rows", report.rows},
                               {"row_bytes", report.row_bytes},
                               {"result", std::vector(report.result.begin(), report.result.end())}}},
                             {"gradient", {{"of_first_row", gradients}, {"slice_is_right", report.slice_is_right}}},
                             {"error", {{"class", report.error_class}, {"text", report.error_text}}},
                             {"costs", costs},
                             {"failures", report.failures},
                             {"passed", report.failures.empty()}};
  return json.dump(2) + '\n';
}

}  // namespace tessera::cli
