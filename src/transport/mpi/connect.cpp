#include "transport/mpi/connect.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include <tessera/detail/from_mpi.hpp>

#include "comm/comm_state.hpp"
#include "transport/mpi/hosted.hpp"
#include "transport/post/post.hpp"

namespace tessera {
namespace mpi {
namespace {

// MPI does not tell who has not come.
CommHandle duplicate(World& world, CommHandle comm, const RunOptions& options, Deadline deadline) {
  const Api& api = world.api();
  if (api.start_duplicate == nullptr) {
    CommHandle made = 0;
    world.check(api.duplicate(comm, &made), "MPI_Comm_dup");
    return made;
  }
  Duplication duplication(world, comm);
  for (Patience patience; !duplication.is_over(); patience.pause()) {
    if (!patience.should_look_around() || Clock::now() < deadline) continue;
    world.give_up();
    throw TimeoutError(fmt::format("{}: not all ranks came to make it within {:.3g} s", options.name,
                                   std::chrono::duration<double>(options.timeout).count()));
  }
  return duplication.made();
}

Comm take_duplicate(std::shared_ptr<World> world, CommHandle comm, const RunOptions& options) {
  world->check_thread();
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  const Deadline deadline = Clock::now() + std::min(options.timeout, kLongest);
  const CommHandle own = duplicate(*world, comm, options, deadline);
  try {
    return Comm(std::make_shared<detail::CommState>(join_hosts(std::move(world), own, options.probe, deadline),
                                                    options.name, options.timeout));
  } catch (const PeerTrouble& trouble) {
    const std::string text = fmt::format("{}: rank {} did not come", options.name, trouble.rank);
    if (trouble.kind == PeerTrouble::closed) throw PeerLostError(text);
    throw TimeoutError(text);
  }
}

// Each process would go on as the only one, where the library is of another MPI than the launcher.
void check_size(const std::string& mpi, int size, const char* remedy) {
  const char* own = std::getenv(mpi == "mpich" ? "PMI_SIZE" : "OMPI_COMM_WORLD_SIZE");
  if (own != nullptr && std::atoi(own) == size) return;  // what another launcher has left is older
  bool said = false;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* text = std::getenv(name);
    // mpirun has a step of its own, of which a process starts several ranks.
    const bool counts = text != nullptr && (std::string_view(name) != "SLURM_STEP_NUM_TASKS" || (!said && size == 1));
    said = said || text != nullptr;
    if (!counts || std::atoi(text) == size) continue;
    throw Error(
        fmt::format("the launcher says {}={}, but {} has found {} rank{}: the program's MPI and its launcher do not "
                    "belong together. {}",
                    name, text, mpi, size, size == 1 ? "" : "s", remedy));
  }
}

}  // namespace

Comm connect(const std::string& mpi, const RunOptions& options) {
  const auto world = World::of(mpi);
  Comm comm = take_duplicate(world, world->api().world(), options);
  check_size(mpi, comm.size(), "TESSERA_MPI names the one to use");
  return comm;
}

Comm connect(std::shared_ptr<Carrier> carrier, int rank, int size, const RunOptions& options) {
  const auto engine = std::make_shared<post::Post>(std::move(carrier), rank, size);
  const auto all = reinterpret_cast<CommHandle>(&engine->all());
  return take_duplicate(std::make_shared<World>(post::api(), engine), all, options);
}

}  // namespace mpi

Comm detail::from_mpi(const std::string& library, int32_t handle, const RunOptions& options) {
  if (options.timeout.count() <= 0) {
    throw Error(fmt::format("from_mpi(): a timeout of {} ns is not positive", options.timeout.count()));
  }
  const bool is_open = library.find("Open MPI") != std::string::npos;
  if (!is_open && library.find("MPICH") == std::string::npos) {
    throw Error(fmt::format("from_mpi(): \"{:.80}\" is neither Open MPI nor MPICH", library));
  }
  const std::string name = is_open ? "openmpi" : "mpich";
  const auto world = mpi::World::of(name);
  int32_t rank = 0, size = 0;
  world->check(world->api().rank_and_size(world->api().world(), &rank, &size), "MPI_Comm_size");
  // Only one that is alone can have been left out; what a rank starts in its turn may be.
  if (size == 1 && !mpi::names_mpi()) {
    mpi::check_size(name, size,
                    "Start it with the mpirun of the MPI that it is linked with; TESSERA_MPI=none: it is alone");
  }
  return mpi::take_duplicate(world, world->api().from_fortran(handle), options);
}

}  // namespace tessera
