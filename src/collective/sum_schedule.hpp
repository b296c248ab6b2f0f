// How terms that lie on all ranks come together as a sum between hosts, and what that costs. Pure, and alike on all ranks.
#pragma once

#include <vector>

#include "collective/schedule.hpp"

namespace tessera {

// A sum in as many rounds as the logarithm of the number of ranks: in each of them a rank adds to the sum of its block of
// ranks that of the block beside it. Blocks are those of the order of sums (Reduction), so the bits are those of that.
class SumRounds {
 public:
  explicit SumRounds(int ranks);
  int count() const { return count_; }
  // From whom a rank gets the other block's sum; -1: there is none, and it goes on with what it has.
  int source(int rank, int round) const;
  // Who gets it from this rank.
  std::vector<int> targets(int rank, int round) const;
  // Whether its own block comes before the other.
  bool is_first(int rank, int round) const { return (rank >> round) % 2 == 0; }
  // In how many rounds before this one it has added anything.
  int sums_before(int rank, int round) const;
  // The most messages that a rank sends in a round.
  int64_t most_targets(int round) const;

 private:
  int block_of(int rank, int round) const { return rank >> round << round; }
  int ranks_, count_ = 0;
};

// Ranks that stand together in the order of sums, and on one host: blocks of one length, only the last may be shorter. What
// such a block adds up among itself is one term between hosts, and the bits of the sum are the same.
class Blocks {
 public:
  Blocks(const Hosts& hosts, int length);
  // The longest that there are; 1: ranks of a host stand apart.
  static int longest(const Hosts& hosts);

  int length() const { return length_; }
  int count() const { return static_cast<int>(host_of_.size()); }
  int host_of(int block) const { return host_of_[static_cast<size_t>(block)]; }
  const std::vector<int>& on(int host) const { return on_[static_cast<size_t>(host)]; }
  Stretch ranks(int block) const;

 private:
  int ranks_, length_;
  std::vector<int> host_of_;
  std::vector<std::vector<int>> on_;
};

class SumSchedules {
 public:
  // `in_parts`: parts of it can be added up for themselves. Keeps a reference to the network.
  SumSchedules(const Network& network, bool in_parts);

  // Of a sum of which rank r keeps sizes[r] rows: directly; first in even stretches, which then go to who keeps them; in
  // logarithmic rounds. Each of them of single terms, and of those of blocks. Direct, of single terms, comes first.
  std::vector<Schedule> kept_apart(const Sizes& sizes, int64_t row_bytes) const;
  // Of one that all ranks keep: directly, each rank (or each host) all of it; in even stretches, which are then gathered as
  // `gather` says; in logarithmic rounds. `in_one`: whether single terms may go directly; `shares`: it is written over a term.
  std::vector<Schedule> kept_by_all(double bytes, bool in_one, bool shares, const Schedule& gather) const;

 private:
  // wanted[h]: bytes of the sum that host h keeps; each message has so many.
  double direct_us(const Blocks& blocks, const std::vector<double>& wanted, double bytes_each) const;
  // What blocks add up among themselves first. `kept`: bytes of the sum, by the place on its host of the rank that keeps them.
  double within_us(const Blocks& blocks, const std::vector<double>& kept) const;
  Schedule spread(const Blocks& blocks, const Sizes& sizes, int64_t row_bytes) const;
  // Before the last round all bytes, in it `last` of them.
  Schedule logarithmic(const Blocks& blocks, double bytes, double last, double within) const;
  bool takes_rounds(const Blocks& blocks) const;
  std::vector<double> on_hosts(const Sizes& sizes, int64_t row_bytes) const;
  std::vector<double> at_places(const Sizes& sizes, int64_t row_bytes) const;

  const Network& network_;
  const Hosts& hosts_;
  bool in_parts_;
  std::vector<Blocks> blocks_;  // of single ranks, and the longest
};

}  // namespace tessera
