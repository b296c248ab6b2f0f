#include "transport/mpi/library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include <tessera/error.hpp>

namespace tessera::mpi {
namespace {

namespace fs = std::filesystem;

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

// Of the program, or of the library where that is shared.
fs::path own_folder() {
  Dl_info info = {};
  static const char here = 0;
  if (dladdr(&here, &info) == 0 || info.dli_fname == nullptr) return {};
  return fs::path(info.dli_fname).parent_path();
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Beside the library or the program, where it was built, where it is installed, and where the system looks.
std::vector<std::string> places_of(const std::string& file) {
  std::vector<std::string> places;
  if (const char* folder = std::getenv("TESSERA_MPI_PATH")) places.push_back(fs::path(folder) / file);
  places.push_back(own_folder() / "tessera" / file);
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  if (!program.empty()) places.push_back(program.parent_path().parent_path() / "lib" / "tessera" / file);
  // What is installed takes nothing out of the folder that it was built in, where anybody may have put something since.
  if (lies_in(program, TESSERA_BUILD_ROOT) || lies_in(own_folder(), TESSERA_BUILD_ROOT)) {
    places.push_back(fs::path(TESSERA_MPI_BUILT) / file);
  }
  places.push_back(fs::path(TESSERA_MPI_INSTALLED) / file);
  places.push_back(file);
  return places;
}

const Api& open_library(const std::string& name) {
  const std::string file = fmt::format("libtessera_{}.so", name);
  const auto places = places_of(file);
  std::string reason;
  for (const std::string& place : places) {
    // Open MPI loads parts of itself later, which need its symbols.
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      const char* text = dlerror();
      if (place.find('/') == std::string::npos || fs::exists(place)) reason = text != nullptr ? text : "";
      continue;
    }
    const auto get = reinterpret_cast<const Api* (*)()>(dlsym(library, kApiSymbol));
    const Api* api = get != nullptr ? get() : nullptr;
    if (api == nullptr || api->version != kApiVersion) {
      throw Error(fmt::format("{} is of another version of tessera: build and install both together", place));
    }
    return *api;
  }
  throw Error(fmt::format(
      "this process runs under {}, but tessera has no library for it. Build tessera where {} is installed, or "
      "name the folder of {} in TESSERA_MPI_PATH. Looked at: {}. The last reason: {}",
      name, name == "mpich" ? "libmpich-dev" : "libopenmpi-dev", file, fmt::join(places, ", "), reason));
}

}  // namespace

bool names_mpi() {
  const char* named = std::getenv("TESSERA_MPI");
  return named != nullptr && *named != 0;
}

std::optional<std::string> launched_by() {
  if (names_mpi()) {
    const char* named = std::getenv("TESSERA_MPI");
    if (std::string(named) == "none") return std::nullopt;
    if (std::string(named) == "openmpi" || std::string(named) == "mpich") return named;
    throw Error(fmt::format("TESSERA_MPI is \"{:.40}\", not openmpi, mpich or none", named));
  }
  if (is_set("OMPI_COMM_WORLD_RANK")) return "openmpi";
  // Hydra's own, and what srun --mpi=pmi2 sets.
  if (is_set("PMI_RANK") && is_set("PMI_SIZE")) return "mpich";
  if (is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE")) return "openmpi";
  return std::nullopt;
}

const Api& load(const std::string& name) {
  static std::mutex guard;
  static std::map<std::string, const Api*> known;
  std::lock_guard lock(guard);
  const Api*& api = known[name];
  if (api == nullptr) api = &open_library(name);
  return *api;
}

void check(const Api& api, int code, const char* what) {
  if (code == 0) return;
  char text[512] = "";
  api.error_text(code, text, sizeof(text));
  throw Error(fmt::format("{} failed: {} ({})", what, text, api.library()));
}

}  // namespace tessera::mpi
