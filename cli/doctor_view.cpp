// How the doctor's report looks: on a terminal, and as JSON.
#include <algorithm>
#include <sstream>

#include <fmt/color.h>
#include <nlohmann/json.hpp>

#include <tessera/version.hpp>

#include "doctor.hpp"

namespace tessera::cli {
namespace {

constexpr size_t kPageWidth = 78;
constexpr size_t kIndent = 26;  // of a check's text: behind its mark and its topic

const char* name_of(Mark mark) {
  switch (mark) {
    case Mark::ok: return "ok";
    case Mark::note: return "note";
    case Mark::problem: return "problem";
  }
  return "";
}

size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// In lines of kPageWidth; each but the first is indented.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string result, word;
  size_t column = kIndent;
  while (words >> word) {
    const size_t width = width_of(word);
    if (column > kIndent && column + 1 + width > kPageWidth) {
      result += '\n' + std::string(kIndent, ' ');
      column = kIndent;
    } else if (column > kIndent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += width;
  }
  return result + '\n';
}

class DoctorPage {
 public:
  DoctorPage(const DoctorReport& report, bool color) : report_(report), color_(color) {}

  std::string text() {
    text_ = fmt::format("tessera {} on {}\n", TESSERA_VERSION, report_.system);
    for (const Section& section : report_.sections) {
      heading(section.title);
      for (const Check& c : section.checks) check(c);
    }
    speeds();
    text_ += report_.ranks_work ? "\nRanks can be processes of this machine.\n"
                                : "\nRanks cannot be processes of this machine; as threads they work.\n";
    return text_;
  }

 private:
  std::string paint(const std::string& text, fmt::text_style style) const {
    return color_ ? fmt::format(style, "{}", text) : text;
  }
  void heading(const std::string& title) { text_ += '\n' + paint(title, fmt::emphasis::bold) + '\n'; }

  void check(const Check& c) {
    const auto color = c.mark == Mark::ok     ? fmt::terminal_color::green
                       : c.mark == Mark::note ? fmt::terminal_color::yellow
                                              : fmt::terminal_color::red;
    text_ += "  " + paint(fmt::format("{:<8}", name_of(c.mark)), fg(color)) + fmt::format("{:<16}", c.topic);
    text_ += wrapped(c.text);
    if (!c.remedy.empty()) text_ += std::string(kIndent, ' ') + wrapped("→ " + c.remedy);
  }

  void speeds() {
    if (!report_.speeds) {
      text_ += "\nToo little memory to measure speeds.\n";
      return;
    }
    const Speeds& s = *report_.speeds;
    heading("Speed of one core that takes what another process has, GB/s (memcpy)");
    text_ += fmt::format("  {:<24}{:>10}{:>16}{:>16}\n", "bytes", "in place", "cross-memory", "two copies");
    for (const CopySpeed& c : s.copies) {
      text_ +=
          fmt::format("  {:<24}{:>10.1f}{:>16}{:>16.1f}\n", text_of_bytes(static_cast<double>(c.bytes)),
                      c.in_place / 1e9, c.attach > 0 ? fmt::format("{:.1f}", c.attach / 1e9) : "-", c.staged / 1e9);
    }
    text_ += "  " + crossing(s) + '\n';
    heading("Speed of writing 64 MiB, GB/s");
    text_ += fmt::format("  {:<34}{:>6.1f}\n  {:<34}{:>6.1f}\n  {:<34}{:>6.1f}\n", "shared memory, for the first time",
                         s.fresh_shared / 1e9, "shared memory, again", s.warm_shared / 1e9,
                         "private huge pages, first time", s.fresh_private_huge / 1e9);
  }

  static std::string crossing(const Speeds& s) {
    if (s.attach_wins) {
      const auto bytes = [](int64_t count) { return text_of_bytes(static_cast<double>(count)); };
      return fmt::format("cross-memory is faster than two copies from {} {}", bytes(s.attach_wins->from),
                         s.attach_wins->to ? "to " + bytes(*s.attach_wins->to) : "on");
    }
    return s.copies.back().attach > 0 ? "cross-memory is nowhere faster than two copies"
                                      : "cross-memory is not allowed: two copies where memory is not shared";
  }

  const DoctorReport& report_;
  const bool color_;
  std::string text_;
};

}  // namespace

std::string text_of_bytes(double bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return bytes == static_cast<double>(static_cast<int64_t>(bytes)) ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
                                                                   : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string to_text(const DoctorReport& report, bool color) { return DoctorPage(report, color).text(); }

std::string to_json(const DoctorReport& report) {
  nlohmann::ordered_json json = {
      {"version", TESSERA_VERSION}, {"system", report.system}, {"ranks_work", report.ranks_work}};
  for (const Section& section : report.sections) {
    for (const Check& check : section.checks) {
      json["checks"].push_back({{"section", section.title},
                                {"topic", check.topic},
                                {"mark", name_of(check.mark)},
                                {"text", check.text},
                                {"remedy", check.remedy}});
    }
  }
  if (report.speeds) {
    const Speeds& s = *report.speeds;
    nlohmann::ordered_json speeds;
    for (const CopySpeed& c : s.copies) {
      nlohmann::ordered_json copy = {{"bytes", c.bytes}, {"in_place", c.in_place}};
      copy["cross_memory"] = c.attach > 0 ? nlohmann::ordered_json(c.attach) : nlohmann::ordered_json();
      copy["two_copies"] = c.staged;
      speeds["copies"].push_back(copy);
    }
    const auto number = [](std::optional<int64_t> value) {
      return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    };
    speeds["cross_memory_wins"] = nullptr;
    if (s.attach_wins) speeds["cross_memory_wins"] = {{"from", s.attach_wins->from}, {"to", number(s.attach_wins->to)}};
    speeds["first_write"] = {
        {"fresh_shared", s.fresh_shared}, {"warm_shared", s.warm_shared}, {"fresh_private_huge", s.fresh_private_huge}};
    json["bytes_per_second"] = speeds;
  }
  return json.dump(2) + '\n';
}

}  // namespace tessera::cli
