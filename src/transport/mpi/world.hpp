// What the communicators of one process share of an MPI: its functions, how it may be called, and what is left to tidy up.
#pragma once

#include <any>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/fiber.hpp"
#include "comm/transport.hpp"
#include "transport/mpi/library.hpp"

namespace tessera::mpi {

// What goes on while anything is waited for, be it on another communicator.
class Helper {
 public:
  virtual void progress() = 0;
  virtual bool is_pending() const = 0;

 protected:
  ~Helper() = default;
};

// The tags of a communicator's messages.
enum Tag : int32_t { kRecord = 1, kRest, kVote, kControl, kLetter, kAnswer, kData, kRelayed, kFirstPayload };

// A look is about as dear as leaving the core, which may be the very one that a peer waits for: so it spins little where
// there may not be one for each.
inline constexpr int kFewSpins = 20;

inline constexpr auto kSettling = std::chrono::seconds(1);

class World {
 public:
  // The one of this process for that MPI; made where there is none. Initialises MPI where nobody has, and finalises it then,
  // when the last of its communicators is gone.
  static std::shared_ptr<World> of(const std::string& mpi);
  // `engine`: what the functions need, if anything; it goes when nothing of this is used any more.
  explicit World(const Api& api, std::shared_ptr<void> engine = nullptr);
  ~World();
  World(const World&) = delete;

  const Api& api() const { return api_; }
  void check(int code, const char* what) const {
    if (code != 0) mpi::check(api_, code, what);
  }
  // Throws Error where MPI does not let this thread call it, or is finalised.
  void check_thread() const;
  bool has_one_thread() const { return level_ < multiple; }
  // Whether MPI lets this thread call it.
  bool may_call() const { return is_right_thread() && !is_over(); }
  // How many ranks share this one's cores, as far as a communicator knows, and how many those are; and how often a waiting
  // one looks before it leaves its core to them.
  void set_neighbours(int ranks, int cores);
  int spins() const { return spins_; }
  // A communicator is dead: finalising may have to wait for a peer that never comes. Tells the others that this rank will.
  void give_up() noexcept;

  // Of requests those that are over, and how many bytes came where they are receives (-1: this MPI does not say). Their
  // handles become 0. Returns MPI's code.
  struct Over {
    size_t count = 0;
    std::vector<int32_t> which;  // as many; what lies behind is left from before, as whoever waits asks very often
    std::vector<int64_t> bytes;
  };
  int test_some(std::span<RequestHandle> requests, Over& over) const;
  bool tells_lengths() const { return api_.test_some_sized != nullptr; }

  // A message that nobody waits for; the text is kept as long as it takes.
  void send_text(CommHandle comm, int to, int32_t tag, std::string text);
  // Waits for what a peer has begun, as MPI cannot take it back: a live one ends it within kSettling. What is over becomes 0.
  void settle(std::span<RequestHandle> requests, Deadline end) const;
  // Keeps what a request that cannot be ended may still read or write.
  void keep(RequestHandle request, std::any memory);
  // A communicator that this rank has left, and those of its peers that have not said so yet: it is freed when all have,
  // as what they send late would else be taken for a message of the next one.
  void bury(CommHandle comm, std::vector<bool> left);
  void tidy();

  // Whoever has enlisted is helped by all who wait. help_all(): whether anything is left to do.
  void enlist(Helper& helper);
  void dismiss(Helper& helper);
  bool help_all();

 private:
  static constexpr size_t kFewKept = 64;
  struct Kept {
    RequestHandle request;
    std::any memory;
  };
  struct Grave {
    CommHandle comm;
    std::vector<bool> left;
    std::vector<bool> comes = {};  // those that have said so, and have not left
  };
  struct Unsent {  // said on a thread that must not call MPI: it goes when the right one comes
    CommHandle comm;
    int to;
    int32_t tag;
    std::string text;
  };
  bool is_right_thread() const { return level_ >= multiple || std::this_thread::get_id() == main_; }
  bool is_over() const;
  // Takes out of kept_ what is over.
  std::list<Kept> sweep();
  bool all_left(Grave& grave);
  void clear(CommHandle comm);
  bool is_tidy();
  void drain();
  void end();
  bool part();
  void tell_all_parting(const std::string& text);

  const Api& api_;
  bool ours_ = false;
  CommHandle parting_ = 0;       // of all ranks, where this is to finalise
  int32_t rank_ = 0, size_ = 0;  // there
  std::atomic<bool> given_up_{false};
  std::atomic<int> neighbours_{0}, spins_{kFewSpins};
  int32_t level_ = single;
  std::thread::id main_;
  std::mutex guard_;
  std::list<Kept> kept_;
  size_t most_kept_ = kFewKept;  // before they are looked through
  std::list<Grave> graves_;
  std::list<Unsent> unsent_;
  std::atomic<bool> has_unsent_{false};
  std::mutex helpers_guard_;
  std::list<Helper*> helpers_;
  const std::shared_ptr<void> engine_;  // goes first: it may use what is kept
};

// A communicator of the same ranks, which all of them begin to make; nobody waits but by asking. What MPI may still write to
// when this goes is the world's.
class Duplication {
 public:
  Duplication(World& world, CommHandle comm);
  ~Duplication();
  Duplication(const Duplication&) = delete;
  // Throws Error.
  bool is_over();
  CommHandle made();  // when it is over

 private:
  World& world_;
  const std::shared_ptr<uint64_t> place_ = std::make_shared<uint64_t>(0);
  RequestHandle request_ = 0;
  World::Over over_;
};

// What a rank tells all others beside the calls: "l" and a farewell; "c": a communicator is dead, and it will come to
// finalise (among all ranks only); "a", the kind of error as a character, and the text;
// or, when it has waited in vain, "h", the call that it is in and for whom it waits (-1: it does not know). Who hears that
// answers by "i" and the same of itself.
// So short that MPI takes it at once, and the one who hears it never waits for the one who said it.
inline constexpr size_t kMostControlBytes = 2000;
struct Control {
  int from = 0;
  std::string text;
};
// The next one that has come; none yet: false.
bool next_control(World& world, CommHandle comm, Control& control);
// The next rank that is lost and was not told of before; -1: none.
int next_lost(World& world, CommHandle comm);

// Throws Error where a message has another length than it should: it is none of those that were agreed on.
void check_length(int from, int64_t bytes, int64_t expected);

// Between two looks at whether something has come: spins at first, and then leaves the core to others.
class Patience {
 public:
  Patience() = default;
  // Who waits for messages of that communicator is woken by them, where the engine can do that.
  Patience(const World& world, CommHandle comm) : api_(&world.api()), comm_(comm), spins_(world.spins()) {}
  void pause() {
    ++count_;
    if (!let_others_go_on() && count_ >= spins_) leave_core();
  }
  bool should_look_around() const { return count_ % 32 == 31; }
  // Lets whoever waits be interrupted (set_wait_hook()), about ten times a second. Throws what the hook does.
  void heed_hook(Deadline now);

 private:
  void leave_core();

  const Api* api_ = nullptr;
  CommHandle comm_ = 0;
  const int spins_ = kFewSpins;
  uint64_t seen_ = 0;
  int64_t count_ = 0;
  Deadline next_hook_ = {};
};

}  // namespace tessera::mpi
