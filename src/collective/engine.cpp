// The one way in which every collective runs: say, agree, arrange, allocate,
// move.
#include <algorithm>
#include <optional>

#include "collective/call_plan.hpp"
#include "collective/guarded.hpp"
#include "collective/state_call.hpp"
#include "collective/tally.hpp"
#include "comm/comm_state.hpp"

namespace tessera::detail {
namespace {

class Engine : private Meanwhile {
 public:
  // `asked`: the only operation, of which the batch may be empty; null: there are several, or none.
  Engine(CommState& comm, const Asked* asked, std::span<const Description> batch, std::span<Outcome> outcomes,
         const Site& site)
      : comm_(comm),
        asked_(asked),
        batch_(batch),
        outcomes_(outcomes),
        site_(site),
        call_(comm.next_call()),
        deadline_(comm.deadline()),
        w_(kept<Workspace>(comm.workspace)) {}

  // Lets go of the tensors, so that nothing but the caller keeps them.
  ~Engine() { w_.mine.clear(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void run() {
    const auto play_or_replay = [&] {
      if (!replay()) play();
    };
    run_guarded(comm_, call_, play_or_replay, [&](const char* error) { end(error); });
  }

 private:
  void begin() {
    const Stats* ahead = replayed_ != nullptr && replayed_->replay.inlined() ? &replayed_->counted : nullptr;
    tally_.begin(comm_, call_, first_op(), outcomes_.size(), site_, true, ahead);
  }

  OpCode first_op() const { return asked_ != nullptr ? asked_->op : batch_.empty() ? OpCode::none : batch_[0].op; }

  // A gradient has the line of its forward, and is another operation.
  const Place& place() {
    if (!place_) place_ = find_place();
    return *place_;
  }
  Place find_place() const {
    Place place{Place::mix(site_.line(), outcomes_.size()), reinterpret_cast<uintptr_t>(site_.file_name())};
    if (asked_ == nullptr) return place;
    const auto stage = asked_->whole == nullptr ? uint64_t{0} : static_cast<uint64_t>(asked_->whole->stage);
    place.line = Place::mix(place.line, static_cast<uint64_t>(asked_->op) + 256 * stage);
    if (!asked_->x->defined()) return place;
    for (const int64_t extent : asked_->x->shape()) place.form = Place::mix(place.form, static_cast<uint64_t>(extent));
    return place;
  }

  // Finds the earlier call whose place this one has; whether it is like it, as far as this rank can know.
  bool fits_earlier() {
    const auto fits = [&](Agreement& earlier) {
      return asked_ != nullptr && earlier.settled && plan_of(earlier).replay.fits(*asked_, site_);
    };
    Agreement* const likely = comm_.agreements().likely();
    const bool guessed = likely != nullptr && fits(*likely);
    agreement_ = guessed ? likely : &comm_.agreement_at(place());
    comm_.agreements().use(*agreement_);
    return guessed || fits(*agreement_);
  }

  // Whether this call was like the last one from its line, and is done.
  bool replay() {
    if (!fits_earlier() || comm_.has_deferred()) return false;
    CallPlan& plan = plan_of(*agreement_);
    replayed_ = &plan;
    Saying saying;
    try {
      if (plan.replay.announces_result()) prepare_result();
      plan.replay.record(call_, *asked_->x, outcomes_[0].tensor, comm_.transport(), saying);
    } catch (const std::exception&) {  // it comes again, and all are told
      outcomes_[0].tensor = {};
      tally_.forget_allocations();
      replayed_ = nullptr;
      return false;
    }
    saying.meanwhile = this;
    const RawRecords& said = comm_.exchange(saying, call_, first_op(), deadline_);
    told_ = true;
    meanwhile();
    if (!plan.replay.same(said)) {
      tally_.take_back(comm_);
      return false;
    }
    if (plan.replay.inlined()) {
      std::byte* const memory[] = {asked_->x->data(), outcomes_[0].tensor.data()};
      move_inlined(plan, memory, said, is_callers());
      return true;
    }
    if (plan.replay.has_news(comm_.transport())) comm_.decode_changes(*agreement_);
    if (comm_.lost_vote()) plan.replay.renew(agreement_->number = call_);
    w_.mine.push_back(*asked_->x);
    w_.mine.push_back(outcomes_[0].tensor);
    add_scratch(plan);
    move_rounds(plan, plan.rounds.all());
    return true;
  }

  // Of a replay, what needs nobody else. Nothing of the caller's is written to before all have agreed.
  void meanwhile() override {
    if (prepared_) return;
    prepared_ = true;
    tell_sizes(replayed_->arranged[0], outcomes_[0]);
    prepare_result();
    begin();
    if (!replayed_->replay.inlined() || is_callers() || !outcomes_[0].tensor.defined()) return;
    std::byte* const memory[] = {asked_->x->data(), outcomes_[0].tensor.data()};
    replayed_->inlined.run_own(memory);
  }

  // Whether what a replay writes to is the caller's.
  bool is_callers() const { return asked_->has_out(); }

  void prepare_result() {
    Tensor& result = outcomes_[0].tensor;
    if (result.defined() || !replayed_->has_result) return;
    if (is_callers()) {
      result = *asked_->out;
      return;
    }
    if (replayed_->replay.recycle(result)) return tally_.allocated(replayed_->result_bytes);
    result = new_output(replayed_->arranged[0], *asked_, 0);
    if (result.owner() == asked_->x->owner()) return;
    replayed_->replay.keep(result);
    replayed_->result_bytes = result.bytes();
  }

  void play() {
    if (batch_.empty() && asked_ != nullptr) batch_ = {&described_.emplace(asked_->describe()), 1};
    begin();
    if (told_) {
      take_told();
    } else {
      say();
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
      choose_schedules(plan, agreement.records);
    }
    prepare_outputs(plan);
    if (!agreement.repeated) work_out(plan, agreement.records);
    agreement.settled = true;
    move(plan, agreement.records);
    if (agreement.repeated) note_replay(plan, agreement.records);
    hand_out(plan);
  }

  // A replay told what this rank has, and others did not repeat themselves. What it has allocated counts only if it was
  // told of: the result may be another now.
  void take_told() {
    const Description& d = batch_[0];
    Tensor result = std::exchange(outcomes_[0].tensor, {});
    if (!replayed_->replay.announces_result()) {
      result = d.out;
      tally_.forget_allocations();
    }
    w_.mine.clear();
    w_.mine.push_back(d.op == OpCode::all_gather_same ? d.x.unsqueeze(0) : d.x);
    w_.mine.push_back(std::move(result));
    w_.mine.resize(1 + output_count(d.op, comm_.size()));
  }

  void note_replay(CallPlan& plan, const std::vector<Record>& records) {
    if (batch_.size() != 1 || plan.arranged[0].as_parts || !apart(records)) return;
    const bool inlined = plan.rounds.all().size() <= 1 && all_inlined(records);
    if (!comm_.all_said() || (!inlined && batch_[0].op == OpCode::all_gather_same)) return;  // its x is another view
    const Statement& mine = records[static_cast<size_t>(comm_.rank())].statements[0];
    plan.has_result = has_output(plan.arranged[0], comm_.rank());
    const auto rounds = plan.rounds.all();
    const std::span<const Send> sends = rounds.empty() ? std::span<const Send>() : rounds[0].sends;
    plan.replay.note(call_, batch_[0], site_, comm_.rank(), comm_.said(), mine, inlined, sends);
  }

  // Whether this rank's outputs share no memory with what is moved into them.
  bool apart(const std::vector<Record>& records) const {
    const auto& places = records[static_cast<size_t>(comm_.rank())].statements[0].in_place;
    return std::all_of(places.begin(), places.end(), [](int64_t place) { return place == kApart; });
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
      for (; op < batch_.size(); ++op) {
        const size_t most = most_inlined(comm_, batch_[op], *agreement_);
        state(batch_[op], comm_, record.statements[op], w_.mine, record.payload, batch_.size() == 1, most);
      }
      check_apart(batch_, comm_.size(), w_.mine);
    } catch (const std::exception&) {
      record.problem = kind_of(std::current_exception(), record.problem_text);
      record.problem_text =
          fmt::format("{}: {}", name(batch_[std::min(op, batch_.size() - 1)].op), record.problem_text);
      for (Statement& statement : record.statements) statement.reset();
      record.payload.clear();
    }
  }

  // What travelled within the records is there, and goes over no network.
  void choose_schedules(CallPlan& plan, const std::vector<Record>& records) {
    const Network* network = all_inlined(records) ? nullptr : comm_.transport().network();
    plan.choices.clear();
    plan.schedule.clear();
    for (const Arranged& arranged : plan.arranged) {
      plan.choices.push_back(choose(arranged, comm_.rank(), network));
      const std::string text = plan.choices.back().text();
      // Of many the first few: every call copies them to the recorder.
      const bool told = plan.schedule.size() > 400 || plan.schedule.ends_with(text);
      if (!told) plan.schedule += (plan.schedule.empty() ? "" : "; ") + text;
    }
  }

  void work_out(CallPlan& plan, const std::vector<Record>& records) {
    note_peers(records, plan.peers);
    plan.rounds.clear();
    plan.counted = {};
    Numbers numbers{0, 0};
    for (const Arranged& arranged : plan.arranged) numbers.scratch += tensors_of(arranged);
    for (size_t op = 0; op < plan.arranged.size(); ++op) {
      append_moves(plan.arranged[op], plan.choices[op], comm_.transport().network(), comm_.rank(), numbers, w_.mine,
                   plan.rounds);
      numbers.x += tensors_of(plan.arranged[op]);
      if (plan.choices[op].has_scratch) ++numbers.scratch;
    }
    for (auto& list : plan.peers) list.resize(static_cast<size_t>(numbers.scratch), nullptr);
    for (const Move& round : plan.rounds.finish()) count(round, comm_.rank(), w_.mine, plan.counted);
    plan.counted.bytes_between_hosts = inlined_from_afar(plan.peers, comm_.transport());
  }

  int tensors_of(const Arranged& arranged) const {
    return 1 + static_cast<int>(output_count(arranged.op, comm_.size()));
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
      w_.memory.clear();
      for (const Tensor& tensor : w_.mine) w_.memory.push_back(tensor.data());
      move_inlined(plan, w_.memory, comm_.said(), true);
      return;
    }
    move_rounds(plan, rounds);
  }

  void move_rounds(CallPlan& plan, std::span<const Move> rounds) {
    try {
      for (const Move& round : rounds) comm_.transport().run(round, w_.mine, plan.peers, deadline_);
    } catch (const PeerTrouble& trouble) {
      comm_.fail(trouble, call_);
    }
    tally_.moved(plan.counted, &plan.schedule);
  }

  void move_inlined(CallPlan& plan, std::span<std::byte* const> memory, const RawRecords& said, bool all) {
    Transport& transport = comm_.transport();
    transport.look_in(Moment::before_copy);
    transport.look_in(Moment::during_copy);
    if (all) plan.inlined.run_own(memory);
    plan.inlined.run_rest(memory, said);
    transport.look_in(Moment::after_copy);
    transport.look_in(Moment::before_leave);
    tally_.moved(plan.counted, nullptr);
  }

  static void assign(Sizes& to, const Sizes& from) {
    if (from.empty()) to.clear();
    else to = from;
  }

  void tell_sizes(const Arranged& a, Outcome& outcome) const {
    if (a.op != OpCode::reduce_scatter) assign(outcome.sizes, a.sizes);  // whose caller knows them
    assign(outcome.flags, a.flags);
    for (const Sizes& row : a.send) outcome.sizes.push_back(row[static_cast<size_t>(comm_.rank())]);
  }

  void prepare_outputs(const CallPlan& plan) {
    size_t number = 0;
    for (size_t op = 0; op < batch_.size(); ++op) {
      const Arranged& a = plan.arranged[op];
      tell_sizes(a, outcomes_[op]);
      ++number;  // past x
      const int count = static_cast<int>(output_count(a.op, comm_.size()));
      for (int i = 0; i < count; ++i) {
        Tensor& out = w_.mine[number++];
        if (!has_output(a, comm_.rank())) continue;
        if (!out.defined()) out = new_output(a, Asked::by(batch_[op]), i);
      }
    }
    add_scratch(plan);
  }

  // Behind all other tensors.
  void add_scratch(const CallPlan& plan) {
    for (size_t op = 0; op < plan.choices.size(); ++op) {
      if (!plan.choices[op].has_scratch) continue;
      w_.mine.push_back(Tensor::empty(plan.arranged[op].dtype, plan.choices[op].scratch));
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

  Tensor new_output(const Arranged& a, const Asked& asked, int out) {
    // The root of a broadcast has the result already.
    if (a.op == OpCode::broadcast && asked.root == comm_.rank() && asked.scale == 1) return *asked.x;
    Tensor tensor = comm_.transport().allocate(a.dtype, output_shape(a, comm_.rank(), out));
    tally_.allocated(tensor.bytes());
    return tensor;
  }

  void end(const char* error) {
    begin();  // where it failed before it had
    tally_.end(comm_, call_, error);
  }

  CommState& comm_;
  const Asked* asked_;
  std::span<const Description> batch_;
  std::optional<Description> described_;  // what was asked for, where it is not like an earlier call
  std::span<Outcome> outcomes_;           // of each operation
  const Site& site_;
  const int64_t call_;
  const Deadline deadline_;
  std::optional<Place> place_;
  Agreement* agreement_ = nullptr;  // what is known of earlier calls from that place
  Workspace& w_;
  Tally tally_;
  bool told_ = false;             // the ranks have exchanged what they say
  CallPlan* replayed_ = nullptr;  // what a replay follows
  bool prepared_ = false;         // and what of it needs nobody else is done
};

}  // namespace

namespace {

void run_batch(CommState& state, std::span<const Description> batch, std::span<Outcome> outcomes, const Site& site) {
  if (batch.size() != 1) return Engine(state, nullptr, batch, outcomes, site).run();
  const Asked asked = Asked::by(batch[0]);
  if (!asked.trusted || !gather_trusted(state, asked, outcomes[0], site))
    Engine(state, &asked, batch, outcomes, site).run();
}

}  // namespace

void execute_now(CommState& state, const Asked& asked, Outcome& outcome, const Site& site) {
  state.check_usable();
  Engine(state, &asked, {}, {&outcome, 1}, site).run();
}

void execute(Comm& comm, std::span<const Description> batch, std::span<Outcome> outcomes, const Site& site) {
  CommState& state = comm.state();
  state.call([&] { run_batch(state, batch, outcomes, site); });
}

void execute(Comm& comm, const Asked& asked, Outcome& outcome, const Site& site) {
  CommState& state = comm.state();
  state.call([&] {
    if (!asked.trusted || !gather_trusted(state, asked, outcome, site))
      Engine(state, &asked, {}, {&outcome, 1}, site).run();
  });
}

std::shared_ptr<Task> start(Comm& comm, std::vector<Description> batch, const Site& site,
                            std::shared_ptr<std::vector<Outcome>> outcomes) {
  CommState& state = comm.state();
  state.check_open();
  return state.submit([&state, batch = std::move(batch), site, outcomes = std::move(outcomes)] {
    state.check_usable();
    outcomes->resize(batch.size());
    run_batch(state, batch, *outcomes, site);
  });
}

}  // namespace tessera::detail
