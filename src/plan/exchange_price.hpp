// What a direct exchange between two layouts of one mesh costs: Exchange's boxes, counted and not listed.
#pragma once

#include <limits>

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
  using Place = std::array<int32_t, kMaxPlanAxes>;

  // One dimension: which pieces of the source meet a piece of the target, and the other way round.
  struct Dim {
    const CutList *from, *to;
    bool block;        // both cut it
    bool has_kept;     // by an axis of which everyone keeps its own part
    size_t to_number;  // of the receiver's piece
  };
  struct Load {
    double latency = 0;
    std::array<double, kMaxPlanAxes> bytes = {};
  };

  void find_roles(const Node& before, const Node& after);
  bool gets_value() const;
  void receive(Load& load, bool for_senders);
  void pieces(size_t d, double elements, Load& load, bool for_senders);
  void terms(size_t axis, double elements, Load& load, bool for_senders);
  void take(double elements, Load& load, bool for_senders);
  void set_turn();
  double us_of(const Load& load, bool receives) const;
  size_t linear(const Place& place) const;
  void set_receiver(size_t index);

  Graph& graph_;
  double base_us_;
  size_t axes_;
  const std::vector<uint8_t>& by_speed_;
  std::vector<int32_t> sizes_;
  std::array<Source, kMaxPlanAxes> source_ = {};
  std::array<Target, kMaxPlanAxes> target_ = {};
  std::array<bool, kMaxPlanAxes> kept_ = {}, replica_ = {};
  Place fixed_source_ = {}, fixed_target_ = {};
  std::vector<Dim> dims_;
  int64_t turns_ = 1;
  bool reduces_ = false;
  Place receiver_ = {}, holder_ = {};
  std::array<size_t, kMaxDims> from_number_ = {};  // of the piece at hand
  std::vector<Load> sent_;
};

}  // namespace tessera
