#include <algorithm>
#include <climits>
#include <memory>

#include <fmt/format.h>
#include <hwloc.h>

#include <tessera/error.hpp>

#include "binding.hpp"

namespace tessera::cli {
namespace {

struct Free {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using CpuTree = std::unique_ptr<hwloc_topology, Free>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, Free>;

// The part of the machine that this process may use: control groups are hwloc's care, affinity (taskset) ours.
CpuTree own_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error("hwloc cannot be used");
  CpuTree topology(raw);
  if (hwloc_topology_load(raw) != 0) throw Error("hwloc cannot read this machine's topology");
  const Bitmap allowed(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(raw, allowed.get(), HWLOC_CPUBIND_PROCESS) == 0) hwloc_topology_restrict(raw, allowed.get(), 0);
  return topology;
}

// Some virtual machines tell of no cores, only of logical CPUs.
int core_depth(hwloc_topology_t topology) {
  return std::min(hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE),
                  hwloc_get_type_depth(topology, HWLOC_OBJ_PU));
}

std::vector<int> members(hwloc_const_bitmap_t bitmap) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

std::vector<std::vector<int>> bind_ranks(int ranks) {
  const CpuTree topology = own_topology();
  const int depth = core_depth(topology.get());
  const auto cores = hwloc_get_nbobjs_by_depth(topology.get(), depth);
  const unsigned places = std::min(static_cast<unsigned>(ranks), cores);
  std::vector<hwloc_cpuset_t> sets(places);
  hwloc_obj_t root = hwloc_get_root_obj(topology.get());
  if (places == 0 || hwloc_distrib(topology.get(), &root, 1, sets.data(), places, depth, 0) != 0) {
    throw Error(fmt::format("hwloc cannot distribute {} ranks", ranks));
  }
  std::vector<std::vector<int>> cpus;
  for (int r = 0; r < ranks; ++r) cpus.push_back(members(sets[static_cast<unsigned>(r) % places]));
  for (hwloc_cpuset_t set : sets) hwloc_bitmap_free(set);
  return cpus;
}

int usable_cores() {
  const CpuTree topology = own_topology();
  return static_cast<int>(hwloc_get_nbobjs_by_depth(topology.get(), core_depth(topology.get())));
}

std::string hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return fmt::format("{}.{}", version >> 16, version >> 8 & 0xff);
}

}  // namespace tessera::cli
