// How rows that lie on some ranks come to all of them between hosts: in one round or in several, whichever is cheapest.
// Pure: sizes and prices in, hops out. All ranks work out the same.
#pragma once

#include <string>
#include <vector>

#include <tessera/dims.hpp>
#include <tessera/dtype.hpp>

#include "comm/network.hpp"

namespace tessera {

struct Stretch {  // of rows of the whole
  int64_t begin = 0, end = 0;
  int64_t length() const { return begin < end ? end - begin : 0; }
  bool empty() const { return begin >= end; }
};
Stretch intersect(Stretch a, Stretch b);

enum class Way {
  direct,      // every owner to all: one round
  spread,      // first each rank gets an even stretch of the whole, then all get that from it
  ring,        // from host to host, in pieces
  logarithmic  // each round brings as much as there was before, from twice as far
};

struct Schedule {
  Way way = Way::direct;
  int64_t piece_rows = 0;  // of a ring
  int64_t rounds = 1;
  double us = 0;
  int block = 1;  // of a sum: so many ranks of a host add up their terms first
};

// Rows that one rank has, or is to have, and another keeps on the way.
struct Piece {
  Stretch rows;
  int owner = 0, keeper = 0;
};

// Where each begins and ends that many rows.
std::vector<Stretch> behind_one_another(const Sizes& sizes);
// Where two cuts of the same rows meet.
std::vector<Piece> common_pieces(const std::vector<Stretch>& owns, const std::vector<Stretch>& keeps);
// The same rows, cut evenly.
Sizes even_stretches(const Sizes& sizes);

// Of one row along that dimension.
int64_t row_bytes(Dims shape, size_t dim, DType dtype);
// How often 1 is doubled until it is as many.
int64_t doublings(int64_t count);
double price_of(const Prices& prices, int64_t rounds, int64_t messages, double bytes_each, double bytes);

// One rank's rows on their way to another.
struct Hop {
  size_t round = 0;
  int from = 0, to = 0;
  Stretch rows;
  bool first_hand = true;  // out of their owner's tensor; else out of what has come to `from` before
};

class GatherSchedules {
 public:
  // sizes[r] rows of rank r, in the order of ranks; none is negative. `packs`: of a tensor that others have rows of, or that is
  // sent in parts, the rows do not lie in one piece. Keeps a reference to the network.
  GatherSchedules(const Sizes& sizes, int64_t row_bytes, const Network& network, bool packs = false);

  // All of them, with their prices; direct comes first.
  std::vector<Schedule> all() const;
  Stretch own(int rank) const { return owns_[static_cast<size_t>(rank)]; }
  // The hops of a schedule that begin or end at a rank; a rank's own rows do not come to it.
  std::vector<Hop> hops_to(const Schedule& schedule, int rank) const;
  std::vector<Hop> hops_from(const Schedule& schedule, int rank) const;

 private:
  using Hops = std::vector<Hop>;
  Schedule direct() const;
  Schedule spread() const;
  Schedule ring(int64_t pieces) const;
  Schedule logarithmic() const;
  // Of messages of so many rows each, and of rows in all.
  double price(int64_t rounds, int64_t messages, int64_t rows_each, int64_t rows, bool packed) const;
  std::vector<Stretch> rows_of_hosts(int first, int64_t count) const;
  void add_own_host(int to, Hops& hops) const;
  void spread_hops(int rank, bool to, Hops& hops) const;
  void ring_to(const Schedule& schedule, int to, Hops& hops) const;
  // Of a logarithmic round: whose rows a host gets, from the first of these hosts on, and from which.
  struct Window {
    int sender, first;
    int64_t count;
  };
  Window window(int host, int round) const;
  int receiver(int host, int round) const;
  void logarithmic_to(int round, int to, Hops& hops) const;
  Hops all_to(const Schedule& schedule, int rank) const;
  int host_before(int host, int64_t distance) const;
  bool pairs_up() const;

  const Network& network_;
  const Hosts& hosts_;
  int64_t row_bytes_;
  bool packs_;
  std::vector<Stretch> owns_;
  std::vector<Piece> pieces_;  // of even stretches
  std::vector<int64_t> host_rows_;
  int64_t total_ = 0, longest_ = 0;
  int64_t most_together_, fewest_together_;  // ranks of a host
};

// The one that is taken: the first, unless the cheapest takes less than nine tenths of its time. Rounds that wait for each
// other suffer more from a late rank than a price says.
const Schedule& cheapest(const std::vector<Schedule>& schedules);
// "logarithmic, 3 rounds: 7.5 us (direct 9.5, spread 19)"; "folded": of blocks
std::string explain(const std::vector<Schedule>& schedules);

}  // namespace tessera
