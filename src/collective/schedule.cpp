#include "collective/schedule.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "layout/axis_layout.hpp"

namespace tessera {
namespace {

constexpr int64_t kMostPieces = 1024;  // of a ring

int64_t most_of(const std::vector<int64_t>& list) { return *std::max_element(list.begin(), list.end()); }

int64_t pieces_of(Stretch rows, int64_t piece_rows) { return (rows.length() + piece_rows - 1) / piece_rows; }

// What lies behind one another, and goes the same way at the same time, goes in one piece.
std::vector<Hop> merged(std::vector<Hop> hops) {
  const auto order = [](const Hop& hop) { return std::tuple(hop.round, hop.from, hop.to, hop.rows.begin); };
  std::sort(hops.begin(), hops.end(), [&](const Hop& a, const Hop& b) { return order(a) < order(b); });
  std::vector<Hop> list;
  for (const Hop& hop : hops) {
    if (hop.rows.empty()) continue;
    Hop* last = list.empty() ? nullptr : &list.back();
    const bool goes_on = last != nullptr &&
                         std::tie(last->round, last->from, last->to, last->first_hand) ==
                             std::tie(hop.round, hop.from, hop.to, hop.first_hand) &&
                         last->rows.end == hop.rows.begin;
    if (goes_on) last->rows.end = hop.rows.end;
    else list.push_back(hop);
  }
  return list;
}

std::string name_of(const Schedule& schedule) {
  const char* way = "";
  switch (schedule.way) {
    case Way::direct: way = "direct"; break;
    case Way::spread: way = "spread"; break;
    case Way::ring: way = "ring"; break;
    case Way::logarithmic: way = "logarithmic"; break;
  }
  return schedule.block > 1 ? fmt::format("folded {}", way) : way;
}

}  // namespace

std::vector<Stretch> behind_one_another(const Sizes& sizes) {
  std::vector<Stretch> list;
  for (int64_t at = 0; const int64_t size : sizes) {
    list.push_back({at, at + size});
    at += size;
  }
  return list;
}

std::vector<Piece> common_pieces(const std::vector<Stretch>& owns, const std::vector<Stretch>& keeps) {
  std::vector<Piece> list;
  for (size_t owner = 0, keeper = 0; owner < owns.size() && keeper < keeps.size();) {
    const Stretch rows = intersect(owns[owner], keeps[keeper]);
    if (!rows.empty()) list.push_back({rows, static_cast<int>(owner), static_cast<int>(keeper)});
    if (owns[owner].end <= keeps[keeper].end) ++owner;
    else ++keeper;
  }
  return list;
}

int64_t row_bytes(Dims shape, size_t dim, DType dtype) {
  shape[dim] = 1;
  return volume(shape) * size_bytes(dtype);
}

int64_t doublings(int64_t count) {
  int64_t rounds = 0;
  while ((int64_t{1} << rounds) < count) ++rounds;
  return rounds;
}

double price_of(const Prices& prices, int64_t rounds, int64_t messages, double bytes_each, double bytes) {
  return static_cast<double>(rounds) * prices.round_us + prices.messages_us(messages, bytes_each) +
         bytes * prices.byte_us;
}

Stretch intersect(Stretch a, Stretch b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

GatherSchedules::GatherSchedules(const Sizes& sizes, int64_t row_bytes, const Network& network, bool packs)
    : network_(network),
      hosts_(network.hosts),
      row_bytes_(row_bytes),
      packs_(packs),
      owns_(behind_one_another(sizes)),
      pieces_(common_pieces(owns_, behind_one_another(even_stretches(sizes)))),
      host_rows_(static_cast<size_t>(hosts_.count()), 0),
      total_(owns_.back().end),
      most_together_(hosts_.most_together()),
      fewest_together_(hosts_.ranks()) {
  for (int r = 0; r < hosts_.ranks(); ++r) {
    host_rows_[static_cast<size_t>(hosts_.host_of(r))] += own(r).length();
    longest_ = std::max(longest_, own(r).length());
  }
  for (int h = 0; h < hosts_.count(); ++h) {
    fewest_together_ = std::min(fewest_together_, static_cast<int64_t>(hosts_.ranks_on(h).size()));
  }
}

// Directly every owner sends its tensor as it is; else what is sent is picked out of one.
double GatherSchedules::price(int64_t rounds, int64_t messages, int64_t rows_each, int64_t rows, bool packed) const {
  const auto row_bytes = static_cast<double>(row_bytes_);
  const double bytes = static_cast<double>(rows) * row_bytes;
  return price_of(network_.prices, rounds, messages, static_cast<double>(rows_each) * row_bytes, bytes) +
         (packed && packs_ ? bytes * Prices::kPackedByteUs : 0);
}

std::vector<Schedule> GatherSchedules::all() const {
  std::vector<Schedule> list{direct()};
  if (hosts_.count() <= 2 || total_ == 0) return list;  // with two, all are the same
  list.push_back(spread());
  Schedule best = ring(1);
  for (int64_t pieces = 2; pieces <= std::min(longest_, kMostPieces); pieces *= 2) {
    const Schedule other = ring(pieces);
    if (other.us < best.us) best = other;
  }
  list.push_back(best);
  list.push_back(logarithmic());
  return list;
}

Schedule GatherSchedules::direct() const {
  return {Way::direct, 0, 1,
          price(1, hosts_.ranks() - fewest_together_, longest_, most_of(host_rows_) * (hosts_.count() - 1), false)};
}

Schedule GatherSchedules::spread() const {
  const auto hosts = static_cast<size_t>(hosts_.count());
  std::vector<int64_t> first(hosts, 0), second(hosts, 0), messages(static_cast<size_t>(hosts_.ranks()), 0);
  for (const Piece& piece : pieces_) {
    const auto from = static_cast<size_t>(hosts_.host_of(piece.owner)),
               kept = static_cast<size_t>(hosts_.host_of(piece.keeper));
    if (from != kept) {
      first[from] += piece.rows.length();
      messages[static_cast<size_t>(piece.owner)] += most_together_;
    }
    second[kept] += piece.rows.length() * (hosts_.count() - (from == kept ? 1 : 2));
  }
  const int64_t each = (total_ + hosts_.ranks() - 1) / hosts_.ranks();
  return {
      Way::spread, 0, 2,
      price(2, most_of(messages) + hosts_.ranks() - fewest_together_, each, most_of(first) + most_of(second), true)};
}

// In each round a host passes on a piece of every rank that has some left; the last piece has to pass all hosts.
Schedule GatherSchedules::ring(int64_t pieces) const {
  const int64_t rows = std::max<int64_t>((longest_ + pieces - 1) / pieces, 1), passed_on = hosts_.count() - 2;
  int64_t messages = 0;
  for (const Stretch& own : owns_) messages += pieces_of(own, rows);
  const int64_t rounds = pieces_of({0, longest_}, rows) + passed_on;
  return {Way::ring, rows, rounds,
          price(rounds, messages * most_together_, std::min(rows, longest_), total_ + passed_on * rows, true)};
}

Schedule GatherSchedules::logarithmic() const {
  const int64_t hosts = hosts_.count(), rounds = doublings(hosts);
  // Of all hosts twice over, as a window goes on behind the last.
  std::vector<int64_t> until{0};
  for (int64_t h = 0; h < 2 * hosts; ++h) until.push_back(until.back() + host_rows_[static_cast<size_t>(h % hosts)]);
  double us = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    int64_t most = 0;
    for (int64_t h = 0; h < hosts; ++h) {
      const Window w = window(static_cast<int>(h), static_cast<int>(round));
      most = std::max(most, until[static_cast<size_t>(w.first + w.count)] - until[static_cast<size_t>(w.first)]);
    }
    // Rows of a window that goes on behind the last host are two pieces.
    const int64_t pieces = round == 0 || pairs_up() ? 1 : 2;
    us += price(1, pieces * most_together_, (most + most_together_ - 1) / most_together_, most, true);
  }
  return {Way::logarithmic, 0, rounds, us};
}

// Whether in each logarithmic round two hosts tell each other all that they have: what comes lies in one piece then.
bool GatherSchedules::pairs_up() const { return std::has_single_bit(static_cast<unsigned>(hosts_.count())); }

// Else from the one that is 2^round behind this, all that has come to it.
GatherSchedules::Window GatherSchedules::window(int host, int round) const {
  const int64_t reach = int64_t{1} << round, hosts = hosts_.count();
  const auto sender = pairs_up() ? static_cast<int>(host ^ reach) : host_before(host, hosts - reach);
  return {sender, pairs_up() ? sender >> round << round : sender, std::min(reach, hosts - reach)};
}

int GatherSchedules::receiver(int host, int round) const {
  const int64_t reach = int64_t{1} << round;
  return pairs_up() ? static_cast<int>(host ^ reach) : host_before(host, reach);
}

// Merged, in the order of rows.
std::vector<Stretch> GatherSchedules::rows_of_hosts(int first, int64_t count) const {
  std::vector<Stretch> list;
  for (int64_t i = 0; i < count; ++i) {
    for (const int r : hosts_.ranks_on(static_cast<int>((first + i) % hosts_.count()))) {
      if (!own(r).empty()) list.push_back(own(r));
    }
  }
  std::sort(list.begin(), list.end(), [](Stretch a, Stretch b) { return a.begin < b.begin; });
  std::vector<Stretch> joined;
  for (const Stretch rows : list) {
    if (!joined.empty() && joined.back().end == rows.begin) joined.back().end = rows.end;
    else joined.push_back(rows);
  }
  return joined;
}

// What ranks of one host have is read from them, and crosses nothing.
void GatherSchedules::add_own_host(int to, Hops& hops) const {
  for (const int r : hosts_.ranks_on(hosts_.host_of(to))) {
    if (r != to) hops.push_back({0, r, to, own(r), true});
  }
}

// All ranks of the keeper's host take a part in receiving; the others get it from the keeper. What a host has comes from
// no other.
void GatherSchedules::spread_hops(int rank, bool to, Hops& hops) const {
  for (const Piece& piece : pieces_) {
    const auto hop_to = [&](int r) {
      if (r == piece.owner) return;
      const bool at_once = hosts_.together(r, piece.owner) || hosts_.together(r, piece.keeper);
      if (at_once) hops.push_back({0, piece.owner, r, piece.rows, true});
      else hops.push_back({1, piece.keeper, r, piece.rows, false});
    };
    const int from = hosts_.host_of(piece.owner), kept = hosts_.host_of(piece.keeper);
    if (to) {
      hop_to(rank);
      continue;
    }
    if (piece.owner == rank) {
      for (const int r : hosts_.ranks_on(from)) hop_to(r);
      for (const int r : hosts_.ranks_on(kept)) {
        if (from != kept) hop_to(r);
      }
    }
    if (piece.keeper != rank) continue;
    for (int r = 0; r < hosts_.ranks(); ++r) {
      if (hosts_.host_of(r) != from && hosts_.host_of(r) != kept) hop_to(r);
    }
  }
}

int GatherSchedules::host_before(int host, int64_t distance) const {
  const int64_t hosts = hosts_.count();
  return static_cast<int>((host + hosts - distance % hosts) % hosts);
}

// Piece p of a rank that is so many hosts before the one before this comes in round p plus that distance.
void GatherSchedules::ring_to(const Schedule& schedule, int to, Hops& hops) const {
  const int before = host_before(hosts_.host_of(to), 1);
  const auto& there = hosts_.ranks_on(before);
  for (int owner = 0; owner < hosts_.ranks(); ++owner) {
    if (hosts_.together(owner, to)) continue;
    const auto distance = static_cast<size_t>(host_before(before, hosts_.host_of(owner)));
    const Stretch rows = own(owner);
    const auto count = static_cast<size_t>(pieces_of(rows, schedule.piece_rows));
    for (size_t p = 0; p < count; ++p) {
      const int64_t begin = rows.begin + static_cast<int64_t>(p) * schedule.piece_rows;
      const int from = distance == 0 ? owner : there[p % there.size()];
      hops.push_back({p + distance, from, to, {begin, std::min(begin + schedule.piece_rows, rows.end)}, distance == 0});
    }
  }
}

// All that has come to another host before; its ranks share the sending.
void GatherSchedules::logarithmic_to(int round, int to, Hops& hops) const {
  const Window w = window(hosts_.host_of(to), round);
  const auto& there = hosts_.ranks_on(w.sender);
  if (round == 0) {
    for (const int r : there) hops.push_back({0, r, to, own(r), true});
    return;
  }
  const auto parts = static_cast<int>(there.size());
  for (const Stretch rows : rows_of_hosts(w.first, w.count)) {
    const auto cuts = behind_one_another(even_sizes(rows.length(), parts));
    for (int i = 0; i < parts; ++i) {
      const Stretch cut = cuts[static_cast<size_t>(i)];
      hops.push_back({static_cast<size_t>(round),
                      there[static_cast<size_t>(i)],
                      to,
                      {rows.begin + cut.begin, rows.begin + cut.end},
                      false});
    }
  }
}

std::vector<Hop> GatherSchedules::all_to(const Schedule& schedule, int rank) const {
  Hops hops;
  if (schedule.way == Way::spread) {
    spread_hops(rank, true, hops);
    return hops;
  }
  add_own_host(rank, hops);
  if (schedule.way == Way::ring) ring_to(schedule, rank, hops);
  if (schedule.way == Way::logarithmic) {
    for (int round = 0; round < schedule.rounds; ++round) logarithmic_to(round, rank, hops);
  }
  return hops;
}

std::vector<Hop> GatherSchedules::hops_to(const Schedule& schedule, int rank) const {
  return merged(all_to(schedule, rank));
}

// The mirror image of what goes to those to whom it sends.
std::vector<Hop> GatherSchedules::hops_from(const Schedule& schedule, int rank) const {
  Hops hops;
  const int host = hosts_.host_of(rank);
  if (schedule.way == Way::spread) {
    spread_hops(rank, false, hops);
    return merged(std::move(hops));
  }
  for (const int r : hosts_.ranks_on(host)) {
    if (r != rank) hops.push_back({0, rank, r, own(rank), true});
  }
  Hops theirs;
  if (schedule.way == Way::ring) {
    for (const int r : hosts_.ranks_on(host_before(host, hosts_.count() - 1))) ring_to(schedule, r, theirs);
  } else {
    for (int round = 0; round < schedule.rounds; ++round) {
      for (const int r : hosts_.ranks_on(receiver(host, round))) logarithmic_to(round, r, theirs);
    }
  }
  std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(hops),
               [&](const Hop& hop) { return hop.from == rank; });
  return merged(std::move(hops));
}

Sizes even_stretches(const Sizes& sizes) {
  return even_sizes(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), static_cast<int>(sizes.size()));
}

const Schedule& cheapest(const std::vector<Schedule>& schedules) {
  const Schedule& least = *std::min_element(schedules.begin(), schedules.end(),
                                            [](const Schedule& a, const Schedule& b) { return a.us < b.us; });
  return least.us < 0.9 * schedules[0].us ? least : schedules[0];
}

std::string explain(const std::vector<Schedule>& schedules) {
  const Schedule& taken = cheapest(schedules);
  std::string others;
  for (const Schedule& other : schedules) {
    if (&other != &taken) others += fmt::format("{}{} {:.3g}", others.empty() ? "" : ", ", name_of(other), other.us);
  }
  return fmt::format("{}, {} round{}: {:.3g} us{}", name_of(taken), taken.rounds, taken.rounds == 1 ? "" : "s",
                     taken.us, others.empty() ? "" : fmt::format(" ({})", others));
}

}  // namespace tessera
