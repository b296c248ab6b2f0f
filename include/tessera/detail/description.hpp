// What a described operation is made of. For collective.hpp and the library;
// not part of the public face.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <vector>

#include <tessera/comm.hpp>
#include <tessera/reduction.hpp>
#include <tessera/tensor.hpp>
#include <tessera/work.hpp>

namespace tessera {
class Exchange;
}

namespace tessera::detail {

enum class OpCode : uint8_t {
  none,
  barrier,
  split_comm,
  gather_sizes,
  all_gather,
  all_gather_parts,
  all_gather_same,
  reduce_scatter,
  all_reduce,
  all_to_all,
  all_to_all_v,
  broadcast,
  scatter,
  gather,
  reduce,
  redistribute,
  scatter_parts,  // a tensor of the root for one rank alone
  send,
  recv,
};

// As the caller gave it: nothing is checked yet, so that what is wrong can be
// told to every rank.
struct Description {
  OpCode op = OpCode::none;
  Tensor x = {};
  Tensor out = {};                 // the caller's memory, if any
  std::vector<Tensor> parts = {};  // all_gather_parts: instead of out, one for each rank
  int64_t dim = 0;                 // the dimension that is cut (all_to_all: gathered)
  int64_t split_dim = 0;           // all_to_all: the dimension that is cut
  int64_t root = 0;
  Reduction reduction = {};
  double scale = 1;       // of what is only moved: adjoints of averages need it
  Sizes sizes = {};       // all_to_all_v: to send
  Sizes recv_sizes = {};  // all_to_all_v
  bool trusted = false;   // all_gather: without agreement, where the transport can
  int64_t extra[2] = {0, 0};
  // A word for the caller's own use: every rank learns those of all. The low byte may differ; above it is a Forward
  // (forward.hpp), in which ranks that have one must agree.
  int64_t flags = 0;
  int64_t stage = 0;  // of several calls from one line that belong together: which
  // redistribute: from which layout to which, and what, as a rank may have no x; the note names both, alike on all ranks.
  // It is its owner's until the call is done.
  const std::shared_ptr<const Exchange>* exchange = nullptr;
  const std::string* note = nullptr;
  DType dtype = DType::f32;
  std::exception_ptr problem = {};  // what is wrong with the caller's arguments
                                    // already: every rank is told
};

// One operation as it is asked for, of which nothing is copied: all that it takes to know that a call repeats an earlier
// one, and to run it.
struct Asked {
  OpCode op = OpCode::none;
  const Tensor* x = nullptr;  // never null
  const Tensor* out = nullptr;
  int64_t dim = 0;
  int64_t split_dim = 0;
  int64_t root = 0;
  Reduction reduction = {};
  double scale = 1;
  const Sizes* sizes = nullptr;  // null: none
  const Sizes* recv_sizes = nullptr;
  bool trusted = false;                // with an `out`, which may be undefined, and sizes
  const Description* whole = nullptr;  // where it has more fields than these, which stand here all the same

  static Asked by(const Description& description);
  Description describe() const;
  bool has_out() const { return out != nullptr && out->defined(); }
};

struct Outcome {
  Tensor tensor;
  std::vector<Tensor> parts;
  Sizes sizes;
  Sizes flags;  // of every rank; empty where all are zero
};

// Agrees on all of them at once, runs them together, and sets outcomes[i] to
// what came of batch[i]. Collective.
void execute(Comm& comm, std::span<const Description> batch, std::span<Outcome> outcomes, const Site& site);
// The same for one; what is asked for need last until it returns only.
void execute(Comm& comm, const Asked& asked, Outcome& outcome, const Site& site);
// Tells every rank that this one's arguments are wrong, so that none waits for it: all throw what `problem` is. Collective.
[[noreturn]] void refuse(Comm& comm, OpCode op, const std::exception_ptr& problem, const Site& site);
// By its name, as errors have it. Throws Error where there is none.
OpCode find_op(std::string_view name);
// Comm::split(), with a name for the new communicator.
Comm split(Comm& comm, int64_t color, int64_t key, const std::string& name, const Site& site);
// One of several that belong together, from within CommState::call() or the worker.
void execute_now(CommState& state, const Asked& asked, Outcome& outcome, const Site& site);
// The same on the communicator's worker; `outcomes` is as long as the batch
// when the task is done.
std::shared_ptr<Task> start(Comm& comm, std::vector<Description> batch, const Site& site,
                            std::shared_ptr<std::vector<Outcome>> outcomes);

}  // namespace tessera::detail
