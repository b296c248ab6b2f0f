// How a calibration looks as a table, and as JSON.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tessera/version.hpp>

#include "bench.hpp"
#include "calibrate.hpp"
#include "plan/calibrated.hpp"

namespace tessera::cli {
namespace {

constexpr double kMuchBias = 0.10, kMuchNoise = 0.10;

double gigabytes_per_second(const Curve& curve) {
  if (curve.knots.empty()) return 0;
  const double bytes = curve.knots.back().bytes, us = curve.knots.back().us;
  return us > 0 ? bytes / us / 1000 : 0;
}

std::string speed(const Curve& curve) {
  const double speed = gigabytes_per_second(curve);
  return speed > 0 ? fmt::format("{:.2f} GB/s", speed) : "free";
}

std::string per_cent(double ratio) { return fmt::format("{:.1f} %", 100 * ratio); }

std::string figures(const Topology& topology) {
  std::string text = fmt::format(
      "a collective begins with {:.2f} us, an exchange with {:.2f} us; speeds at the largest size: copying {}\n",
      topology.base_us, topology.exchange_base_us, speed(topology.copy));
  for (const Topology::Axis& axis : topology.axes) {
    text +=
        fmt::format("axis {:<8} {:>3} ranks   {:>7.2f} us a hop   transfer {:>11}   exchange {:>11}   scatter {:>11}\n",
                    axis.name, axis.ranks, axis.link.latency_us, speed(axis.link.transfer),
                    speed(axis.link.of_exchange()), speed(axis.link.of_scatter()));
  }
  return text + fmt::format("between meshes           {:>7.2f} us a peer  transfer {:>11}\n",
                            topology.between.latency_us, speed(topology.between.transfer));
}

// What the model cannot know, or the machine did not let it find out.
std::string verdict(const CalibrateReport& report) {
  std::string off;
  for (const auto& [what, bias] : report.biases()) {
    if (std::abs(bias) > kMuchBias) off += fmt::format("{}{} by {:+.0f} %", off.empty() ? "" : ", ", what, 100 * bias);
  }
  std::string text;
  if (!off.empty()) text += "off on the whole: " + off + "\n";
  if (report.noise() > kMuchNoise) {
    text += "The machine was not quiet: the same call took longer in other rounds. Try again when it is.\n";
  }
  return text;
}

// On sizes that were not measured.
std::string checks(const CalibrateReport& report) {
  if (report.checks.empty()) return "\nNothing was checked: --up-to leaves no size between those that were measured.\n";
  std::string text = "\nOn sizes that were not measured, the cheapest plan:\n";
  text += fmt::format("  {:<28} {:<16} {:>10} {:>13} {:>13} {:>9} {:>8}\n", "", "plan", "bytes", "predicted",
                      "measured", "error", "noise");
  for (const CheckRow& row : report.checks) {
    text += fmt::format("  {:<28} {:<16} {:>10} {:>10.2f} us {:>10.2f} us {:>+7.1f} % {:>6.1f} %\n", row.what,
                        row.steps, size_text(row.bytes), row.predicted_us, row.measured_us,
                        100 * (row.predicted_us / row.measured_us - 1), 100 * (row.noise - 1));
  }
  return text + fmt::format("geometric mean of the error {}, of the noise {}\n", per_cent(report.error()),
                            per_cent(report.noise()));
}

}  // namespace

std::string to_text(const CalibrateReport& report, const std::string& path) {
  const Machine machine = this_machine();
  std::string text = fmt::format(
      "tessera {}: calibrated for {} ranks, transport {}, in {:.1f} s\n{}, {} cores, load {:.2f}\n", TESSERA_VERSION,
      report.ranks, report.options.transport, report.took_s, machine.cpu, machine.cores, machine.load);
  text += "Other memory each call, all groups of an axis at the same time; the best of up to four rounds.\n";
  text += figures(report.topology);
  text += checks(report);
  text += verdict(report);
  const auto read = calibrated_paths();
  const bool found = std::find(read.begin(), read.end(), path) != read.end();
  return text + fmt::format("written to {}; {} read it\n", path,
                            found ? "`tessera plan --topology calibrated` and Topology::calibrated()"
                                  : fmt::format("`tessera plan --topology {0}` and, with TESSERA_TOPOLOGY={0}, "
                                                "Topology::calibrated()",
                                                path));
}

std::string to_json(const CalibrateReport& report, const std::string& path) {
  using nlohmann::json;
  json checks = json::array(), measured = json::array();
  for (const CheckRow& row : report.checks) {
    checks.push_back({{"what", row.what},
                      {"plan", row.steps},
                      {"bytes", row.bytes},
                      {"predicted_us", row.predicted_us},
                      {"measured_us", row.measured_us},
                      {"noise", row.noise - 1}});
  }
  for (const Measurement& m : report.measured) {
    const bool between = m.axis == report.axes.size();
    measured.push_back({{"kind", name(m.kind)},
                        {"axis", between ? "between" : report.axes[m.axis].name},
                        {"ranks", between ? report.ranks : report.axes[m.axis].ranks()},
                        {"bytes", m.bytes},
                        {"us", m.us},
                        {"fitted_us", m.fitted_us}});
  }
  const json document = {{"path", path},
                         {"ranks", report.ranks},
                         {"transport", report.options.transport},
                         {"seconds", report.took_s},
                         {"error", report.error()},
                         {"noise", report.noise()},
                         {"checks", std::move(checks)},
                         {"measured", std::move(measured)},
                         {"topology", json::parse(report.topology.to_json())}};
  return document.dump() + "\n";
}

}  // namespace tessera::cli
