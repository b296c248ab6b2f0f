// Where the terms of a sum are added up within hosts, and lie, on their way to other hosts: pieces along one dimension, which
// the ranks of each host share. Pure, and alike on all ranks.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "collective/sum_schedule.hpp"

namespace tessera {

class Folding {
 public:
  enum For { every_host, each_rank };
  // Of a sum of which each rank of a host, of the one with the most ranks, takes sizes[i] rows; or rank i is to have so many.
  // Keeps a reference to the hosts.
  Folding(const Hosts& hosts, const Blocks& blocks, For whom, const Sizes& sizes, int64_t row_bytes);

  const Blocks& blocks() const { return blocks_; }
  const Stretch& rows(size_t piece) const { return pieces_[piece]; }  // of the sum
  // Who of a host is to have the sum of a piece; -1: none.
  int wanted_on(int host, size_t piece) const;
  // The same of all hosts that have one.
  std::vector<int> takers(size_t piece) const;

  // Pieces that one rank keeps on every host, which may keep others too.
  int classes() const { return static_cast<int>(by_class_.size()); }
  const std::vector<size_t>& pieces_of(int number) const { return by_class_[static_cast<size_t>(number)]; }
  int keeper(int host, int number) const;

  // What a rank keeps: of each piece the sums of its host's blocks, side by side.
  int64_t rows_kept(int rank) const;
  Stretch place(size_t piece, int block) const;
  Stretch place_of_class(int number, int host) const;

 private:
  struct Table {                  // of a host of so many ranks and blocks
    std::vector<int64_t> pieces;  // where each begins
    std::vector<Stretch> classes;
    std::vector<int64_t> rows;  // by place on the host
  };
  const Table& table(int host) const;

  const Hosts& hosts_;
  Blocks blocks_;
  For whom_;
  std::vector<Stretch> pieces_;
  std::vector<int> takers_;  // by piece: numbers of sizes
  std::vector<std::vector<size_t>> by_class_;
  mutable std::map<std::pair<size_t, size_t>, Table> tables_;
};

}  // namespace tessera
