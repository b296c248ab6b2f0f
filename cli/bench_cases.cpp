// From what was asked to what every rank brings.
#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"

namespace tessera::cli {
namespace {

using bench::Op;

constexpr int64_t kElement = sizeof(float);
constexpr int64_t kRowElements = 64;  // rows of 256 bytes
constexpr int64_t kSmallRows = 4;     // what the others have where one rank has all: 1 KiB
constexpr int64_t kMostSets = 16;     // more would only take memory: small sizes stay in the cache in life too
constexpr int64_t kMostBytes = int64_t{1} << 32;  // MPI counts elements in an int; this leaves it room
constexpr double kRagged[] = {0.5, 1.5, 0.75, 1.25};

std::vector<double> factors(const std::string& skew, int ranks) {
  std::vector<double> list(static_cast<size_t>(ranks), 1.0);
  if (skew != "ragged") return list;
  // In pairs around one; with an odd number of ranks the last has the mean.
  for (size_t r = 0; r < list.size() / 2 * 2; ++r) list[r] = kRagged[r % 4];
  return list;
}

// `total` cut in proportion, so that the cuts add up to it.
std::vector<int64_t> distribute(int64_t total, const std::vector<double>& parts) {
  double all = 0, before = 0;
  for (const double part : parts) all += part;
  std::vector<int64_t> cuts;
  int64_t start = 0;
  for (const double part : parts) {
    before += part;
    const int64_t end = std::llround(static_cast<double>(total) * before / all);
    cuts.push_back(end - start);
    start = end;
  }
  return cuts;
}

std::vector<int64_t> cuts(int64_t total, const std::string& skew, int ranks, int64_t small) {
  if (skew != "one") return distribute(total, factors(skew, ranks));
  std::vector<int64_t> list(static_cast<size_t>(ranks), total >= ranks * small ? small : 0);
  list[0] = total - (ranks - 1) * list[0];
  return list;
}

// A matrix that is as wide as it is high, or up to twice as wide.
bench::Case square_of(int64_t size_bytes, int ranks) {
  bench::Case c{.op = Op::redistribute};
  const int64_t elements = std::max<int64_t>(size_bytes * ranks / kElement, 1);
  int64_t rows = 1;
  while (4 * rows * rows <= elements) rows *= 2;
  c.across = elements / rows;
  for (int r = 0; r < ranks; ++r) c.extents.push_back(bench::chunk_of(rows, ranks, r).second);
  return c;
}

bench::Case layout_of(Op op, int64_t size_bytes, int64_t dim, const std::string& skew, int ranks) {
  if (op == Op::redistribute) return square_of(size_bytes, ranks);
  bench::Case c{.op = op, .dim = dim};
  const int64_t row = std::clamp<int64_t>(size_bytes / (4 * kElement), 1, kRowElements);  // at least four rows
  const int64_t rows = std::max<int64_t>(size_bytes / (row * kElement), 1);
  const bool whole = c.reduces() || op == Op::broadcast;  // a rank brings the whole, not a cut of it
  if (dim == 0) {
    c.across = row;
    c.extents = cuts(whole ? rows : rows * ranks, skew, ranks, rows > kSmallRows ? kSmallRows : 1);
  } else {
    c.across = rows;
    c.extents = cuts(row * ranks, skew, ranks, 1);
  }
  if (op != Op::all_to_all) return c;
  for (const int64_t extent : c.extents) {
    const auto sends = distribute(extent, factors(skew, ranks));
    c.counts.insert(c.counts.end(), sends.begin(), sends.end());
  }
  return c;
}

bool has_one_shape(Op op) { return op == Op::all_reduce || op == Op::broadcast || op == Op::redistribute; }

std::vector<std::string> skews_of(const BenchOptions& options, Op op) {
  if (options.skews.empty()) return {has_one_shape(op) ? "even" : "ragged"};
  for (const std::string& skew : options.skews) {
    if (has_one_shape(op) && skew != "even") {
      throw Error(fmt::format("{} is cut evenly on all ranks; only --skew even fits", options.op));
    }
  }
  return options.skews;
}

}  // namespace

int64_t parse_size(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])) != 0) ++digits;
  std::string unit = text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::pair<const char*, int> kUnits[] = {{"", 0},     {"b", 0},  {"k", 10},   {"kib", 10}, {"m", 20},
                                                    {"mib", 20}, {"g", 30}, {"gib", 30}, {"t", 40},   {"tib", 40}};
  for (const auto& [name, shift] : kUnits) {
    if (digits == 0 || digits > 10 || unit != name) continue;
    const int64_t number = std::stoll(text.substr(0, digits));
    if (number > 0 && number <= (kMostBytes >> shift)) return number << shift;
    throw Error(fmt::format("{} is not between 1 byte and 4 GiB", text));
  }
  throw Error(fmt::format("{} is no size; write 4096, 64KiB or 1MiB", text.empty() ? "\"\"" : text));
}

std::string size_text(int64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kNames[unit]);
}

int64_t BenchCase::algorithm_bytes() const {
  const int64_t whole = layout.total() * layout.across * kElement;
  return layout.op == Op::all_to_all || layout.op == Op::redistribute ? whole / layout.ranks() : whole;
}

double BenchCase::bus_factor() const {
  if (layout.op == Op::broadcast) return 1;
  const double n = layout.ranks();
  return (layout.op == Op::all_reduce ? 2 : 1) * (n - 1) / n;
}

int64_t BenchCase::bytes_per_set() const {
  int64_t elements = 0;
  for (int r = 0; r < layout.ranks(); ++r) {
    elements += bench::input_of(layout, r).elements() + bench::output_elements(layout, r);
  }
  return elements * kElement;
}

std::vector<BenchCase> make_cases(const BenchOptions& options, int64_t cache_bytes) {
  const Op op = bench::op_named(options.op);
  std::vector<BenchCase> cases;
  for (const std::string& name : options.against) {
    const bool gathers = name.ends_with("-raw") || name.ends_with("-least");
    if (gathers && op != Op::all_gather) throw Error(name + " is for all_gather");
  }
  for (const int64_t dim : options.dims) {
    if (dim == 1 && op != Op::all_gather) throw Error("--dims 1 is for all_gather");
    for (const std::string& skew : skews_of(options, op)) {
      for (const std::string& size : options.sizes) {
        BenchCase c{.size_bytes = parse_size(size), .skew = skew};
        c.layout = layout_of(op, c.size_bytes, dim, skew, options.ranks);
        if (c.layout.total() * c.layout.across * kElement > kMostBytes) {
          throw Error(fmt::format("{} on {} ranks is more than 4 GiB together", size, options.ranks));
        }
        const int64_t set_bytes = std::max<int64_t>(c.bytes_per_set(), 1);
        c.layout.sets = std::clamp<int64_t>((2 * cache_bytes + set_bytes - 1) / set_bytes, 2, kMostSets);
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace tessera::cli
