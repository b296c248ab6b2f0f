#include "transport/mpi/hosts.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "transport/shm/meet.hpp"

namespace tessera::mpi {

std::string host_key(int rank, int size) {
  const std::string real = shm::host_identity();
  const char* text = std::getenv("TESSERA_HOSTS");
  if (text == nullptr) return real;
  int64_t hosts = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, hosts).ptr != end || hosts < 1) {
    throw Error(fmt::format("TESSERA_HOSTS is \"{:.40}\", not a number of hosts from 1 on", text));
  }
  return fmt::format("{}/{}of{}", real, rank * hosts / size, hosts);
}

std::string_view machine_of(const std::string& key) { return std::string_view(key).substr(0, key.find('/')); }

}  // namespace tessera::mpi
