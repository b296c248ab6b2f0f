// Comm: a group of ranks that call the same things in the same order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tessera/error.hpp>
#include <tessera/site.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

namespace detail {
class CommState;
}
struct RunOptions;

// What one rank has done on one communicator. Bytes are those of elements.
struct Stats {
  int64_t calls = 0;           // operations; a batch counts each of its own
  int64_t exchanges = 0;       // agreements: one a call, one a batch
  int64_t moves = 0;           // rounds of moving
  int64_t messages = 0;        // boxes read from other ranks
  int64_t bytes_received = 0;  // read from other ranks
  int64_t bytes_sent = 0;      // read by other ranks
  int64_t copies = 0;          // boxes written, by copy or reduction
  int64_t bytes_copied = 0;    // bytes written by them
  int64_t allocations = 0;     // outputs allocated
  int64_t bytes_allocated = 0;
  // Where ranks are processes, of all that was received or sent:
  int64_t bytes_attached = 0;  // read out of a peer's own memory by the kernel, with no copy in between
  int64_t bytes_staged = 0;    // of this rank, copied into shared memory first, for peers to read
  int64_t heap_misses = 0;     // allocations that the shared heap had no room for, and that are ordinary memory
  // Under an MPI's launcher, of tensors that are not so small that they travel within the agreement:
  int64_t bytes_between_hosts = 0;  // came to this rank from other hosts; what several ranks of a host want comes once
  int64_t bytes_within_host = 0;    // read from other ranks of this host, among it what came to them for this one
};

// One call of the flight recorder.
struct CallRecord {
  int64_t number = 0;  // on its communicator, from 1; 0: a message between two ranks
  std::string operation;
  std::string site;
  int64_t bytes_received = 0;
  std::chrono::steady_clock::time_point start, end;
  bool finished = false;
  std::string error;  // empty: none
  // Between hosts: in how many rounds the elements went, what that is priced at, and what else was to choose from
  // ("ring, 19 rounds: 6.9e+03 us (direct 2.01e+04, …)"). Empty: there was nothing to choose.
  std::string schedule;
};

// Ranks call collectives on one communicator in one order; every call checks
// that they agree. A Comm is for one thread at a time. In a forked child it
// only throws. Movable, not copyable. The destructor finishes what is pending
// and then leaves: peers that still wait for this rank get a PeerLostError.
class Comm {
 public:
  Comm() = default;  // undefined: a rank that is in no group
  Comm(Comm&&) noexcept;
  Comm& operator=(Comm&&) noexcept;
  ~Comm();

  // The communicator of all ranks that this program was started with: by `tessera run`, on one host, or by an MPI's
  // launcher (mpirun, srun), on many. A program that was started plainly is one rank. Collective among the ranks, once a
  // process. Throws Error, PeerLostError, TimeoutError.
  static Comm from_env(const RunOptions& options);
  static Comm from_env();

  bool defined() const { return state_ != nullptr; }
  int rank() const;
  int size() const;
  const std::string& name() const;

  // Collective. Returns when every rank has come. Cost: one exchange.
  void barrier(const Site& site = Site::current());

  // Collective. The ranks with one color make a communicator, ordered by key,
  // then by rank. A negative color: this rank is in none and gets an undefined
  // Comm. Cost: one exchange.
  Comm split(int64_t color, int64_t key = 0, const Site& site = Site::current());

  // After a PeerLostError, TimeoutError or AbortedError: a new communicator of
  // the ranks that come here too. Those that have left are not waited for,
  // others for one timeout. Throws AbortedError on a rank that comes too late.
  Comm shrink();

  // How long a call waits for a peer before it throws TimeoutError. Local; five
  // minutes at first.
  std::chrono::nanoseconds timeout() const;
  void set_timeout(std::chrono::nanoseconds timeout);

  // Local, before the first call. What errors of a dead communicator recommend, in place of shrink(): for front ends that have
  // other words. Communicators that are made of this one do not have it.
  void set_remedy(const std::string& text);

  // Local. Ends the communicator on every rank: those that wait, and all later
  // calls, get an AbortedError with the reason.
  void abort(const std::string& reason);

  // Local. New memory that peers read fastest, row-major, its elements as they are: where ranks are processes, of the
  // heap that they share (ordinary memory where that is full). What collectives return is such memory too. It may outlive
  // the communicator. Throws Error where there is no memory left, before anything is killed for it.
  Tensor allocate(DType dtype, const Dims& shape) const;

  // Local. What carries the elements, in words: "threads of one process"; "Open MPI v4.1.4: 8 ranks on 2 hosts; between
  // hosts 2 us a round, …; within a host through shared memory", or why not.
  std::string transport() const;

  // Local. Call them with nothing pending for exact figures.
  Stats stats() const;
  void reset_stats();

  // Local. The last 64 calls and messages of this rank, oldest first; also as a Chrome trace
  // (chrome://tracing, Perfetto).
  std::vector<CallRecord> recent_calls() const;
  std::string chrome_trace() const;

  explicit Comm(std::shared_ptr<detail::CommState> state);  // for transports
  detail::CommState& state() const;                         // for the library; throws Error where undefined

 private:
  std::shared_ptr<detail::CommState> state_;
};

// The moments of a call at which a test can look in, delay or fail a rank.
enum class Moment { before_announce, before_copy, during_copy, after_copy, before_leave };

struct RunOptions {
  std::string name = "world";
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  // Fault injection: called on the rank's own thread; it may sleep or throw.
  // before_copy comes before the claim on the peers' memory, during_copy after
  // it.
  std::function<void(Moment moment, int rank, int64_t call)> probe = nullptr;
};

// Local. From now on `hook` is called by every rank of this process that waits for others, about ten times a second; what
// it throws ends the call, and the communicator for all its ranks. For front ends whose user may interrupt a wait. Null:
// none. Thread safety: any thread may set it; it is called on the waiting ones.
void set_wait_hook(void (*hook)());
// Local. Calls the hook, for whoever waits beside tessera's calls; false: there is none. Throws what it does.
bool call_wait_hook();

// Runs fn(comm) on `ranks` threads of this process and returns when all have
// ended. Where a rank throws, the others come out of their calls with
// PeerLostError, and run() throws the first cause: tessera's errors as they
// are, with the rank where only one rank threw them; any other exception as a
// RankError that nests it.
void run(int ranks, const std::function<void(Comm&)>& fn, const RunOptions& options = {});

}  // namespace tessera
