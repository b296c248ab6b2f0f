// From times to a topology. A price is a sum of a few unknown times, each 0 or more: base latencies, a latency for each
// axis, and how much each curve rises from knot to knot. So the best topology is a least-squares fit with unknowns that
// are not negative, and its curves ascend by themselves.
#include <algorithm>
#include <cmath>
#include <limits>

#include "calibrate.hpp"

namespace tessera::cli {
namespace {

constexpr size_t kMostKnots = 10;

// Which unknowns a curve has: one for each of its knots.
struct CurveUnknowns {
  std::vector<double> knots;  // bytes
  size_t first = 0;

  // Adds what the curve's value at so many bytes depends on.
  void add(std::vector<double>& row, double bytes) const {
    for (size_t i = 0; i < knots.size(); ++i) {
      const double begin = i == 0 ? 0 : knots[i - 1];
      const double part = (bytes - begin) / (knots[i] - begin);
      row[first + i] += i + 1 == knots.size() ? std::max(part, 0.0) : std::clamp(part, 0.0, 1.0);
    }
  }
  // Leaves out the knots that matter least, until few enough are left: those where the line past them differs least, by
  // ratio, from the curve. `more_us` is what a price has besides.
  void thin_out(const std::vector<double>& solution, double more_us) {
    auto left = curve(solution).knots;
    while (left.size() > kMostKnots) {
      size_t least = 0;
      double least_apart = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i + 1 < left.size(); ++i) {
        const Curve::Knot before = i == 0 ? Curve::Knot() : left[i - 1], after = left[i + 1];
        const double line =
            before.us + (after.us - before.us) * (left[i].bytes - before.bytes) / (after.bytes - before.bytes);
        const double apart = std::abs(std::log((line + more_us) / (left[i].us + more_us)));
        if (apart >= least_apart) continue;
        least_apart = apart;
        least = i;
      }
      left.erase(left.begin() + static_cast<ptrdiff_t>(least));
    }
    knots.clear();
    for (const Curve::Knot& knot : left) knots.push_back(knot.bytes);
  }
  Curve curve(const std::vector<double>& solution) const {
    Curve curve;
    double us = 0;
    for (size_t i = 0; i < knots.size(); ++i) curve.knots.push_back({knots[i], us += solution[first + i]});
    return curve;
  }
};

struct LinkUnknowns {
  size_t latency = 0;
  CurveUnknowns transfer, exchange, scatter, all_reduce;  // combining terms is measured with moving them
  Link link(const std::vector<double>& x) const {
    return {x[latency], transfer.curve(x), {}, exchange.curve(x), scatter.curve(x), all_reduce.curve(x)};
  }
  void thin_out(const std::vector<double>& solution, double more_us) {
    for (CurveUnknowns* curve : {&transfer, &exchange, &scatter, &all_reduce}) curve->thin_out(solution, more_us);
  }
};

// A direct step along an axis is a reduction, one between meshes is not.
bool scatters(StepKind kind) { return kind == StepKind::reduce_scatter || kind == StepKind::direct; }

// At measured sizes. Kinds differ a little in their sizes: one knot for all that are near each other. The first takes what
// the smallest call of that kind takes longer than that of another.
std::vector<double> knots_for(const std::vector<Measurement>& measured, auto&& counts) {
  constexpr double kNear = 1.3;
  std::vector<double> sizes, knots;
  for (const Measurement& m : measured) {
    if (counts(m)) sizes.push_back(m.bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  for (const double size : sizes) {
    if (knots.empty() || size > kNear * knots.back()) knots.push_back(size);
  }
  return knots;
}

class Fit {
 public:
  Fit(const std::vector<MeasuredAxis>& axes, const std::vector<Measurement>& measured)
      : axes_(axes), measured_(measured) {
    for (size_t a = 0; a <= axes.size(); ++a) {
      LinkUnknowns& link = links_.emplace_back();
      link.latency = unknowns_++;
      const bool between = a == axes_.size();
      const auto of = [&](auto&& counts) {
        return curve([&](const Measurement& m) { return m.axis == a && counts(m.kind); });
      };
      const auto only = [](StepKind wanted) { return [wanted](StepKind kind) { return kind == wanted; }; };
      if (between) {
        link.transfer = of(only(StepKind::direct));
        continue;
      }
      link.transfer = of(only(StepKind::all_gather));
      link.exchange = of(only(StepKind::all_to_all));
      link.scatter = of(scatters);
      link.all_reduce = of(only(StepKind::all_reduce));
    }
    copy_ = curve([&](const Measurement& m) { return m.kind == StepKind::embed; });
  }

  double price(const Measurement& m) const { return dot(row_of(m)); }

  Topology topology() {
    solve();
    thin_out();
    solve();
    Topology topology;
    topology.base_us = solution_[kBase];
    topology.exchange_base_us = solution_[kExchangeBase];
    topology.copy = copy_.curve(solution_);
    for (size_t a = 0; a < axes_.size(); ++a) {
      topology.axes.push_back({axes_[a].name, links_[a].link(solution_), axes_[a].ranks()});
    }
    topology.between = links_.back().link(solution_);
    return topology;
  }

 private:
  static constexpr size_t kBase = 0, kExchangeBase = 1;

  CurveUnknowns curve(auto&& counts) {
    CurveUnknowns curve{knots_for(measured_, counts), unknowns_};
    unknowns_ += curve.knots.size();
    return curve;
  }

  void thin_out() {
    const double more_us = std::max(solution_[kBase] + solution_[kExchangeBase], 0.1) / 2;
    for (LinkUnknowns& link : links_) link.thin_out(solution_, more_us);
    copy_.thin_out(solution_, 0.1);
  }

  // How the planner's price of a step depends on the unknowns: src/plan/price.cpp, on one axis.
  std::vector<double> row_of(const Measurement& m) const {
    std::vector<double> row(unknowns_, 0);
    if (m.kind == StepKind::embed) {
      copy_.add(row, m.bytes);
      return row;
    }
    const LinkUnknowns& link = links_[m.axis];
    const bool between = m.axis == axes_.size();
    const double hops = between ? 1 : static_cast<double>(axes_[m.axis].ranks() - 1);
    row[m.kind == StepKind::all_to_all || m.kind == StepKind::direct ? kExchangeBase : kBase] = 1;
    row[link.latency] = m.kind == StepKind::all_reduce ? 2 * hops : hops;
    const CurveUnknowns& curve = between || m.kind == StepKind::all_gather ? link.transfer
                                 : m.kind == StepKind::all_to_all          ? link.exchange
                                 : m.kind == StepKind::all_reduce          ? link.all_reduce
                                                                           : link.scatter;
    curve.add(row, m.bytes);
    return row;
  }

  // Errors count by ratio: (p - t) / sqrt(p t) is ln(p / t) but for terms of third order, and p is that of the round
  // before.
  void solve() {
    constexpr int kRounds = 6;
    solution_.assign(unknowns_, 0);
    std::vector<std::vector<double>> rows;
    for (const Measurement& m : measured_) rows.push_back(row_of(m));
    std::vector<double> weights;
    for (const Measurement& m : measured_) weights.push_back(1 / m.us);
    for (int round = 0; round < kRounds; ++round) {
      descend(rows, weights);
      for (size_t i = 0; i < rows.size(); ++i) {
        const double price = std::max(dot(rows[i]), 0.1 * measured_[i].us);
        weights[i] = 1 / std::sqrt(price * measured_[i].us);
      }
    }
  }

  double dot(const std::vector<double>& row) const {
    double sum = 0;
    for (size_t j = 0; j < row.size(); ++j) sum += row[j] * solution_[j];
    return sum;
  }

  // One unknown after the other to its best value. The sum of squares is convex, so this comes to the best of all.
  void descend(const std::vector<std::vector<double>>& rows, const std::vector<double>& weights) {
    constexpr int kMostSweeps = 20000;
    const size_t n = rows.size();
    std::vector<std::vector<std::pair<size_t, double>>> columns(unknowns_);
    std::vector<double> squares(unknowns_, 0), missing(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < unknowns_; ++j) {
        const double value = rows[i][j] * weights[i];
        if (value == 0) continue;
        columns[j].push_back({i, value});
        squares[j] += value * value;
      }
      missing[i] = (measured_[i].us - dot(rows[i])) * weights[i];
    }
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      double moved = 0;
      for (size_t j = 0; j < unknowns_; ++j) {
        if (squares[j] == 0) continue;
        double gain = 0;
        for (const auto& [i, value] : columns[j]) gain += missing[i] * value;
        const double next = std::max(0.0, solution_[j] + gain / squares[j]), step = next - solution_[j];
        if (step == 0) continue;
        solution_[j] = next;
        for (const auto& [i, value] : columns[j]) missing[i] -= step * value;
        moved += step * step * squares[j];
      }
      if (moved < 1e-16) return;
    }
  }

  const std::vector<MeasuredAxis>& axes_;
  const std::vector<Measurement>& measured_;
  size_t unknowns_ = 2;
  std::vector<LinkUnknowns> links_;  // of the axes, then between meshes
  CurveUnknowns copy_;
  std::vector<double> solution_;
};

}  // namespace

Topology fit_topology(const std::vector<MeasuredAxis>& axes, std::vector<Measurement>& measured) {
  Fit fit(axes, measured);
  Topology topology = fit.topology();
  for (Measurement& m : measured) m.fitted_us = fit.price(m);
  // Axes that were measured under a name stand, by their size, for those with other names too.
  const auto named = topology.axes;
  for (const Topology::Axis& axis : named) {
    const bool known = std::any_of(topology.axes.begin(), topology.axes.end(), [&](const Topology::Axis& other) {
      return other.name == "*" && other.ranks == axis.ranks;
    });
    if (!known) topology.axes.push_back({"*", axis.link, axis.ranks});
  }
  topology.check();
  return topology;
}

}  // namespace tessera::cli
