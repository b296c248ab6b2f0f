// The chart: time over size, both logarithmic, a panel for each dimension and skew, a line for each contender.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include <tessera/version.hpp>

#include "bench.hpp"

namespace tessera::cli {
namespace {

constexpr double kPanelWidth = 820, kPanelHeight = 420;  // of a panel
constexpr double kLeft = 70, kRight = 220, kTop = 56, kBottom = 50;
constexpr double kLegendLine = 18;

// Told apart also without colours: each has its own dash as well. The first ones are ours.
constexpr const char* kColors[] = {"#c0392b", "#e67e22", "#8e44ad", "#d35400"};
constexpr const char* kOtherColors[] = {"#2471a3", "#17a589", "#7d6608", "#555555"};
constexpr const char* kDashes[] = {"", "6 3", "2 3", "8 3 2 3"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

std::string time_text(double ns) {
  return ns < 1e3   ? fmt::format("{:g} ns", ns)
         : ns < 1e6 ? fmt::format("{:g} µs", ns / 1e3)
         : ns < 1e9 ? fmt::format("{:g} ms", ns / 1e6)
                    : fmt::format("{:g} s", ns / 1e9);
}

class Panel {
 public:
  Panel(const BenchReport& report, std::vector<const BenchRow*> rows, double top)
      : report_(report), rows_(std::move(rows)), top_(top) {
    std::sort(rows_.begin(), rows_.end(), [](auto* a, auto* b) { return a->what.size_bytes < b->what.size_bytes; });
    low_size_ = std::log2(static_cast<double>(rows_.front()->what.size_bytes));
    high_size_ = std::log2(static_cast<double>(rows_.back()->what.size_bytes));
    if (high_size_ - low_size_ < 1) {  // one size: a column of points in the middle
      low_size_ -= 1;
      high_size_ += 1;
    }
    double low = 1e300, high = 0;
    for (const BenchRow* row : rows_) {
      for (const Times& t : row->times) {
        low = std::min(low, t.best_ns);
        high = std::max(high, t.best_ns);
      }
    }
    low_time_ = std::floor(std::log10(low));
    high_time_ = std::max(std::ceil(std::log10(high)), low_time_ + 1);
  }

  std::string svg() {
    const BenchCase& c = rows_.front()->what;
    text(kLeft, top_ + 22, "start", 15,
         fmt::format("{}, {} ranks, dim {}, {}: best time of a call", report_.options.op, report_.options.ranks,
                     c.layout.dim, c.skew));
    text(kLeft, top_ + 40, "start", 11,
         fmt::format("{}, {} cores; tessera {} on {}", report_.machine.cpu, report_.machine.cores, TESSERA_VERSION,
                     report_.options.transport));
    axes();
    for (size_t i = 0; i < report_.contenders.size(); ++i) series(i);
    return svg_;
  }

 private:
  double x(double log_size) const {
    return kLeft + (log_size - low_size_) / (high_size_ - low_size_) * (kPanelWidth - kLeft - kRight);
  }
  double y(double log_time) const {
    return top_ + kPanelHeight - kBottom -
           (log_time - low_time_) / (high_time_ - low_time_) * (kPanelHeight - kTop - kBottom);
  }

  void text(double at_x, double at_y, const char* anchor, int size, const std::string& words) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", at_x, at_y,
                        anchor, size, escaped(words));
  }
  void rule(double x1, double y1, double x2, double y2, const char* color) {
    svg_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
                        y2, color);
  }

  void axes() {
    for (double t = low_time_; t <= high_time_; ++t) {
      rule(kLeft, y(t), kPanelWidth - kRight, y(t), "#dddddd");
      text(kLeft - 8, y(t) + 4, "end", 11, time_text(std::pow(10.0, t)));
    }
    double last = -1e9;
    for (const BenchRow* row : rows_) {
      const double at = x(std::log2(static_cast<double>(row->what.size_bytes)));
      rule(at, y(low_time_), at, y(low_time_) + 5, "#333333");
      if (at - last < 48) continue;  // the labels would run into each other
      text(at, y(low_time_) + 19, "middle", 11, size_text(row->what.size_bytes));
      last = at;
    }
    rule(kLeft, y(low_time_), kPanelWidth - kRight, y(low_time_), "#333333");
    text((kLeft + kPanelWidth - kRight) / 2, top_ + kPanelHeight - 12, "middle", 12, "mean bytes a rank brings");
  }

  void series(size_t i) {
    size_t among_ours = 0, among_others = 0;
    for (size_t k = 0; k < i; ++k) (report_.contenders[k].ours() ? among_ours : among_others) += 1;
    const bool ours = report_.contenders[i].ours();
    const size_t which = (ours ? among_ours : among_others) % 4;
    const char* color = (ours ? kColors : kOtherColors)[which];
    std::string points, dots;
    for (const BenchRow* row : rows_) {
      const double at_x = x(std::log2(static_cast<double>(row->what.size_bytes)));
      const double at_y = y(std::log10(row->times[i].best_ns));
      points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", at_x, at_y);
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", at_x, at_y, color);
    }
    const std::string stroke = fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\"",
                                           color, ours ? 2.5 : 1.8, kDashes[which]);
    svg_ += fmt::format("<polyline points=\"{}\" {}/>\n{}", points, stroke, dots);
    const double legend = top_ + kTop + 10 + kLegendLine * static_cast<double>(i);
    const double left = kPanelWidth - kRight + 16;
    svg_ +=
        fmt::format("<polyline points=\"{0:.1f},{1:.1f} {2:.1f},{1:.1f}\" {3}/>\n", left, legend, left + 26, stroke);
    text(left + 32, legend + 4, "start", 12, report_.contenders[i].label());
  }

  const BenchReport& report_;
  std::vector<const BenchRow*> rows_;
  double top_;
  double low_size_ = 0, high_size_ = 0, low_time_ = 0, high_time_ = 0;  // logarithms
  std::string svg_;
};

}  // namespace

std::string to_svg(const BenchReport& report) {
  std::string body;
  double top = 0;
  for (size_t begin = 0, end = 0; begin < report.rows.size(); begin = end) {
    const BenchCase& first = report.rows[begin].what;
    std::vector<const BenchRow*> rows;
    for (end = begin; end < report.rows.size(); ++end) {
      const BenchCase& next = report.rows[end].what;
      if (next.layout.dim != first.layout.dim || next.skew != first.skew) break;
      rows.push_back(&report.rows[end]);
    }
    body += Panel(report, rows, top).svg();
    top += kPanelHeight;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" fill=\"#222222\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"#ffffff\"/>\n{2}</svg>\n",
      kPanelWidth, top, body);
}

}  // namespace tessera::cli
