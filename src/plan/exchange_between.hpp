// What an exchange between two meshes is to its busiest ranks. How much a rank receives, and from how many, follows from how
// long its piece of each dimension is and how many others that meets; so of thousands of ranks few kinds are left.
#pragma once

#include <set>
#include <vector>

#include <tessera/layout.hpp>

#include "layout/cutting.hpp"

namespace tessera {

class ExchangeBetween {
 public:
  struct Load {
    double peers = 0, elements = 0;
    friend auto operator<=>(const Load&, const Load&) = default;
  };

  // Layouts that are resolved, on different meshes; both outlive it.
  ExchangeBetween(const Layout& from, const Layout& to, const Dims& shape);

  // One of each kind. Where no rank is in both meshes, these are the loads of all; else a rank may have less, as it needs
  // nobody for what it has.
  const std::set<Load>& received() const { return received_; }
  std::set<Load> sent() const;
  // Of the receivers that are in both meshes each has at least this much.
  Load least_of(const Load& received) const;
  int64_t terms() const { return terms_; }

 private:
  struct Dim {
    Cutting from, to;
    std::vector<Interval> from_pieces, to_pieces;
    bool both = false;  // cut it
  };

  // How much of each piece in the range that a piece of the source meets; of few kinds.
  using Shares = std::vector<int64_t>;
  std::set<Shares> kinds_of_shares(const Dim& dim) const;
  // What a receiver shares with a piece by its place on the axes that have nothing to do with the source's cuts, row-major.
  std::vector<int64_t> free_shares() const;
  std::set<Load> sent_in_turns() const;

  const Layout &from_, &to_;
  std::vector<Dim> dims_;
  std::vector<size_t> both_;  // dimensions that both cut, as Exchange numbers receivers
  int64_t terms_ = 1, turns_ = 1;
  int64_t copies_ = 1;  // of each piece of the target that get the value
  std::vector<size_t> free_axes_;
  std::set<Load> received_;
};

}  // namespace tessera
