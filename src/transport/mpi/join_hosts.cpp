// How the ranks of one host come to share memory, where nothing but MPI is between them.
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "transport/mpi/eager.hpp"
#include "transport/mpi/hosted.hpp"
#include "transport/mpi/prices.hpp"
#include "transport/shm/meet.hpp"
#include "transport/shm/process.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::mpi {
namespace {

using Records = std::vector<std::span<const std::byte>>;

std::vector<std::string> tell_all(MpiTransport& wide, const std::string& mine, Deadline deadline) {
  Records records;
  wide.exchange(Saying(std::as_bytes(std::span(mine))), 0, records, deadline);
  std::vector<std::string> texts;
  for (const auto& record : records) texts.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  return texts;
}

// Runs fn, which throws PeerTrouble with a place on the host of `rank`.
template <class Fn>
auto with_ranks(const Hosts& hosts, int rank, Fn&& fn) {
  try {
    return fn();
  } catch (const PeerTrouble& trouble) {
    const auto& here = hosts.ranks_on(hosts.host_of(rank));
    const auto place = static_cast<size_t>(trouble.rank);
    throw PeerTrouble{trouble.kind, place < here.size() ? here[place] : rank};
  }
}

// What keeps ranks from sharing memory, be it on one host only, keeps all from it: so all take the same way.
struct Meeting {
  std::shared_ptr<shm::World> world;
  std::string trouble;

  template <class Fn>
  void attempt(Fn&& fn) {
    if (!trouble.empty()) return;
    try {
      fn();
    } catch (const std::exception& error) {
      trouble = *error.what() != 0 ? error.what() : "it does not say why";
    }
  }
};

shm::Invitation invitation_from(const std::string& text) {
  shm::Invitation invitation;
  if (text.size() != sizeof(invitation)) throw Error("the first rank of this host has made no shared memory");
  std::memcpy(&invitation, text.data(), sizeof(invitation));
  return invitation;
}

// No world where any rank met with trouble, and what the first of them says of it.
std::pair<std::shared_ptr<shm::World>, std::string> meet(MpiTransport& wide, const Hosts& hosts, int neighbours,
                                                         Deadline deadline) {
  const int host = hosts.host_of(wide.rank()), place = hosts.place_of(wide.rank());
  const shm::Way way = shm::parse_way(std::getenv("TESSERA_SHM_WAY"));
  Meeting meeting;
  std::shared_ptr<shm::Segment> segment;
  std::string invited;
  if (place == 0) {
    meeting.attempt([&] {
      segment = shm::Segment::create(static_cast<int>(hosts.ranks_on(host).size()), 0, false);
      const shm::Invitation invitation = shm::invite(*segment);
      invited.assign(reinterpret_cast<const char*>(&invitation), sizeof(invitation));
    });
  }
  const auto invitations = tell_all(wide, invited, deadline);
  meeting.attempt([&] {
    if (place != 0) segment = shm::accept(invitation_from(invitations[static_cast<size_t>(hosts.first_of(host))]));
    segment->place(place).identity = shm::own_identity();
  });
  const auto first_trouble = [&] {
    const auto texts = tell_all(wide, meeting.trouble, deadline);
    for (size_t r = 0; r < texts.size(); ++r) {
      if (!texts[r].empty()) return fmt::format("rank {}: {}", r, texts[r]);
    }
    return std::string();
  };
  std::string trouble = first_trouble();
  if (!trouble.empty()) return {nullptr, trouble};
  meeting.attempt([&] {
    meeting.world = with_ranks(hosts, wide.rank(),
                               [&] { return std::make_shared<shm::World>(segment, place, way, deadline, neighbours); });
  });
  trouble = first_trouble();
  return {trouble.empty() ? meeting.world : nullptr, trouble};
}

// The cores that this rank may run on: how many, and a word that is the same where they are.
std::string own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return fmt::format("{}", std::thread::hardware_concurrency());
  const std::string_view bytes(reinterpret_cast<const char*>(&cores), sizeof(cores));
  return fmt::format("{} {:x}", CPU_COUNT(&cores), std::hash<std::string_view>()(bytes));
}

// What each rank tells of itself.
struct Introduction {
  bool has_one_thread = false;
  std::string host, cores, voters, prices;

  std::string text() const {
    return fmt::format("{}{}\n{}\n{}\n{}", has_one_thread ? '1' : '0', host, cores, voters, prices);
  }
  static Introduction parse(std::string_view text) {
    const auto line = [&] {
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) throw Error("what a rank says of itself makes no sense: it is damaged");
      const std::string taken(text.substr(0, end));
      text.remove_prefix(end + 1);
      return taken;
    };
    const std::string first = line(), cores = line(), voters = line();
    if (first.empty()) throw Error("what a rank says of itself makes no sense: it is damaged");
    return {first[0] == '1', first.substr(1), cores, voters, std::string(text)};
  }
  int core_count() const { return std::atoi(cores.c_str()); }
};

// How many ranks run on the same cores. Where each is bound to its own, it is alone on them.
class Crowds {
 public:
  explicit Crowds(std::span<const Introduction> all) {
    for (const Introduction& one : all) ++ranks_[place_of(one)];
  }
  int around(const Introduction& one) const { return ranks_.at(place_of(one)); }

 private:
  static std::string place_of(const Introduction& one) { return fmt::format("{} {}", machine_of(one.host), one.cores); }
  std::map<std::string, int> ranks_;
};

bool each_has_a_core(std::span<const Introduction> all, const Crowds& crowds) {
  return std::all_of(all.begin(), all.end(),
                     [&](const Introduction& one) { return crowds.around(one) <= one.core_count(); });
}

// However many hosts TESSERA_HOSTS makes of it.
bool on_one_machine(std::span<const Introduction> all) {
  return std::all_of(all.begin(), all.end(),
                     [&](const Introduction& one) { return machine_of(one.host) == machine_of(all[0].host); });
}

// MPI's own waiting may keep a core that a peer waits for; or only one thread may call, and others of it must go on.
bool should_poll(std::span<const Introduction> all, const Crowds& crowds) {
  const auto has_one_thread = [](const Introduction& one) { return one.has_one_thread; };
  return !each_has_a_core(all, crowds) || std::any_of(all.begin(), all.end(), has_one_thread);
}

// What is wrong with a rank's own environment is told in its host's place, so that all hear of it.
constexpr char kWrong = '!';

std::string host_or_trouble(int rank, int size) {
  try {
    return host_key(rank, size);
  } catch (const Error& error) {
    std::string text = kWrong + std::string(error.what());
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
}

std::string wanted_voters() {
  const char* text = std::getenv("TESSERA_VOTE_FROM");
  return text == nullptr ? "" : std::string(text).substr(0, std::string(text).find('\n'));
}

// As rank 0 wants it.
size_t voters_from(const std::string& text) {
  size_t voters = Surroundings().voters;
  const char* end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, voters);
  if (text.empty() || (read_to == end && error == std::errc() && voters >= 2)) return voters;
  throw Error(fmt::format("TESSERA_VOTE_FROM is \"{:.40}\", not a number of ranks from 2 on", text));
}

// As rank 0 wants them; where they are to be measured, by the first ranks of the hosts.
Prices agreed_prices(World& world, CommHandle comm, MpiTransport& wide, const Hosts& hosts, const std::string& wanted,
                     bool near, int64_t eager_bytes, Deadline deadline) {
  if (wanted.empty()) return typical_prices(near, eager_bytes);
  if (!is_to_be_measured(wanted)) return prices_from(wanted);
  if (hosts.count() == 1) return {};
  const std::vector<int> circle = hosts.first_ranks();
  const bool measures = hosts.place_of(wide.rank()) == 0;
  const std::string found = measures ? to_words(measure(world, comm, circle, wide.rank(), eager_bytes, deadline)) : "";
  std::vector<Prices> all;
  for (const std::string& words : tell_all(wide, found, deadline)) {
    if (!words.empty()) all.push_back(prices_from(words));
  }
  return middle_of(all);
}

}  // namespace

std::unique_ptr<Transport> join_hosts(std::shared_ptr<World> world, CommHandle comm, const Probe& probe,
                                      Deadline deadline) {
  auto wide = std::make_unique<MpiTransport>(world, comm, probe);
  const Introduction mine{world->has_one_thread(), host_or_trouble(wide->rank(), wide->size()), own_cores(),
                          wanted_voters(), wanted_prices()};
  std::vector<Introduction> all;
  std::vector<std::string> keys;
  for (const std::string& text : tell_all(*wide, mine.text(), deadline)) {
    const Introduction& other = all.emplace_back(Introduction::parse(text));
    if (other.host.starts_with(kWrong)) throw Error(fmt::format("rank {}: {}", keys.size(), other.host.substr(1)));
    keys.push_back(other.host);
  }
  const Crowds crowds(all);
  const int neighbours = crowds.around(mine);
  world->set_neighbours(neighbours, mine.core_count());
  Hosts hosts(keys);
  Surroundings around;
  around.hosts = hosts;
  around.voters = voters_from(all[0].voters);
  around.polls = should_poll(all, crowds);
  wide->learn(around);
  around.eager_bytes = find_eager_bytes(*world, comm, hosts.first_ranks(), wide->rank(), deadline,
                                        [&](const std::string& text) { return tell_all(*wide, text, deadline); });
  wide->learn(around);
  const bool near = on_one_machine(all) && each_has_a_core(all, crowds);
  around.prices = agreed_prices(*world, comm, *wide, hosts, all[0].prices, near, around.eager_bytes, deadline);
  wide->learn(around);
  if (hosts.count() == hosts.ranks()) return wide;
  const auto [shared, trouble] = meet(*wide, hosts, neighbours, deadline);
  if (shared == nullptr) {
    around.trouble = trouble;
    wide->learn(around);
    return wide;
  }
  auto host = std::make_unique<shm::ShmTransport>(shared, nullptr);
  std::vector<int> whole(static_cast<size_t>(host->size()));
  std::iota(whole.begin(), whole.end(), 0);
  std::unique_ptr<Transport> relay =
      with_ranks(hosts, wide->rank(), [&] { return host->subgroup(0, whole, deadline); });
  return std::make_unique<HostedTransport>(
      std::move(world), std::move(wide), std::move(host),
      std::unique_ptr<BoardTransport>(static_cast<BoardTransport*>(relay.release())), std::move(hosts));
}

}  // namespace tessera::mpi
