// This process among the ranks that a launcher started, or that met by themselves: joining them, watching them, and its own part of the memory.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/shm/heap.hpp"
#include "transport/shm/process.hpp"
#include "transport/shm/segment.hpp"

namespace tessera::shm {

// How peers read memory that is not of the shared heap. `choose` takes what is fastest and allowed; the others force one
// way for everything, for tests and for comparison (TESSERA_SHM_WAY).
enum class Way { choose, in_place, attach, staged };
Way parse_way(const char* text);  // null: choose. Throws Error.

// Who wants to hear of deaths. Called on the watching thread.
class Mourner {
 public:
  virtual ~Mourner() = default;
  virtual void on_death(int world_rank) = 0;
  virtual void on_launcher_gone() = 0;
};

class World {
 public:
  // Collective among all ranks of the segment. `neighbours`: how many share the machine, where there are others. Throws Error,
  // PeerLostError, TimeoutError.
  World(std::shared_ptr<Segment> segment, int rank, Way way, Deadline deadline, int neighbours = 0);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return segment_->ranks(); }
  int neighbours() const { return neighbours_; }
  const Looks& looks() const { return looks_; }
  Way way() const { return way_; }
  const Segment& segment() const { return *segment_; }
  Heap& heap() const { return *heap_; }
  const Identity& identity(int rank) const { return identities_[static_cast<size_t>(rank)]; }

  bool is_dead(int rank) const { return dead_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }
  // How it ended, as far as is known: "it exited with code 3 (pid 4711)".
  std::string obituary(int rank) const;
  // Whether `reader` can read `owner`'s own memory.
  bool can_read(int reader, int owner) const { return segment_->reads(reader, owner).load() == 2; }

  // Waits until pred() holds, which others make true and then ring() this rank; false at the deadline.
  template <class Pred>
  bool await(Deadline deadline, const Pred& pred) const {
    if (looks_.until(pred)) return true;
    Place& place = segment_->place(rank_);
    place.sleepers.fetch_add(1, std::memory_order_seq_cst);
    bool holds = false;
    while (true) {
      const uint32_t bell = place.bell.load(std::memory_order_seq_cst);
      holds = pred();
      if (holds || Clock::now() >= deadline) break;
      futex_wait(place.bell, bell, deadline);
    }
    place.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return holds;
  }

  // Keeps a board that this rank made until no rank holds it.
  void keep_board(std::shared_ptr<std::byte> board);

  // Tells of the dead there are, and of those to come until dismiss().
  void enroll(Mourner& mourner);
  void dismiss(Mourner& mourner);

 private:
  void join(Deadline deadline);
  void meet_others(Deadline deadline);
  void watch_launcher();
  const char* call() const { return segment_->led() ? "Comm::from_env()" : "tessera::join()"; }
  void await_all_joined(Deadline deadline) const;
  int who_gave_up() const;
  void check_nobody_gave_up() const;
  int first_gone(const std::vector<int>& ranks) const;
  void probe_peers(Deadline deadline) const;
  void start_watching();
  void stop_watching();
  void watch();
  void mourn(int rank);
  void outlive_launcher();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const Way way_;
  const int neighbours_;
  const Looks looks_;
  std::shared_ptr<Heap> heap_;
  std::vector<Identity> identities_;
  std::vector<std::atomic<bool>> dead_;
  std::vector<int> watched_;  // pidfds by rank, then the launcher's, then the stop event; -1: none
  std::mutex mourners_guard_;
  std::vector<Mourner*> mourners_;
  std::mutex boards_guard_;
  std::vector<std::shared_ptr<std::byte>> boards_;
  std::thread watcher_;
};

}  // namespace tessera::shm
