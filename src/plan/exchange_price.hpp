// What a direct exchange between two layouts of one mesh costs: Exchange's boxes, counted and not listed.
#pragma once

#include <bit>
#include <limits>
#include <unordered_map>

#include "plan/graph.hpp"

namespace tessera {

inline constexpr double kNever = std::numeric_limits<double>::infinity();  // a price

struct PricedExchange {
  double us = 0, bytes = 0;
};

// Reused from pair to pair for its memory.
class ExchangePricer {
 public:
  ExchangePricer(Graph& graph, double base_us);

  void set(const Node& before, const Node& after);
  // What one receiver pays: no more than the whole. That of the place which has most.
  double bound();
  // Infinite where it is more than most_us.
  PricedExchange price(double most_us);

 private:
  enum class Source : uint8_t { cut, fixed, same, reduced, turns };
  enum class Target : uint8_t { block, fixed, same, free };

  // A place, or what some axes add to one: its coordinates as bits, of slower axes the higher ones, and its number.
  struct Spot {
    uint64_t bits = 0;
    size_t number = 0;
    Spot operator+(const Spot& other) const { return {bits + other.bits, number + other.number}; }
  };
  // Which pieces of the source meet a piece of the target, in one dimension.
  struct Shared {
    double elements;
    Spot holder;  // by the axes that cut the dimension
    size_t from;  // the source's piece
  };
  struct Meeting {
    const CutList *from = nullptr, *to = nullptr;
    uint64_t bits = 0;    // of the axes that cut the source
    size_t of_first = 0;  // piece of the target, in ranges_
  };
  struct Range {
    size_t begin = 0, end = 0;  // in shared_; 0: not worked out yet, or the piece is empty
  };
  struct Load {
    double latency = 0;
    std::array<double, kMaxPlanAxes> bytes = {};
    friend bool operator==(const Load&, const Load&) = default;
  };

  void find_roles(const Node& before, const Node& after);
  void find_terms();
  const Meeting& meeting(int from, int to);
  void work_out(const Meeting& dim, size_t piece);
  Spot spot(size_t axis, int64_t coordinate) const {
    return {static_cast<uint64_t>(coordinate) << shift_[axis], static_cast<size_t>(coordinate) * stride_[axis]};
  }
  uint64_t bits_of(size_t axis) const {
    return (std::bit_ceil(static_cast<uint64_t>(sizes_[axis])) - 1) << shift_[axis];
  }
  bool gets_value() const;
  // What the receiver at hand gets; adds to what its senders send, where that is asked.
  Load receive(bool for_senders);
  void pieces(size_t d, double elements, Spot holder);
  void take_terms(double elements, Spot holder);
  void take(double elements, Spot holder);
  Spot turn() const;
  size_t number_in(const CutList& list) const;  // of the receiver's piece
  double us_of(const Load& load, bool receives) const;
  void set_receiver(size_t index);

  Graph& graph_;
  double base_us_;
  size_t axes_;
  std::vector<int64_t> sizes_;
  std::array<double, kMaxPlanAxes> latency_ = {};
  std::array<size_t, kMaxPlanAxes> stride_ = {};
  std::array<int, kMaxPlanAxes> shift_ = {};
  std::array<uint8_t, 64> axis_of_bit_ = {};
  std::unordered_map<uint64_t, Meeting> meetings_;  // by the two lists
  std::vector<Range> ranges_;                       // of all of them
  std::vector<Shared> shared_;

  // Of the pair at hand.
  std::array<Source, kMaxPlanAxes> source_ = {};
  std::array<Target, kMaxPlanAxes> target_ = {};
  std::array<bool, kMaxPlanAxes> kept_ = {};
  std::array<int64_t, kMaxPlanAxes> fixed_source_ = {}, fixed_target_ = {};
  std::vector<const Meeting*> dims_;           // that the source cuts
  std::vector<const CutList*> whole_;          // of the target, in the others
  std::vector<Spot> terms_;                    // what each term of a sum adds; one where there is none
  uint64_t kept_bits_ = 0, replica_bits_ = 0;  // of axes on which everyone keeps its own part; that hold replicas
  int64_t turns_ = 1;
  bool reduces_ = false;

  std::array<int64_t, kMaxPlanAxes> receiver_ = {};
  Spot receiver_spot_;
  Load received_;
  bool for_senders_ = false;
  std::array<size_t, kMaxDims> to_number_ = {}, from_number_ = {};  // of the pieces at hand
  std::vector<Load> sent_;
};

}  // namespace tessera
