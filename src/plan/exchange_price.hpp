// What a direct exchange between two layouts of one mesh costs: Exchange's boxes, counted and not listed.
#pragma once

#include <bit>
#include <limits>
#include <unordered_map>

#include "plan/graph.hpp"
#include "plan/share_table.hpp"

namespace tessera {

inline constexpr double kNever = std::numeric_limits<double>::infinity();  // a price

struct PricedExchange {
  double us = 0, bytes = 0;
};

// Reused from pair to pair for its memory.
class ExchangePricer {
 public:
  ExchangePricer(Graph& graph, double base_us);

  // Both outlive what is asked of the pair.
  void set(const Node& before, const Node& after);
  // What one receiver and one sender pay, those with the largest pieces: no more than the whole. The sender is left out
  // where the receiver alone pays more than most_us.
  double bound(double most_us);
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
    Spot holder;                // by the axes that cut the dimension
    int64_t receivers, number;  // pieces of the target that the source's meets, and which of them this one is
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
  };
  // A load that is being counted, by the slowest axis on which a peer differs: whole numbers, in whatever order they come.
  struct Tally {
    std::array<double, kMaxPlanAxes> peers = {}, bytes = {};
    void add(size_t way, double more_peers, double more_bytes) {
      peers[way] += more_peers;
      bytes[way] += more_bytes;
    }
  };
  // What receivers of one piece get from the senders of all pieces that meet it, which differ by place on one axis only.
  struct Together {
    const Meeting* dim = nullptr;
    size_t piece = 0, sender = 0, way = 0;  // the first sender's number
    double receivers = 0, bytes = 0;        // for each element of the dimension
  };

  void find_roles(const Node& before, const Node& after);
  void list_places(Source source, std::pmr::vector<Spot>& places) const;
  const Meeting& meeting(int from, int to);
  void work_out(const Meeting& dim, size_t piece);
  Spot spot(size_t axis, int64_t coordinate) const {
    return {static_cast<uint64_t>(coordinate) << shift_[axis], static_cast<size_t>(coordinate) * stride_[axis]};
  }
  uint64_t bits_of(size_t axis) const {
    return (std::bit_ceil(static_cast<uint64_t>(sizes_[axis])) - 1) << shift_[axis];
  }
  bool gets_value() const;
  Load sent_by_fullest();
  void set_receiver(const CutList& list, size_t piece);
  // What the receiver at hand gets; adds to what its senders send, where that is asked.
  const Tally& receive(bool for_senders);
  void pieces(size_t d, double bytes, Spot holder, int64_t number);
  void take(double bytes, Spot holder);
  void take_all(const Meeting& dim, size_t piece, double bytes, Spot holder);
  void send_later(const Together& more);
  void send(const Together& all);
  Load load_of(const Tally& tally) const;
  const Spot& turn_of(int64_t number) const {
    return turn_spots_[static_cast<uint64_t>(number) % static_cast<uint64_t>(turns_)];
  }
  size_t slowest_between(const Spot& one, const Spot& other) const {  // axis on which they differ
    return axis_of_bit_[static_cast<size_t>(std::bit_width(one.bits ^ other.bits)) - 1];
  }
  size_t number_in(const CutList& list) const;  // of the receiver's piece
  double us_of(const Load& load, bool receives) const;
  // Whether it is within most_us.
  bool weigh(const Load& load, bool receives, double most_us);
  bool weigh(const Tally& tally, bool receives, double most_us);
  bool next_receiver();  // false behind the last
  PricedExchange price_one_by_one(double most_us);

  // The receivers or the senders of the pair at hand, where no replicas take turns.
  struct Side {
    std::array<ShareTable*, kMaxDims> tables = {};  // of dimensions that make a difference
    size_t dims = 0;
    std::array<double, kMaxPlanAxes + 1> peers = {}, bytes = {};  // what all tables' entries multiply, by level
    std::array<int64_t, kMaxPlanAxes> at = {};                    // the first of them
    std::array<int64_t, kMaxPlanAxes> others_at = {};             // -1: not at one place of that axis
    std::array<uint8_t, kMaxPlanAxes> varying = {};               // axes on which loads may differ
    size_t varies = 0;
  };
  using Entries = std::array<const double*, kMaxDims>;  // by table
  ShareTable& table(int own, int other, uint32_t agreed);
  void find_side(bool receives);
  Entries entries_here() const;
  template <size_t axes>
  struct Levels {  // a load, the slowest axis first
    double latency = 0;
    std::array<double, axes> bytes = {};
  };
  template <size_t axes>
  struct Product {  // of tables' entries, by level
    std::array<double, axes + 1> peers, bytes;
  };
  template <size_t axes>
  void multiply(Product<axes>& product, const Entries& entries, size_t first, size_t behind) const;
  template <size_t axes>
  Product<axes> product_of(const Entries& entries, size_t first) const;
  template <size_t axes>
  Levels<axes> levels_of(const Product<axes>& product) const;
  template <size_t axes>
  Levels<axes> levels_of(const Load& load) const;
  template <size_t axes>
  Load load_of(const Levels<axes>& levels) const;
  void set_to_fullest(bool receives);
  Load load_here() const;
  size_t put_inner_first();
  template <size_t axes>
  bool weigh_row(Entries entries, size_t inner_tables, bool receives, double most_us);
  template <size_t axes>
  bool weigh_all(bool receives, double most_us);
  double bound_by_sums(double most_us);
  PricedExchange price_by_sums(double most_us);

  Graph& graph_;
  double base_us_;
  size_t axes_;
  std::vector<int64_t> sizes_;
  std::array<double, kMaxPlanAxes> latency_ = {};
  std::array<size_t, kMaxPlanAxes> stride_ = {};
  std::array<int, kMaxPlanAxes> shift_ = {};
  std::array<uint8_t, 64> axis_of_bit_ = {};
  std::pmr::unordered_map<uint64_t, Meeting> meetings_;  // by the two lists
  std::pmr::vector<Range> ranges_;                       // of all of them
  std::pmr::vector<Shared> shared_;
  std::vector<uint8_t> slow_first_;
  ShareTable::Scratch scratch_;
  std::pmr::unordered_map<uint64_t, ShareTable> tables_;  // by the two lists, and what agrees

  // Of the pair at hand.
  const Node *before_ = nullptr, *after_ = nullptr;
  Side side_;
  PricedExchange most_;
  Load heaviest_;  // of those that were weighed
  Tally heaviest_tally_;
  std::array<Source, kMaxPlanAxes> source_ = {};
  std::array<Target, kMaxPlanAxes> target_ = {};
  std::array<bool, kMaxPlanAxes> kept_ = {};
  std::array<int64_t, kMaxPlanAxes> fixed_source_ = {}, fixed_target_ = {};
  std::pmr::vector<const Meeting*> dims_;      // that the source cuts
  std::pmr::vector<const CutList*> whole_;     // of the target, in the others
  std::pmr::vector<Spot> terms_;               // what each term of a sum adds; one where there is none
  std::pmr::vector<Spot> turn_spots_;          // what each turn adds
  uint64_t kept_bits_ = 0, replica_bits_ = 0;  // of axes on which everyone keeps its own part; that hold replicas
  int64_t turns_ = 1;
  int64_t free_receivers_ = 1;  // of each piece, by the axes that have nothing to do with the source's cuts
  bool turn_by_piece_ = false;  // else a receiver gets all its pieces of the same turn
  bool reduces_ = false;

  std::array<int64_t, kMaxPlanAxes> receiver_ = {};
  Spot receiver_spot_;
  int64_t free_number_ = 0;
  Tally received_;
  bool for_senders_ = false;
  std::array<size_t, kMaxDims> to_number_ = {};  // of the pieces at hand
  std::pmr::vector<Tally> sent_;
  std::array<Together, 16> later_ = {};  // not in sent_ yet
};

}  // namespace tessera
