// The one way in which every collective runs: say, agree, arrange, allocate,
// move.
#include <algorithm>

#include "collective/arrange.hpp"
#include "collective/inlined.hpp"
#include "collective/moves.hpp"
#include "collective/replay.hpp"
#include "collective/state_call.hpp"
#include "collective/trusted.hpp"
#include "comm/comm_state.hpp"

namespace tessera::detail {
namespace {

// What follows from what all ranks said; the same for every call that is like
// it.
struct CallPlan {
  std::vector<Arranged> arranged;
  PeerTensors peers;
  Rounds rounds;
  Stats counted;  // what its moves add to the statistics
  InlinedMove inlined;
  Replay replay;
};

// Kept by the communicator for the next call: a call of one tensor then
// allocates its result and little else.
struct Workspace {
  Record record;
  std::vector<int64_t> words;
  std::vector<Tensor> mine;  // by number, alike on all ranks: for each operation
                             // x, then its outputs
};

template <class T>
T& kept(std::shared_ptr<void>& place) {
  if (place == nullptr) place = std::make_shared<T>();
  return *static_cast<T*>(place.get());
}

class Engine {
 public:
  Engine(CommState& comm, std::span<const Description> batch, std::span<Outcome> outcomes, const Site& site)
      : comm_(comm),
        batch_(batch),
        outcomes_(outcomes),
        site_(site),
        call_(comm.next_call()),
        deadline_(comm.deadline()),
        w_(kept<Workspace>(comm.workspace)) {
    std::lock_guard lock(comm_.guard());
    comm_.recorder.begin(call_, first_op(), batch_.size(), site);
    comm_.stats.calls += static_cast<int64_t>(batch_.size());
    if (!is_trusted()) ++comm_.stats.exchanges;
  }

  // Lets go of the tensors, so that nothing but the caller keeps them.
  ~Engine() { w_.mine.clear(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void run() {
    try {
      if (is_trusted()) moved_ = &(trusted_ = gather_trusted(comm_, batch_[0], outcomes_[0]));
      else if (!replay()) play();
    } catch (const Error& e) {
      if (!e.collective()) give_up(e.what());
      end(e.what());
      throw;
    } catch (const std::exception& e) {
      give_up(e.what());
      end(e.what());
      throw;
    } catch (...) {
      give_up("an exception that is no std::exception");
      end("an exception that is no std::exception");
      throw;
    }
    end(nullptr);
  }

 private:
  OpCode first_op() const { return batch_.empty() ? OpCode::none : batch_[0].op; }

  bool is_trusted() const { return batch_.size() == 1 && batch_[0].trusted && can_trust(comm_, batch_[0]); }
  // Where to look for an earlier call like this one. A gradient has the line of its forward, and is another operation.
  int64_t place() const { return site_.line() + 5 * static_cast<int64_t>(first_op()); }

  // Whether this call was like the last one from its line, and is done.
  bool replay() {
    if (batch_.size() != 1 || comm_.has_deferred()) return false;
    const Description& d = batch_[0];
    Agreement& agreement = comm_.agreement_at(place());
    if (!agreement.settled || !kept<CallPlan>(agreement.plan).replay.fits(d, site_)) return false;
    CallPlan& plan = kept<CallPlan>(agreement.plan);
    const RawRecords& said = comm_.exchange(plan.replay.record(call_, d.x), call_, d.op, deadline_);
    told_ = true;
    if (!plan.replay.same(said)) return false;
    w_.mine.push_back(d.x);
    w_.mine.push_back(d.out);
    w_.mine.resize(1 + output_count(d.op, comm_.size()));
    prepare_outputs(plan);
    move_inlined(plan, said);
    hand_out(plan);
    return true;
  }

  void play() {
    say();
    if (told_ && w_.record.problem != ErrorKind::none) throw Error(w_.record.problem_text);  // too late to tell it
    if (!told_) {
      comm_.attach_deferred(w_.record);
      w_.words.clear();
      encode(w_.record, w_.words);
      comm_.exchange(comm_.saying(w_.words, place()), call_, first_op(), deadline_);
    }
    Agreement& agreement = comm_.agree(call_, place());
    CallPlan& plan = kept<CallPlan>(agreement.plan);
    plan.replay.forget();
    if (!agreement.repeated) {
      plan.arranged.clear();
      for (size_t op = 0; op < batch_.size(); ++op) {
        plan.arranged.push_back(arrange(comm_.call_name(call_), agreement.records, op, batch_[op], comm_.rank()));
      }
    }
    prepare_outputs(plan);
    if (!agreement.repeated) work_out(plan, agreement.records);
    agreement.settled = true;
    move(plan, agreement.records);
    hand_out(plan);
    if (agreement.repeated) note_replay(plan, agreement.records);
  }

  void note_replay(CallPlan& plan, const std::vector<Record>& records) {
    const bool alone = batch_.size() == 1 && batch_[0].parts.empty() && apart(records);
    if (alone && plan.rounds.all().size() <= 1 && all_inlined(records) && comm_.all_said()) {
      plan.replay.note(call_, batch_[0], site_, comm_.rank(), comm_.said());
    }
  }

  // Whether this rank's outputs share no memory with what is moved into them.
  bool apart(const std::vector<Record>& records) const {
    const auto& places = records[static_cast<size_t>(comm_.rank())].statements[0].in_place;
    return std::all_of(places.begin(), places.end(), [](int64_t place) { return place == kApart; });
  }

  // What is this rank's alone cannot be part of the agreement any more, and its
  // peers may be reading its memory: so the communicator ends, and the abort
  // waits for them.
  void give_up(const char* why) {
    comm_.abort(fmt::format("{}: rank {} failed: {}", to_string(comm_.call_name(call_)), comm_.rank(), why));
  }

  // What is wrong with this rank's own arguments is said too, so that no rank
  // waits for this one.
  void say() {
    Record& record = w_.record;
    record.call = call_;
    record.file = file_of(site_);
    record.line = site_.line();
    record.problem = ErrorKind::none;
    record.problem_text.clear();
    record.payload.clear();
    record.statements.resize(batch_.size());
    w_.mine.clear();
    for (Statement& statement : record.statements) statement.reset();
    size_t op = 0;
    try {
      for (; op < batch_.size(); ++op) state(batch_[op], comm_, record.statements[op], w_.mine, record.payload);
      check_apart(batch_, comm_.size(), w_.mine);
    } catch (const std::exception&) {
      record.problem = kind_of(std::current_exception(), record.problem_text);
      record.problem_text =
          fmt::format("{}: {}", name(batch_[std::min(op, batch_.size() - 1)].op), record.problem_text);
      for (Statement& statement : record.statements) statement.reset();
      record.payload.clear();
    }
  }

  void work_out(CallPlan& plan, const std::vector<Record>& records) {
    note_peers(records, plan.peers);
    plan.rounds.clear();
    plan.counted = {};
    size_t first = 0;
    for (const Arranged& arranged : plan.arranged) {
      append_moves(arranged, comm_.rank(), static_cast<int>(first), w_.mine, comm_.transport().owners_send(),
                   plan.rounds);
      first += 1 + output_count(arranged.op, comm_.size());
    }
    for (const Move& round : plan.rounds.all()) count(round, plan.counted);
  }

  void note_peers(const std::vector<Record>& records, PeerTensors& peers) const {
    peers.resize(records.size());
    for (size_t r = 0; r < records.size(); ++r) {
      auto& list = peers[r];
      list.clear();
      for (const Statement& s : records[r].statements) {
        const size_t next = list.size() + 1 + output_count(s.op, comm_.size());
        list.push_back(s.has_x ? &s.x() : nullptr);
        for (const Announced& out : s.outs()) list.push_back(&out);
        list.resize(next, nullptr);
      }
    }
  }

  void move(CallPlan& plan, const std::vector<Record>& records) {
    const auto rounds = plan.rounds.all();
    plan.inlined.clear();
    if (rounds.size() == 1 && all_inlined(records)) {
      plan.inlined.work_out(rounds[0], comm_.rank(), w_.mine, plan.peers, comm_.said());
      move_inlined(plan, comm_.said());
      return;
    }
    try {
      for (const Move& round : rounds) comm_.transport().run(round, w_.mine, plan.peers, deadline_);
    } catch (const PeerTrouble& trouble) {
      comm_.fail(trouble, call_);
    }
    moved_ = &plan.counted;
  }

  void move_inlined(CallPlan& plan, const RawRecords& said) {
    Transport& transport = comm_.transport();
    transport.look_in(Moment::before_copy);
    transport.look_in(Moment::during_copy);
    plan.inlined.run(w_.mine, said);
    transport.look_in(Moment::after_copy);
    transport.look_in(Moment::before_leave);
    moved_ = &plan.counted;
  }

  void prepare_outputs(const CallPlan& plan) {
    size_t number = 0;
    for (size_t op = 0; op < batch_.size(); ++op) {
      const Arranged& a = plan.arranged[op];
      Outcome& outcome = outcomes_[op];
      outcome.sizes = a.sizes;
      outcome.flags = a.flags;
      for (const Sizes& row : a.send) outcome.sizes.push_back(row[static_cast<size_t>(comm_.rank())]);
      ++number;  // past x
      const int count = static_cast<int>(output_count(a.op, comm_.size()));
      for (int i = 0; i < count; ++i) {
        Tensor& out = w_.mine[number++];
        if (!has_output(a, comm_.rank())) continue;
        if (!out.defined()) out = new_output(a, batch_[op], i);
      }
    }
  }

  void hand_out(const CallPlan& plan) {
    size_t number = 0;
    for (size_t op = 0; op < batch_.size(); ++op) {
      const Arranged& a = plan.arranged[op];
      ++number;  // past x
      for (size_t i = output_count(a.op, comm_.size()); i > 0; --i) {
        Tensor& out = w_.mine[number++];
        if (!has_output(a, comm_.rank())) continue;
        if (a.as_parts) outcomes_[op].parts.push_back(std::move(out));
        else outcomes_[op].tensor = std::move(out);
      }
    }
  }

  Tensor new_output(const Arranged& a, const Description& description, int out) {
    // The root of a broadcast has the result already.
    if (a.op == OpCode::broadcast && description.root == comm_.rank() && description.scale == 1) return description.x;
    Tensor tensor = comm_.transport().allocate(a.dtype, output_shape(a, comm_.rank(), out));
    ++allocations_;
    bytes_allocated_ += tensor.bytes();
    return tensor;
  }

  void count(const Move& move, Stats& counted) const {
    ++counted.moves;
    for (const Receive& receive : move.receives) {
      const int64_t bytes = receive.box.elements() * size_bytes(w_.mine[static_cast<size_t>(receive.tensor)].dtype());
      ++counted.copies;
      counted.bytes_copied += bytes;
      for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
        if (move.terms[t].rank == comm_.rank()) continue;
        ++counted.messages;
        counted.bytes_received += bytes;
      }
    }
    for (const Send& send : move.sends) {
      counted.bytes_sent += send.box.elements() * size_bytes(w_.mine[static_cast<size_t>(send.tensor)].dtype());
    }
  }

  void end(const char* error) {
    std::lock_guard lock(comm_.guard());
    Stats& s = comm_.stats;
    s.allocations += allocations_;
    s.bytes_allocated += bytes_allocated_;
    comm_.recorder.end(call_, moved_ == nullptr ? 0 : moved_->bytes_received, error);
    if (moved_ == nullptr) return;
    s.moves += moved_->moves;
    s.messages += moved_->messages;
    s.bytes_received += moved_->bytes_received;
    s.bytes_sent += moved_->bytes_sent;
    s.copies += moved_->copies;
    s.bytes_copied += moved_->bytes_copied;
  }

  CommState& comm_;
  std::span<const Description> batch_;
  std::span<Outcome> outcomes_;
  const Site& site_;
  const int64_t call_;
  const Deadline deadline_;
  Workspace& w_;
  bool told_ = false;             // the ranks have exchanged what they say
  const Stats* moved_ = nullptr;  // what was moved, once it was
  Stats trusted_;
  int64_t allocations_ = 0;
  int64_t bytes_allocated_ = 0;
};

}  // namespace

void execute_now(CommState& state, const Description& description, Outcome& outcome, const Site& site) {
  state.check_usable();
  Engine(state, {&description, 1}, {&outcome, 1}, site).run();
}

void execute(Comm& comm, std::span<const Description> batch, std::span<Outcome> outcomes, const Site& site) {
  CommState& state = comm.state();
  state.check_open();
  state.call([&] {
    state.check_usable();
    Engine(state, batch, outcomes, site).run();
  });
}

std::shared_ptr<Task> start(Comm& comm, std::vector<Description> batch, const Site& site,
                            std::shared_ptr<std::vector<Outcome>> outcomes) {
  CommState& state = comm.state();
  state.check_open();
  return state.submit([&state, batch = std::move(batch), site, outcomes = std::move(outcomes)] {
    state.check_usable();
    outcomes->resize(batch.size());
    Engine(state, batch, *outcomes, site).run();
  });
}

}  // namespace tessera::detail
