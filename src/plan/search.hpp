// The search for the cheapest plan: Dijkstra's, with a bound on what lies ahead (A*), over the layouts of a Graph, or of two where the meshes differ.
#pragma once

#include <queue>
#include <unordered_map>

#include "plan/exchange_between.hpp"
#include "plan/exchange_price.hpp"

namespace tessera {

class Search {
 public:
  Search(const Layout& from, const Layout& to, const Dims& shape, DType dtype, const Topology& topology,
         const PlanOptions& options);

  // The steps of the cheapest path; none where nothing keeps within max_bytes. Without bounds on what lies ahead it looks
  // at every layout that is no dearer, which is how tests know that the bounds are none too high.
  std::optional<std::vector<Step>> cheapest(bool with_bounds = true);
  // The least max_bytes with which there is a path.
  double least_bytes();

 private:
  enum class Mode : uint8_t { cost, peak };
  struct Visit {
    Node node;
    int graph = 0;
    int parent = -1;
    Edge edge = {};
    double cost = std::numeric_limits<double>::infinity();
    double ahead = 0;  // the target is no cheaper than this from here
    int steps = 0;
    bool done = false;
  };
  // In the order in which equals are taken. An exchange out of the source or into the target is queued by a first bound,
  // then by a closer one, and priced last; an all-to-all by a bound.
  enum class Item : uint8_t { visit, all_out, out, in, close_out, close_in, move };
  struct Queued {
    double cost;
    int steps;
    Item item;
    int visit;                                   // or the number of a move
    bool operator<(const Queued& other) const {  // the queue has the largest on top
      if (cost != other.cost) return cost > other.cost;
      return steps != other.steps ? steps > other.steps : item > other.item;
    }
  };

  struct Move {
    int from, to;
    Reshard reshard;
  };

  bool within(int from, int to) const {
    return visits_[static_cast<size_t>(from)].graph == visits_[static_cast<size_t>(to)].graph;
  }
  size_t way_of(int from, int to) const {  // in least_latency_ and least_slope_
    return within(from, to) ? static_cast<size_t>(visits_[static_cast<size_t>(from)].graph) : 2;
  }
  ExchangePricer& pricer(int visit) {
    return visits_[static_cast<size_t>(visit)].graph == 0 ? pricer_ : *other_pricer_;
  }
  bool may_exchange(int from, int to);
  void queue_exchange_out(int graph, const Node& node);
  Graph& graph(int number) { return number == 0 || !other_ ? one_ : *other_; }
  int visit_of(int graph, const Node& node);
  double ahead_of(int visit);
  struct Place {
    Dims at;
    std::array<std::optional<Dims>, 2> own;  // its rank's coordinate in each graph's mesh
    double whole;                            // elements of its part
    std::array<Interval, kMaxDims> wanted;   // that part
  };
  void find_places();
  double held_at(const Visit& visit, const Dims& coordinate, const Place& place);
  double missing_near(const Visit& visit, const Place& place, uint32_t near, bool of_all);
  double from_afar(const Visit& visit, const Place& place, uint32_t embedded, double missing);
  double missing_at_first(int from, int to, double terms);
  double best() const { return visits_[static_cast<size_t>(target_)].cost; }
  void run(Mode mode);
  void expand(int number);
  void offer(int parent, int next, const Reshard& reshard);
  void take_move(const Move& move);
  void relax(int parent, int next, const Edge& edge);
  void queue_exchanges_out();
  void queue_exchange_in(int number);
  void bound_closer(const Queued& item, int from, int to);
  void take_exchange(const Queued& item, int from, int to);
  double bound(int from, int to, double latency_us);
  PricedExchange price(int from, int to, double most_us);
  double us_between(const ExchangeBetween::Load& load, bool reduces) const;
  double bound_between_meshes(int from, int to);
  PricedExchange price_between_meshes(int from, int to, double most_us);
  Layout layout_of(int visit);
  double peak(int from, int to, const Edge& edge);
  double halfway(const Graph& graph, const Node& before, uint32_t axes);
  double shared(int a, const Dims& at, int b, const Dims& other_at);
  std::vector<Step> steps_to(int visit);

  Layout from_, to_;
  Dims shape_;
  const Topology& topology_;
  PlanOptions options_;
  bool one_mesh_;
  bool are_disjoint_ = false;  // no rank is in both meshes
  Graph one_;
  std::optional<Graph> other_;
  ExchangePricer pricer_;
  std::optional<ExchangePricer> other_pricer_;
  // Of any way that an exchange may take: within the first mesh, within the second, between them.
  std::array<double, 3> least_latency_ = {}, least_slope_ = {};
  double any_slope_ = 0;                // of any way at all
  int target_ = -1;                     // its visit
  std::vector<Place> places_;           // of the target, by which the rest of a way is bounded
  std::vector<size_t> place_in_speed_;  // by axis, of one mesh: 0 is the fastest
  std::vector<double> slopes_;          // the least of each axis, of one mesh
  bool is_even_ = false;                // all pieces that a search may meet are as large
  bool chunked_ = false;                // both layouts are cut as torch.chunk cuts, or whole
  std::pmr::vector<Visit> visits_{one_.memory()};
  std::array<std::pmr::unordered_map<uint64_t, int>, 2> numbers_ = {
      std::pmr::unordered_map<uint64_t, int>{one_.memory()}, std::pmr::unordered_map<uint64_t, int>{one_.memory()}};
  std::pmr::vector<Move> moves_{one_.memory()};
  std::priority_queue<Queued, std::pmr::vector<Queued>> queue_{std::pmr::polymorphic_allocator<Queued>(one_.memory())};
  Mode mode_ = Mode::cost;
  bool with_bounds_ = true;
};

// Along which dimension the sums of an all_reduce over so many ranks are cut between its two halves; none: along none.
// `lengths`: by dimension, the longest piece; 0 where it cannot be cut on.
std::optional<size_t> halfway_dim(const std::vector<int64_t>& lengths, int64_t ranks);

}  // namespace tessera
