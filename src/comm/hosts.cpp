#include "comm/hosts.hpp"

#include <algorithm>
#include <map>

namespace tessera {

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

int Hosts::most_together() const {
  size_t most = 0;
  for (const auto& ranks : ranks_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

Hosts Hosts::apart(int ranks) {
  std::vector<std::string> keys;
  for (int r = 0; r < ranks; ++r) keys.push_back(std::to_string(r));
  return Hosts(keys);
}

Hosts Hosts::among(std::span<const int> members) const {
  std::vector<std::string> keys;
  for (const int member : members) keys.push_back(std::to_string(host_of(member)));
  return Hosts(keys);
}

}  // namespace tessera
