// How the ranks of one host come to share memory, where nothing but MPI is between them.
#include <cstring>

#include <fmt/format.h>

#include "transport/mpi/hosted.hpp"
#include "transport/shm/meet.hpp"
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
      trouble = fmt::format("!{}", error.what());
    }
  }
};

shm::Invitation invitation_from(const std::string& text) {
  shm::Invitation invitation;
  if (text.size() != sizeof(invitation)) throw Error("the first rank of this host has made no shared memory");
  std::memcpy(&invitation, text.data(), sizeof(invitation));
  return invitation;
}

// Null where any rank met with trouble.
std::shared_ptr<shm::World> meet(MpiTransport& wide, const Hosts& hosts, Deadline deadline) {
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
  });
  const auto all_well = [&] {
    for (const std::string& text : tell_all(wide, meeting.trouble, deadline)) {
      if (!text.empty()) return false;
    }
    return true;
  };
  if (!all_well()) return nullptr;
  meeting.attempt([&] { meeting.world = std::make_shared<shm::World>(segment, place, way, deadline); });
  return all_well() ? meeting.world : nullptr;
}

}  // namespace

std::unique_ptr<Transport> join_hosts(std::shared_ptr<World> world, CommHandle comm, const Probe& probe,
                                      Deadline deadline) {
  auto wide = std::make_unique<MpiTransport>(world, comm, probe);
  const auto keys = tell_all(*wide, host_key(wide->rank(), wide->size()), deadline);
  Hosts hosts(keys);
  if (hosts.count() == hosts.ranks()) return wide;
  const auto shared = meet(*wide, hosts, deadline);
  if (shared == nullptr) return wide;
  auto host = std::make_unique<shm::ShmTransport>(shared, nullptr);
  std::vector<int> all(static_cast<size_t>(host->size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  std::unique_ptr<Transport> relay = host->subgroup(0, all, deadline);
  return std::make_unique<HostedTransport>(
      std::move(world), std::move(wide), std::move(host),
      std::unique_ptr<BoardTransport>(static_cast<BoardTransport*>(relay.release())), std::move(hosts));
}

}  // namespace tessera::mpi
