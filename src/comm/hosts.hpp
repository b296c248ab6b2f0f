// Which ranks of a communicator share a host.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tessera {

class Hosts {
 public:
  Hosts() = default;
  // `keys[r]`: the same for ranks of one host. Hosts are numbered by their first ranks.
  explicit Hosts(std::span<const std::string> keys);
  // Every rank a host of its own.
  static Hosts apart(int ranks);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  // Its number on its host.
  int place_of(int rank) const { return place_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<size_t>(host)]; }
  // How many ranks the host has that has the most.
  int most_together() const;
  // Who speaks for the host.
  int first_of(int host) const { return ranks_on(host)[0]; }
  std::vector<int> first_ranks() const {  // of all hosts
    std::vector<int> ranks;
    for (int h = 0; h < count(); ++h) ranks.push_back(first_of(h));
    return ranks;
  }
  bool together(int a, int b) const { return host_of(a) == host_of(b); }
  // Of a communicator of `members`, in their order.
  Hosts among(std::span<const int> members) const;

 private:
  std::vector<int> host_of_, place_of_;
  std::vector<std::vector<int>> ranks_;
};

}  // namespace tessera
