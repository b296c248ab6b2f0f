#include "transport/shm/world.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <tessera/comm.hpp>
#include <tessera/error.hpp>

#include "comm/agreement.hpp"
#include "comm/board.hpp"
#include "transport/shm/mail.hpp"

namespace tessera::shm {
namespace {

enum Joined : uint32_t { absent, joining, present, gave_up };

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", rank_list(ranks));
}

}  // namespace

Way parse_way(const char* text) {
  if (text == nullptr || std::strcmp(text, "choose") == 0) return Way::choose;
  if (std::strcmp(text, "in_place") == 0) return Way::in_place;
  if (std::strcmp(text, "attach") == 0) return Way::attach;
  if (std::strcmp(text, "staged") == 0) return Way::staged;
  throw Error(fmt::format("TESSERA_SHM_WAY is \"{:.40}\"; choose, in_place, attach and staged work", text));
}

World::World(std::shared_ptr<Segment> segment, int rank, Way way, Deadline deadline, int neighbours)
    : segment_(std::move(segment)),
      rank_(rank),
      way_(way),
      neighbours_(std::max(neighbours, segment_->ranks())),
      looks_(neighbours_),
      identities_(static_cast<size_t>(segment_->ranks())),
      dead_(static_cast<size_t>(segment_->ranks())),
      watched_(static_cast<size_t>(segment_->ranks()) + 2, -1) {
  try {
    join(deadline);
  } catch (...) {
    stop_watching();
    throw;
  }
}

void World::join(Deadline deadline) {
  Place& mine = segment_->place(rank_);
  uint32_t state = absent;
  if (!mine.joined.compare_exchange_strong(state, joining)) {
    throw Error(
        fmt::format("rank {} has joined already{}: {} works once, in one process of a rank. "
                    "Use comm.split(0) for another communicator",
                    rank_, state == present ? fmt::format(" (pid {})", mine.identity.pid) : "", call()));
  }
  try {
    meet_others(deadline);
  } catch (const PeerLostError&) {  // what all find out by themselves
    throw;
  } catch (const TimeoutError&) {
    throw;
  } catch (...) {
    mine.joined.store(gave_up, std::memory_order_seq_cst);  // so that nobody waits for this rank
    segment_->ring_all();
    throw;
  }
}

void World::meet_others(Deadline deadline) {
  heap_ = std::make_shared<Heap>(segment_, rank_, Outbox::bytes());
  admit_readers(segment_->led() ? segment_->launcher() : getppid());
  Place& mine = segment_->place(rank_);
  mine.identity = own_identity();
  new (Outbox::in(*segment_, rank_)) Outbox;
  mine.joined.store(present, std::memory_order_seq_cst);
  segment_->ring_all();
  await_all_joined(deadline);
  for (int r = 0; r < ranks(); ++r) {
    identities_[static_cast<size_t>(r)] = segment_->place(r).identity;
    if (r == rank_) continue;
    const Identity& peer = identity(r);
    watched_[static_cast<size_t>(r)] = open_process(peer.pid, peer.started);
    if (watched_[static_cast<size_t>(r)] < 0) dead_[static_cast<size_t>(r)] = true;
  }
  if (segment_->led()) watch_launcher();
  watched_.back() = eventfd(0, EFD_CLOEXEC);
  if (watched_.back() < 0) {
    throw Error(
        fmt::format("{}: rank {} cannot watch the others: {}; raise ulimit -n", call(), rank_, std::strerror(errno)));
  }
  start_watching();
  probe_peers(deadline);
}

void World::watch_launcher() {
  int& watched = watched_[static_cast<size_t>(ranks())];
  watched = open_process(segment_->launcher(), segment_->launcher_started());
  if (watched < 0) {
    throw Error(fmt::format("{}: the launcher (pid {}) is gone, or in another process namespace", call(),
                            segment_->launcher()));
  }
}

void World::await_all_joined(Deadline deadline) const {
  std::vector<int> missing, ended;
  const auto look = [&] {
    missing.clear();
    ended.clear();
    for (int r = 0; r < ranks(); ++r) {
      const Place& place = segment_->place(r);
      if (place.joined.load(std::memory_order_acquire) == present) continue;
      (place.ended.load(std::memory_order_acquire) != 0 ? ended : missing).push_back(r);
    }
    return missing.empty() || !ended.empty() || who_gave_up() >= 0;
  };
  while (!await(std::min(deadline, Clock::now() + kHookInterval), look)) {
    call_wait_hook();
    if (const int gone = first_gone(missing); gone >= 0) {
      throw PeerLostError(fmt::format("{}: the process of rank {} (pid {}) was gone before it came", call(), gone,
                                      segment_->place(gone).identity.pid));
    }
    if (Clock::now() < deadline) continue;
    throw TimeoutError(
        fmt::format("{}: {} did not come. Every rank of the job must call it", call(), ranks_text(missing)));
  }
  if (ended.empty()) return check_nobody_gave_up();
  const int first = ended[0];
  throw PeerLostError(
      fmt::format("{}: rank {} {} before it came", call(), first, text_of_status(segment_->place(first).wait_status)));
}

// -1: nobody.
int World::who_gave_up() const {
  for (int r = 0; r < ranks(); ++r) {
    if (segment_->place(r).joined.load(std::memory_order_acquire) == gave_up) return r;
  }
  return -1;
}

void World::check_nobody_gave_up() const {
  if (const int r = who_gave_up(); r >= 0)
    throw PeerLostError(fmt::format("{}: rank {} came, but gave it up", call(), r));
}

// A launcher tells who ended. Where there is none, whoever made the memory has written down who is to come. -1: none.
int World::first_gone(const std::vector<int>& ranks) const {
  if (segment_->led()) return -1;
  const auto gone =
      std::find_if(ranks.begin(), ranks.end(), [&](int rank) { return !lives(segment_->place(rank).identity); });
  return gone == ranks.end() ? -1 : *gone;
}

// Whether the kernel lets this process read each of the others: tried, since a container, Yama or a changed user may
// forbid it for some.
void World::probe_peers(Deadline deadline) const {
  for (int r = 0; r < ranks(); ++r) {
    uint64_t word = 0;
    const Identity& peer = identity(r);
    const iovec here{&word, sizeof(word)}, there{reinterpret_cast<void*>(peer.token_address), sizeof(word)};
    const bool readable = read_process(peer, {&here, 1}, {&there, 1}) == Attached::whole && word == peer.token;
    segment_->reads(rank_, r).store(readable ? 2 : 1, std::memory_order_seq_cst);
  }
  segment_->ring_all();
  std::vector<int> missing;
  const auto look = [&] {
    missing.clear();
    for (int r = 0; r < ranks(); ++r) {
      if (segment_->reads(r, ranks() - 1).load() == 0 && !is_dead(r)) missing.push_back(r);
    }
    return missing.empty() || who_gave_up() >= 0;
  };
  while (!await(std::min(deadline, Clock::now() + kHookInterval), look)) {
    call_wait_hook();
    if (Clock::now() < deadline) continue;
    throw TimeoutError(fmt::format("{}: {} came, but did not go on", call(), ranks_text(missing)));
  }
  check_nobody_gave_up();
}

World::~World() { stop_watching(); }

void World::stop_watching() {
  const uint64_t one = 1;
  if (watcher_.joinable() && write(watched_.back(), &one, sizeof(one)) > 0) watcher_.join();
  for (const int descriptor : watched_) {
    if (descriptor >= 0) close(descriptor);
  }
}

// The user's signal handlers run on the user's threads.
void World::start_watching() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watcher_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void World::watch() {
  std::vector<pollfd> polled;
  for (const int descriptor : watched_) polled.push_back({descriptor, POLLIN, 0});  // poll() skips -1
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled.back().revents != 0) return;
    const size_t launcher = polled.size() - 2;
    if (polled[launcher].revents != 0) outlive_launcher();
    for (size_t r = 0; r < launcher; ++r) {
      if (polled[r].revents == 0) continue;
      polled[r].fd = -1;
      mourn(static_cast<int>(r));
    }
  }
}

void World::mourn(int rank) {
  std::lock_guard lock(mourners_guard_);
  dead_[static_cast<size_t>(rank)].store(true, std::memory_order_seq_cst);
  for (Mourner* mourner : mourners_) mourner->on_death(rank);
  segment_->ring(rank_);
}

// The job is over: nobody is left to end this rank, or to tell how it ended.
void World::outlive_launcher() {
  {
    std::lock_guard lock(mourners_guard_);
    for (Mourner* mourner : mourners_) mourner->on_launcher_gone();
  }
  kill(getpid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  kill(getpid(), SIGKILL);
}

void World::enroll(Mourner& mourner) {
  std::lock_guard lock(mourners_guard_);
  mourners_.push_back(&mourner);
  for (int r = 0; r < ranks(); ++r) {
    if (is_dead(r)) mourner.on_death(r);
  }
}

void World::dismiss(Mourner& mourner) {
  std::lock_guard lock(mourners_guard_);
  std::erase(mourners_, &mourner);
}

void World::keep_board(std::shared_ptr<std::byte> board) {
  std::lock_guard lock(boards_guard_);
  std::erase_if(boards_, [](const auto& b) { return reinterpret_cast<const BoardHead*>(b.get())->users.load() == 0; });
  boards_.push_back(std::move(board));
}

std::string World::obituary(int rank) const {
  const Place& place = segment_->place(rank);
  const int64_t pid = identity(rank).pid;
  // The launcher hears of it at the same time, and knows more.
  for (int i = 0; i < 400 && segment_->led() && place.ended.load(std::memory_order_acquire) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (place.ended.load(std::memory_order_acquire) == 0) return fmt::format("its process is gone (pid {})", pid);
  const std::string words = segment_->last_words(rank);
  return fmt::format(
      "it {} (pid {}){}{}", text_of_status(place.wait_status), pid,
      words.empty() ? "" : " after an exception that nobody caught: ", words.substr(0, words.find('\n')));
}

}  // namespace tessera::shm
