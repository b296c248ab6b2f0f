// Who is missing: one that has waited in vain asks all others, and those that wait too say for whom.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "transport/mpi/mpi.hpp"

namespace tessera::mpi {
namespace {

// How long one who has waited in vain hears who is there, before it asks again; and for how long it does where several say
// nothing, of which some may only be slow.
constexpr auto kRollTime = std::chrono::milliseconds(200);
constexpr auto kLongestRoll = std::chrono::seconds(1);

}  // namespace

std::string MpiTransport::hello(char kind, int awaited) const {
  return fmt::format("{}{} {}", kind, call_of(rank_), awaited == rank_ ? -1 : awaited);
}

// One that waits too may be behind in starting, and so wait for longer; it answers as soon as it looks around.
void MpiTransport::hear(const Control& control, int awaited) {
  Peer& from = peers_[static_cast<size_t>(control.from)];
  char* end = nullptr;
  const uint64_t call = std::strtoull(control.text.c_str() + 1, &end, 10);
  from.note_call(std::max<uint64_t>(from.call, call));
  from.answered = std::max<uint64_t>(from.answered, call / 256 + 1);
  const int64_t whom = std::strtoll(end, nullptr, 10);
  from.awaits = whom >= 0 && whom < size_ ? static_cast<int>(whom) : -1;
  if (control.text[0] == 'h') world_->send_text(comm_, control.from, kControl, hello('i', awaited));
}

// Who waits in vain knows of one rank only that it has not come, and that one may wait for another. All who are there say for
// whom: what begins with the one that is suspected ends with one that says nothing.
PeerTrouble MpiTransport::ask_around(int suspect) {
  const auto is_silent = [&](int r) { return !has_answered(r); };
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  const auto start = Clock::now();
  do {
    tell(hello('h', suspect));
    const auto end = Clock::now() + kRollTime;
    for (Patience patience; !dead_ && Clock::now() < end; patience.pause()) listen(suspect);
  } while (!dead_ && std::count_if(all.begin(), all.end(), is_silent) > 1 && Clock::now() < start + kLongestRoll);
  int missing = suspect;
  for (int hops = 0; hops < size_ && missing != rank_ && !is_silent(missing); ++hops) {
    const int next = peers_[static_cast<size_t>(missing)].awaits;
    if (next < 0) break;
    missing = next;
  }
  if (!is_silent(missing)) {
    const auto first = std::find_if(all.begin(), all.end(), is_silent);
    missing = first != all.end() ? *first : suspect;
  }
  return {has_left(missing) ? PeerTrouble::closed : PeerTrouble::timed_out, missing};
}

void MpiTransport::with_roll_call(const std::function<void()>& fn, bool each_for_itself) {
  try {
    fn();
  } catch (const PeerTrouble& trouble) {
    if (trouble.kind != PeerTrouble::timed_out) throw;
    const auto is_silent = [&](int r) { return !has_said(r); };
    if (each_for_itself && std::count_if(circle_.begin(), circle_.end(), is_silent) == 1) throw;
    throw ask_around(trouble.rank);
  }
}

}  // namespace tessera::mpi
