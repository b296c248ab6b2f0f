#include "collective/sum_schedule.hpp"

#include <algorithm>
#include <numeric>

namespace tessera {

SumRounds::SumRounds(int ranks) : ranks_(ranks), count_(static_cast<int>(doublings(ranks))) {}

// Only the last block may be shorter than the one beside it: then its ranks take turns.
int SumRounds::source(int rank, int round) const {
  const int other = block_of(rank, round) ^ (1 << round);
  if (other >= ranks_) return -1;
  const int there = std::min(1 << round, ranks_ - other);
  return other + (rank - block_of(rank, round)) % there;
}

std::vector<int> SumRounds::targets(int rank, int round) const {
  const int own = block_of(rank, round), other = own ^ (1 << round);
  const int here = std::min(1 << round, ranks_ - own), end = std::min(other + (1 << round), ranks_);
  std::vector<int> list;
  for (int r = other + (rank - own); r < end; r += here) list.push_back(r);
  return list;
}

int SumRounds::sums_before(int rank, int round) const {
  int sums = 0;
  for (int k = 0; k < round; ++k) sums += source(rank, k) >= 0 ? 1 : 0;
  return sums;
}

int64_t SumRounds::most_targets(int round) const {
  const int last = block_of(ranks_ - 1, round), length = ranks_ - last;
  const bool is_second = !is_first(last, round);
  return is_second ? ((int64_t{1} << round) + length - 1) / length : 1;
}

Blocks::Blocks(const Hosts& hosts, int length)
    : ranks_(hosts.ranks()), length_(length), on_(static_cast<size_t>(hosts.count())) {
  for (int first = 0; first < ranks_; first += length_) {
    const int host = hosts.host_of(first);
    on_[static_cast<size_t>(host)].push_back(count());
    host_of_.push_back(host);
  }
}

Stretch Blocks::ranks(int block) const {
  const int64_t first = int64_t{block} * length_;
  return {first, std::min<int64_t>(first + length_, ranks_)};
}

int Blocks::longest(const Hosts& hosts) {
  int length = 1;
  while (2 * length <= hosts.ranks()) {
    for (int r = 1; r < hosts.ranks(); ++r) {
      const bool begins = r % (2 * length) == 0;
      if (!begins && !hosts.together(r - 1, r)) return length;
    }
    length *= 2;
  }
  return length;
}

SumSchedules::SumSchedules(const Network& network, bool in_parts)
    : network_(network), hosts_(network.hosts), in_parts_(in_parts), blocks_{Blocks(hosts_, 1)} {
  const int longest = in_parts ? Blocks::longest(hosts_) : 1;
  if (longest > 1 && hosts_.count() > 1) blocks_.emplace_back(hosts_, longest);
}

// Out of a host go its terms of all that others keep; to it come the others' terms of what it keeps.
double SumSchedules::direct_us(const Blocks& blocks, const std::vector<double>& wanted, double bytes_each) const {
  const double all = std::accumulate(wanted.begin(), wanted.end(), 0.0);
  double most = 0;
  int others = 0;
  for (int h = 0; h < hosts_.count(); ++h) {
    const auto here = static_cast<int>(blocks.on(h).size());
    const double kept = wanted[static_cast<size_t>(h)];
    most = std::max({most, kept * (blocks.count() - here), (all - kept) * here});
    others = std::max(others, blocks.count() - here);
  }
  return price_of(network_.prices, 1, others, bytes_each, most) + bytes_each * blocks.count() * Prices::kAddedByteUs;
}

// Who keeps a part of the sum reads that from all ranks of its host, and writes one for each block.
double SumSchedules::within_us(const Blocks& blocks, const std::vector<double>& kept) const {
  if (blocks.length() == 1) return 0;
  double most = 0;
  for (int h = 0; h < hosts_.count(); ++h) {
    const size_t ranks = hosts_.ranks_on(h).size();
    std::vector<double> here(ranks, 0);
    for (size_t place = 0; place < kept.size(); ++place) here[place % ranks] += kept[place];
    most =
        std::max(most, *std::max_element(here.begin(), here.end()) * static_cast<double>(ranks + blocks.on(h).size()));
  }
  return network_.prices.near_round_us + most * network_.prices.near_byte_us;
}

std::vector<double> SumSchedules::at_places(const Sizes& sizes, int64_t row_bytes) const {
  std::vector<double> bytes(static_cast<size_t>(hosts_.most_together()), 0);
  for (int r = 0; r < hosts_.ranks(); ++r) {
    bytes[static_cast<size_t>(hosts_.place_of(r))] += static_cast<double>(sizes[static_cast<size_t>(r)] * row_bytes);
  }
  return bytes;
}

std::vector<double> SumSchedules::on_hosts(const Sizes& sizes, int64_t row_bytes) const {
  std::vector<double> bytes(static_cast<size_t>(hosts_.count()), 0);
  for (int r = 0; r < hosts_.ranks(); ++r) {
    bytes[static_cast<size_t>(hosts_.host_of(r))] += static_cast<double>(sizes[static_cast<size_t>(r)] * row_bytes);
  }
  return bytes;
}

Schedule SumSchedules::spread(const Blocks& blocks, const Sizes& sizes, int64_t row_bytes) const {
  const Sizes even = even_stretches(sizes);
  Sizes moved(static_cast<size_t>(hosts_.count()), 0), out(sizes.size(), 0), in(sizes.size(), 0);
  for (const Piece& piece : common_pieces(behind_one_another(sizes), behind_one_another(even))) {
    if (piece.owner == piece.keeper) continue;
    ++in[static_cast<size_t>(piece.owner)];
    ++out[static_cast<size_t>(piece.keeper)];
    if (hosts_.together(piece.owner, piece.keeper)) continue;
    moved[static_cast<size_t>(hosts_.host_of(piece.owner))] += piece.rows.length();
  }
  const auto most = [](const Sizes& list) { return *std::max_element(list.begin(), list.end()); };
  const auto bytes = [&](int64_t rows) { return static_cast<double>(rows * row_bytes); };
  const double us = within_us(blocks, at_places(even, row_bytes)) +
                    direct_us(blocks, on_hosts(even, row_bytes), bytes(even[0])) +
                    price_of(network_.prices, 1, std::max(most(out), most(in)), bytes(even[0]), bytes(most(moved)));
  return {Way::spread, 0, blocks.length() > 1 ? 3 : 2, us, blocks.length()};
}

// With two blocks it is one round anyway.
bool SumSchedules::takes_rounds(const Blocks& blocks) const {
  return in_parts_ && blocks.count() == hosts_.count() && blocks.count() > 2;
}

Schedule SumSchedules::logarithmic(const Blocks& blocks, double bytes, double last, double within) const {
  const SumRounds rounds(blocks.count());
  size_t together = hosts_.ranks_on(0).size();  // who share the sending
  for (int h = 1; h < hosts_.count(); ++h) together = std::min(together, hosts_.ranks_on(h).size());
  double us = within;
  for (int k = 0; k < rounds.count(); ++k) {
    const double sent = k + 1 == rounds.count() ? last : bytes, each = sent / static_cast<double>(together);
    const int64_t messages = rounds.most_targets(k);
    us += price_of(network_.prices, 1, messages, each, static_cast<double>(messages) * sent) +
          2 * each * Prices::kAddedByteUs;
  }
  return {Way::logarithmic, 0, rounds.count() + (blocks.length() > 1 ? 1 : 0), us, blocks.length()};
}

std::vector<Schedule> SumSchedules::kept_apart(const Sizes& sizes, int64_t row_bytes) const {
  const auto bytes = [&](int64_t rows) { return static_cast<double>(rows * row_bytes); };
  const double all = bytes(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  const double each = bytes(*std::max_element(sizes.begin(), sizes.end()));
  const std::vector<double> wanted = on_hosts(sizes, row_bytes);
  std::vector<Schedule> list;
  for (const Blocks& blocks : blocks_) {
    const double within = within_us(blocks, at_places(sizes, row_bytes));
    list.push_back(
        {Way::direct, 0, blocks.length() > 1 ? 2 : 1, within + direct_us(blocks, wanted, each), blocks.length()});
    if (hosts_.ranks() <= 2 || all == 0) continue;
    list.push_back(spread(blocks, sizes, row_bytes));
    if (takes_rounds(blocks)) {
      list.push_back(logarithmic(blocks, all, *std::max_element(wanted.begin(), wanted.end()), within));
    }
  }
  return list;
}

std::vector<Schedule> SumSchedules::kept_by_all(double bytes, bool in_one, bool shares, const Schedule& gather) const {
  const auto ranks = static_cast<double>(hosts_.ranks());
  const std::vector<double> whole(static_cast<size_t>(hosts_.count()), bytes);
  const auto most_together = static_cast<size_t>(hosts_.most_together());
  const std::vector<double> evenly(most_together, bytes / static_cast<double>(most_together));
  std::vector<double> stretches, places(most_together, 0);  // of what is spread
  size_t together = SIZE_MAX;
  for (int h = 0; h < hosts_.count(); ++h) {
    const size_t here = hosts_.ranks_on(h).size();
    stretches.push_back(bytes * static_cast<double>(here) / ranks);
    for (size_t place = 0; place < here; ++place) places[place] += bytes / ranks;
    together = std::min(together, here);
  }
  const double each = bytes / static_cast<double>(together);
  std::vector<Schedule> list;
  for (const Blocks& blocks : blocks_) {
    const bool folds = blocks.length() > 1;
    const double before_us = within_us(blocks, evenly), after_us = folds ? network_.prices.near_round_us : 0;
    const int64_t within = folds ? 1 : 0;
    if (folds || in_one)
      list.push_back(
          {Way::direct, 0, 1 + 2 * within, before_us + direct_us(blocks, whole, each) + after_us, blocks.length()});
    list.push_back({Way::spread, 0, within + 1 + gather.rounds,
                    within_us(blocks, places) + direct_us(blocks, stretches, bytes / ranks) + gather.us,
                    blocks.length()});
    if (!takes_rounds(blocks) || (shares && !folds)) continue;
    list.push_back(logarithmic(blocks, bytes, bytes, before_us));
    list.back().rounds += within;
    list.back().us += after_us;
  }
  return list;
}

}  // namespace tessera
