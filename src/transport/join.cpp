// All ranks tell the meeting who they are; rank 0 looks at that and answers. Where all are on one host it has made the memory,
// and says at which desk it hands the descriptor out. Where they are not, they go on over a carrier, if they have one. Else it
// says what is wrong, which then every rank throws.
#include <tessera/join.hpp>

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include <tessera/error.hpp>
#include <tessera/version.hpp>

#include "comm/agreement.hpp"
#include "transport/mpi/connect.hpp"
#include "transport/mpi/hosts.hpp"
#include "transport/shm/connect.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/passing.hpp"
#include "transport/shm/process.hpp"
#include "transport/threads/threads.hpp"

namespace tessera {
namespace shm {
namespace {

// Address space is plentiful, but a process may be in many communicators at once.
constexpr int64_t kJoinedBytes = int64_t{1} << 40;

// Waiting is cut into pieces, so that a meeting can look around: at deaths, at Ctrl-C.
constexpr std::chrono::milliseconds kPiece(500);

constexpr const char* kVersion = "tessera-" TESSERA_VERSION;

// Who a rank is.
struct Card {
  std::string version;
  std::string host;       // the same for ranks that can share memory
  std::string host_name;  // for people
  int64_t user = 0;
  Identity process;
};

Card own_card(int rank, int size) {
  utsname system = {};
  uname(&system);
  std::string name = system.nodename;
  std::replace(name.begin(), name.end(), ' ', '_');
  return {kVersion, mpi::host_key(rank, size), name, geteuid(), own_identity()};
}

std::string text_of(const Card& card) {
  return fmt::format("{} {} {} {} {} {}", card.version, card.host, card.host_name, card.user, card.process.pid,
                     card.process.started);
}

Card parse_card(const std::string& text, int rank) {
  std::istringstream words(text);
  Card card;
  words >> card.version >> card.host >> card.host_name >> card.user >> card.process.pid >> card.process.started;
  if (!words || card.version != kVersion) {
    throw Error(fmt::format("tessera::join(): rank {} has \"{:.60}\", rank 0 has {}: all ranks must use one version",
                            rank, card.version, kVersion));
  }
  return card;
}

std::string card_key(int rank) { return fmt::format("rank{}", rank); }
constexpr const char* kAnswerKey = "answer";
constexpr const char* kApart = "apart";

// None after the deadline.
std::optional<std::string> await_value(const Meeting& meeting, const std::string& key, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (auto value = meeting.get(key, std::clamp(left, std::chrono::milliseconds(1), kPiece))) return value;
    if (Clock::now() >= deadline) return std::nullopt;
  }
}

// For those who did not come in time, the others are asked for: so that each rank can name who is missing.
[[noreturn]] void throw_late(const Meeting& meeting, int size) {
  std::vector<int> missing;
  for (int r = 0; r < size; ++r) {
    if (!meeting.get(card_key(r), std::chrono::milliseconds(1))) missing.push_back(r);
  }
  if (missing.empty()) throw TimeoutError("tessera::join(): all ranks came, but rank 0 did not go on");
  throw TimeoutError(fmt::format("tessera::join(): rank{} {} of {} did not come", missing.size() == 1 ? "" : "s",
                                 rank_list(missing), size));
}

[[noreturn]] void throw_apart(const Card& card, int rank, const Card& host) {
  if (card.user != host.user) {
    throw Error(
        fmt::format("tessera::join(): rank {} runs as user {}, rank 0 as user {}: shared memory is for one user", rank,
                    card.user, host.user));
  }
  throw Error(fmt::format(
      "tessera::join(): rank {} is on {}, rank 0 on {}{}: shared memory joins processes of one host and one container. "
      "Between hosts a carrier is needed, or an MPI's launcher",
      rank, card.host_name, host.host_name, card.host_name == host.host_name ? ", in another container" : ""));
}

std::vector<Card> collect(const Meeting& meeting, const Card& own, int size, Deadline deadline) {
  std::vector<Card> cards{own};
  for (int r = 1; r < size; ++r) {
    const auto text = await_value(meeting, card_key(r), deadline);
    if (!text) throw_late(meeting, size);
    cards.push_back(parse_card(*text, r));
  }
  return cards;
}

// The first that is not on rank 0's; 0: there is none.
int first_apart(const std::vector<Card>& cards) {
  const auto apart = std::find_if(cards.begin(), cards.end(), [&](const Card& c) { return c.host != cards[0].host; });
  return apart == cards.end() ? 0 : static_cast<int>(apart - cards.begin());
}

std::shared_ptr<Segment> make_segment(std::span<const Identity> ranks) {
  const auto size = static_cast<int>(ranks.size());
  auto segment = Segment::create(size, std::min(memory_limit().total_bytes, kJoinedBytes / size), false);
  // Those who have the memory know by this whom they wait for.
  for (int r = 0; r < size; ++r) segment->place(r).identity = ranks[static_cast<size_t>(r)];
  return segment;
}

// Null: over the carrier.
std::shared_ptr<Segment> be_host(const Meeting& meeting, const Card& own, int size, bool has_carrier,
                                 Deadline deadline) {
  std::vector<Identity> ranks;
  std::shared_ptr<Segment> segment;
  std::optional<Desk> desk;
  try {
    const auto cards = collect(meeting, own, size, deadline);
    if (const int rank = first_apart(cards); rank != 0) {
      if (!has_carrier) throw_apart(cards[static_cast<size_t>(rank)], rank, own);
      meeting.set(kAnswerKey, kApart);
      return nullptr;
    }
    for (const Card& card : cards) ranks.push_back(card.process);
    segment = make_segment(ranks);
    desk.emplace();
  } catch (const TimeoutError& e) {
    meeting.set(kAnswerKey, fmt::format("late {}", e.what()));
    throw;
  } catch (const Error& e) {
    meeting.set(kAnswerKey, fmt::format("no {}", e.what()));
    throw;
  }
  meeting.set(kAnswerKey, fmt::format("yes {} {}", desk->address().name, desk->address().secret));
  desk->hand_out(segment->descriptor(), ranks, deadline);
  return segment;
}

void check_host_lives(const Card& host, const Card& own) {
  if (host.host == own.host && !lives(host.process)) {
    throw PeerLostError(fmt::format("tessera::join(): the process of rank 0 (pid {}) is gone", host.process.pid));
  }
}

std::shared_ptr<Segment> be_guest(const Meeting& meeting, const Card& own, int rank, int size, Deadline deadline) {
  const auto card = await_value(meeting, card_key(0), deadline);
  if (!card) throw_late(meeting, size);
  const Card host = parse_card(*card, 0);
  std::optional<std::string> answer;
  while (!(answer = await_value(meeting, kAnswerKey, std::min(deadline, Clock::now() + kPiece)))) {
    check_host_lives(host, own);
    if (Clock::now() >= deadline) throw_late(meeting, size);
  }
  if (*answer == kApart) return nullptr;
  std::istringstream words(*answer);
  std::string verdict, rest;
  words >> verdict;
  if (verdict == "yes") {
    Address address;
    words >> address.name >> address.secret;
    return Segment::attach(fetch(address, host.process, rank, deadline));
  }
  std::getline(words >> std::ws, rest);
  if (verdict == "late") throw TimeoutError(rest);
  throw Error(rest);
}

}  // namespace
}  // namespace shm

Comm join(const Meeting& meeting, int rank, int size, const RunOptions& options, const MakeCarrier& make_carrier) {
  if (size < 1 || size > shm::kMaxRanks || rank < 0 || rank >= size) {
    throw Error(fmt::format("tessera::join(): rank {} of {}: ranks are 0 to size - 1, and at most {} of them", rank,
                            size, shm::kMaxRanks));
  }
  if (options.timeout.count() <= 0) {
    throw Error(fmt::format("tessera::join(): a timeout of {} ns is not positive", options.timeout.count()));
  }
  if (size == 1) return alone(options);
  const shm::Way way = shm::parse_way(std::getenv("TESSERA_SHM_WAY"));
  const Deadline deadline = shm::deadline_of(options);
  const shm::Card own = shm::own_card(rank, size);
  meeting.set(shm::card_key(rank), shm::text_of(own));
  auto segment = rank == 0 ? shm::be_host(meeting, own, size, make_carrier != nullptr, deadline)
                           : shm::be_guest(meeting, own, rank, size, deadline);
  if (segment == nullptr && make_carrier == nullptr) {
    throw Error(fmt::format("tessera::join(): rank {} has no carrier between hosts, and rank 0 has", rank));
  }
  if (segment == nullptr) return mpi::connect(make_carrier(), rank, size, options);
  return shm::connect(std::move(segment), rank, way, options, deadline);
}

}  // namespace tessera
