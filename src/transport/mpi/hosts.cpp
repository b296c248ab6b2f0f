#include "transport/mpi/hosts.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "transport/shm/meet.hpp"

namespace tessera::mpi {

Hosts::Hosts(std::span<const std::string> keys) {
  std::map<std::string, int> numbers;
  for (size_t r = 0; r < keys.size(); ++r) {
    const int host = numbers.emplace(keys[r], static_cast<int>(numbers.size())).first->second;
    if (host == count()) ranks_.emplace_back();
    auto& there = ranks_[static_cast<size_t>(host)];
    host_of_.push_back(host);
    place_of_.push_back(static_cast<int>(there.size()));
    there.push_back(static_cast<int>(r));
  }
}

Hosts Hosts::among(std::span<const int> members) const {
  std::vector<std::string> keys;
  for (const int member : members) keys.push_back(std::to_string(host_of(member)));
  return Hosts(keys);
}

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

}  // namespace tessera::mpi
