#include "transport/mpi/world.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

#include <fmt/format.h>

#include <tessera/comm.hpp>
#include <tessera/error.hpp>

#include "comm/board.hpp"

namespace tessera::mpi {
namespace {

// For a rank that has said it will come to finalise. It may end in a way that nobody hears of.
constexpr auto kLongestParting = std::chrono::minutes(10);

std::atomic<bool> ends_without_finalizing{false};
std::atomic<int (*)(int)> abort_at_end{nullptr};  // where the user asks for it
std::atomic<int> exit_code{-1};                   // -1: the process does not end yet

void note_exit_code(int code, void*) { exit_code = code; }

void flush_output() {
  std::cout.flush();
  std::fflush(nullptr);
}

// Whether the user asks that the whole job ends where this process ends badly, also ranks that hang.
bool wants_abort() {
  const char* text = std::getenv("TESSERA_MPI_ABORT");
  return text != nullptr && *text != 0 && std::string(text) != "0";
}

// MPICH's launcher takes a process that has not finalised MPI for one that ended well, where its exit code is 0. This comes
// after all that the program has for its end, its global objects included.
__attribute__((destructor(101))) void tell_by_exit_code() {
  if (!ends_without_finalizing) return;
  const int code = exit_code > 0 ? exit_code.load() : EXIT_FAILURE;
  flush_output();
  if (const auto abort = abort_at_end.load()) abort(code);
  if (exit_code == 0) _exit(code);
}

}  // namespace

std::shared_ptr<World> World::of(const std::string& mpi) {
  static std::mutex guard;
  static std::map<std::string, std::weak_ptr<World>> worlds;
  std::lock_guard lock(guard);
  auto world = worlds[mpi].lock();
  if (world == nullptr) worlds[mpi] = world = std::make_shared<World>(load(mpi));
  return world;
}

World::World(const Api& api, std::shared_ptr<void> engine)
    : api_(api), main_(std::this_thread::get_id()), engine_(std::move(engine)) {
  int32_t flag = 0;
  check(api.is_finalized(&flag), "MPI_Finalized");
  if (flag != 0) throw Error("MPI was finalised in this process, and cannot be initialised again");
  check(api.is_initialized(&flag), "MPI_Initialized");
  if (flag == 0) {
    check(api.init(&level_), "MPI_Init_thread");
    ours_ = true;
    on_exit(note_exit_code, nullptr);
    if (wants_abort()) abort_at_end = api.abort;
    check(api.duplicate(api.world(), &parting_), "MPI_Comm_dup");
    check(api.rank_and_size(parting_, &rank_, &size_), "MPI_Comm_rank");
    return;
  }
  int32_t is_main = 0;
  check(api.thread_level(&level_, &is_main), "MPI_Query_thread");
  if (level_ < funneled) {
    throw Error("tessera needs MPI_THREAD_FUNNELED or more: call MPI_Init_thread() instead of MPI_Init()");
  }
  if (level_ == funneled && is_main == 0) {
    throw Error("MPI was initialised with MPI_THREAD_FUNNELED, and this is not the thread that did it");
  }
}

// Where the program's MPI goes on, what it has not ended by then it may still write to: that stays.
World::~World() {
  if (ours_ && is_over()) ends_without_finalizing = false;  // the program has done it
  if (may_call()) end();
  if (!kept_.empty() && engine_ == nullptr && !is_over()) new std::list<Kept>(std::move(kept_));
}

void World::end() {
  drain();
  if (!ours_) return;
  if (!part()) {
    ends_without_finalizing = true;
    return;
  }
  drain();
  api_.barrier(
      parting_);  // all have come; MPICH over TCP hangs in its end more often where they come to that one by one
  api_.finalize();
  ends_without_finalizing = false;
}

bool World::is_tidy() {
  tidy();
  std::lock_guard lock(guard_);
  return kept_.empty() && graves_.empty() && unsent_.empty();
}

// Farewells are on their way; where a peer lives on, it does not need this process any more.
void World::drain() {
  const auto end = Clock::now() + std::chrono::seconds(1);
  for (Patience patience; !is_tidy() && Clock::now() < end;) patience.pause();
}

void World::give_up() noexcept {
  if (given_up_.exchange(true) || !ours_) return;
  ends_without_finalizing = true;  // until it has: the program may end with a Comm that never goes
  try {
    tell_all_parting("c");
  } catch (...) {  // then this rank is not waited for
  }
}

void World::tell_all_parting(const std::string& text) {
  for (int i = 1; i < size_; ++i) send_text(parting_, (rank_ + i) % size_, kControl, text);
}

// Whether all ranks come to finalise, as MPI would wait for them too. Where something went wrong one may never come. Those
// that know of it have said that they will: they may be saving, and the launcher would end them if this process ended
// first. The others have some time to show that they do, and where one is missing the process ends without.
bool World::part() {
  tell_all_parting("l");
  const auto ranks = static_cast<size_t>(size_);
  Grave all{parting_, std::vector<bool>(ranks, false), std::vector<bool>(ranks, false)};
  all.left[static_cast<size_t>(rank_)] = true;
  const auto begin = Clock::now(), end = begin + std::chrono::seconds(2);
  for (Patience patience; !all_left(all); patience.pause()) {
    if (!given_up_ || Clock::now() < end) continue;
    const bool one_comes = std::find(all.comes.begin(), all.comes.end(), true) != all.comes.end();
    if (!one_comes || Clock::now() > begin + kLongestParting) return false;
  }
  return true;
}

// An engine that wakes who rests has threads of its own, which want the cores too.
void World::set_neighbours(int ranks, int cores) {
  if (api_.rest != nullptr || ranks <= neighbours_) return;
  neighbours_ = ranks;
  spins_ = spins_for(ranks, cores);
}

bool World::is_over() const {
  int32_t over = 0;
  return api_.is_finalized(&over) != 0 || over != 0;
}

void World::check_thread() const {
  if (is_over()) throw Error("MPI is finalised: a Comm must go before MPI_Finalize() is called");
  if (is_right_thread()) return;
  throw Error("MPI was initialised for calls of one thread only, and this is another: use MPI_THREAD_MULTIPLE");
}

int World::test_some(std::span<RequestHandle> requests, Over& over) const {
  const auto count = static_cast<int32_t>(requests.size());
  if (over.which.size() < requests.size()) {
    over.which.resize(requests.size());
    over.bytes.resize(requests.size(), -1);
  }
  int32_t done = 0;
  const int code = api_.test_some_sized != nullptr
                       ? api_.test_some_sized(count, requests.data(), &done, over.which.data(), over.bytes.data())
                       : api_.test_some(count, requests.data(), &done, over.which.data());
  over.count = static_cast<size_t>(done);
  return code;
}

void World::send_text(CommHandle comm, int to, int32_t tag, std::string text) {
  if (!may_call()) {
    std::lock_guard lock(guard_);
    unsent_.push_back({comm, to, tag, std::move(text)});
    has_unsent_ = true;
    return;
  }
  auto kept = std::make_shared<std::string>(std::move(text));
  RequestHandle request = 0;
  if (api_.isend(kept->data(), static_cast<int64_t>(kept->size()), to, tag, comm, &request) != 0) return;
  keep(request, kept);
}

void World::settle(std::span<RequestHandle> requests, Deadline end) const {
  Over over;
  const auto is_over = [](RequestHandle request) { return request == 0; };
  for (Patience patience; !std::all_of(requests.begin(), requests.end(), is_over) && Clock::now() < end;) {
    if (test_some(requests, over) != 0 && over.count == 0) return;
    if (over.count == 0) patience.pause();
  }
}

void World::keep(RequestHandle request, std::any memory) {
  std::list<Kept> over;  // goes when the lock is gone, as it may call whatever frees a tensor
  std::lock_guard lock(guard_);
  kept_.push_back({request, std::move(memory)});
  if (kept_.size() < most_kept_ || !may_call()) return;
  over = sweep();
  most_kept_ = std::max(kFewKept, 2 * kept_.size());
}

std::list<World::Kept> World::sweep() {
  std::list<Kept> over;
  for (auto it = kept_.begin(); it != kept_.end();) {
    int32_t done = 0, which = 0;
    api_.test_some(1, &it->request, &done, &which);
    const auto next = std::next(it);
    if (done > 0) over.splice(over.end(), kept_, it);
    it = next;
  }
  return over;
}

void World::bury(CommHandle comm, std::vector<bool> left) {
  std::lock_guard lock(guard_);
  graves_.push_back({comm, std::move(left)});
}

bool World::all_left(Grave& grave) {
  const auto leave = [&](int rank) {
    grave.left[static_cast<size_t>(rank)] = true;
    if (!grave.comes.empty()) grave.comes[static_cast<size_t>(rank)] = false;
  };
  for (Control control; next_control(*this, grave.comm, control);) {
    if (control.text.starts_with("l")) leave(control.from);
    else if (control.text.starts_with("c") && !grave.comes.empty())
      grave.comes[static_cast<size_t>(control.from)] = true;
  }
  for (int r = next_lost(*this, grave.comm); r >= 0; r = next_lost(*this, grave.comm)) leave(r);
  for (const bool left : grave.left) {
    if (!left) return false;
  }
  return true;
}

// Of what calls that failed have sent and nobody has taken: where MPI gives the next communicator the same number, as MPICH
// does, that would be taken for messages of its own. All have left, so nothing else comes.
void World::clear(CommHandle comm) {
  constexpr int32_t kAnyTag = -1;
  int32_t flag = 0;
  for (Found found; api_.find(mpi::kAnySource, kAnyTag, comm, &flag, &found) == 0 && flag != 0;) {
    const auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(found.bytes));
    RequestHandle request = 0;
    if (api_.irecv_found(memory->data(), found.bytes, &found, &request) != 0) return;
    kept_.push_back({request, memory});
  }
}

void World::tidy() {
  if (!may_call()) return;
  std::list<Unsent> unsent;
  {
    std::lock_guard lock(guard_);
    unsent.swap(unsent_);
    has_unsent_ = false;
  }
  for (Unsent& one : unsent) send_text(one.comm, one.to, one.tag, std::move(one.text));
  std::list<Kept> over;
  std::lock_guard lock(guard_);
  over = sweep();
  for (auto it = graves_.begin(); it != graves_.end();) {
    if (all_left(*it)) {
      clear(it->comm);
      api_.free(&it->comm);
      it = graves_.erase(it);
    } else {
      ++it;
    }
  }
}

void World::enlist(Helper& helper) {
  std::lock_guard lock(helpers_guard_);
  helpers_.push_back(&helper);
}

void World::dismiss(Helper& helper) {
  std::lock_guard lock(helpers_guard_);
  helpers_.remove(&helper);
}

bool World::help_all() {
  if (has_unsent_) tidy();
  std::lock_guard lock(helpers_guard_);
  bool pending = false;
  for (Helper* helper : helpers_) {
    helper->progress();
    pending = pending || helper->is_pending();
  }
  return pending;
}

Duplication::Duplication(World& world, CommHandle comm) : world_(world) {
  world.check(world.api().start_duplicate(comm, place_.get(), &request_), "MPI_Comm_idup");
}

Duplication::~Duplication() {
  if (request_ != 0) world_.keep(request_, place_);
}

bool Duplication::is_over() {
  world_.check(world_.test_some({&request_, 1}, over_), "MPI_Comm_idup");
  return request_ == 0;
}

CommHandle Duplication::made() {
  CommHandle made = 0;
  world_.check(world_.api().end_duplicate(place_.get(), &made), "MPI_Comm_set_errhandler");
  return made;
}

bool next_control(World& world, CommHandle comm, Control& control) {
  const Api& api = world.api();
  int32_t flag = 0;
  Found found;
  if (api.find(mpi::kAnySource, kControl, comm, &flag, &found) != 0 || flag == 0) return false;
  control.from = found.source;
  control.text.resize(static_cast<size_t>(found.bytes));
  RequestHandle request = 0;
  if (api.irecv_found(control.text.data(), found.bytes, &found, &request) != 0) return false;
  for (int32_t done = 0, which = 0; done == 0;) {
    if (api.test_some(1, &request, &done, &which) != 0) return false;
  }
  return true;
}

int next_lost(World& world, CommHandle comm) {
  int32_t rank = -1;
  if (world.api().next_lost != nullptr) world.api().next_lost(comm, &rank);
  return rank;
}

void check_length(int from, int64_t bytes, int64_t expected) {
  if (bytes < 0 || bytes == expected) return;
  throw Error(
      fmt::format("a message of rank {} has {} bytes, but {} were agreed on: it is damaged", from, bytes, expected));
}

void Patience::leave_core() {
  constexpr int64_t kYields = 5000;
  if (api_ != nullptr && api_->rest != nullptr) api_->rest(comm_, &seen_);
  else if (count_ < kYields) sched_yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void Patience::heed_hook(Deadline now) {
  if (now < next_hook_) return;
  next_hook_ = now + kHookInterval;
  call_wait_hook();
}

}  // namespace tessera::mpi
