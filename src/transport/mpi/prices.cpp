#include "transport/mpi/prices.hpp"

#include <algorithm>
#include <cstdlib>
#include <locale>
#include <sstream>

#include <fmt/format.h>

#include <tessera/topology.hpp>

#include "plan/calibrated.hpp"

namespace tessera::mpi {
namespace {

constexpr const char* kMeasure = "measure";
constexpr double kLongBytes = 1 << 20;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// As the planner prices a direct exchange: each round is one.
Prices prices_of(const Topology& topology, const std::string& path) {
  for (const Topology::Axis& axis : topology.axes) {
    if (axis.name != "hosts") continue;
    return {topology.exchange_base_us, axis.link.latency_us, axis.link.transfer(kLongBytes) / kLongBytes};
  }
  throw Error(fmt::format("TESSERA_NETWORK: the topology {} has no axis called hosts", path));
}

// So many messages of so many bytes to one rank, and from another; kLongBytes at most together.
class Shift {
 public:
  Shift(World& world, CommHandle comm, int to, int from)
      : world_(world), comm_(comm), to_(to), from_(from), memory_(std::make_shared<Memory>()) {
    for (auto* place : {&memory_->first, &memory_->second}) place->resize(static_cast<size_t>(kLongBytes));
  }

  double us(int count, int64_t bytes, Deadline deadline) {
    const auto start = Clock::now();
    requests_.assign(2 * static_cast<size_t>(count), 0);
    for (size_t i = 0; i < requests_.size(); i += 2) {
      const Api& api = world_.api();
      std::byte* const place = memory_->first.data() + static_cast<int64_t>(i / 2) * bytes;
      world_.check(api.irecv(place, bytes, from_, kData, comm_, &requests_[i]), "MPI_Irecv");
      world_.check(api.isend(memory_->second.data(), bytes, to_, kData, comm_, &requests_[i + 1]), "MPI_Isend");
    }
    for (Patience patience; !is_over(); patience.pause()) {
      if (!patience.should_look_around() || Clock::now() < deadline) continue;
      for (const RequestHandle request : requests_) {
        if (request != 0) world_.keep(request, memory_);
      }
      throw PeerTrouble{PeerTrouble::timed_out, from_};
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

 private:
  using Memory = std::pair<std::vector<std::byte>, std::vector<std::byte>>;
  bool is_over() {
    int32_t done = 0;
    which_.resize(requests_.size());
    world_.check(world_.api().test_some(static_cast<int32_t>(requests_.size()), requests_.data(), &done, which_.data()),
                 "MPI_Testsome");
    return std::all_of(requests_.begin(), requests_.end(), [](RequestHandle request) { return request == 0; });
  }

  World& world_;
  CommHandle comm_;
  int to_, from_;
  std::shared_ptr<Memory> memory_;
  std::vector<RequestHandle> requests_;
  std::vector<int32_t> which_;
};

}  // namespace

std::string wanted_prices() {
  const char* text = std::getenv("TESSERA_NETWORK");
  if (text == nullptr || *text == 0) return to_words(Prices());
  if (std::string(text) == kMeasure) return kMeasure;
  try {
    return to_words(prices_of(read_topology(text), text));
  } catch (const std::exception& error) {
    return fmt::format("!{}", error.what());
  }
}

bool is_to_be_measured(const std::string& wanted) { return wanted == kMeasure; }

std::string to_words(const Prices& prices) {
  return fmt::format("{} {} {}", prices.round_us, prices.message_us, prices.byte_us);
}

std::string describe(const Prices& prices) {
  return fmt::format("{:.3g} us a round, {:.3g} us a message, {:.3g} GB/s", prices.round_us, prices.message_us,
                     1e-3 / std::max(prices.byte_us, 1e-9));
}

Prices prices_from(const std::string& wanted) {
  if (wanted.starts_with("!")) throw Error(wanted.substr(1));
  std::istringstream words(wanted);
  words.imbue(std::locale::classic());  // the program's may have a comma where these have a point
  Prices prices;
  if (words >> prices.round_us >> prices.message_us >> prices.byte_us) return prices;
  throw Error("what rank 0 says of the network makes no sense: it is damaged");
}

Prices measure(World& world, CommHandle comm, const std::vector<int>& circle, int rank, Deadline deadline) {
  constexpr int kTimes = 15, kBurst = 17;
  const size_t count = circle.size();
  const auto me = static_cast<size_t>(std::find(circle.begin(), circle.end(), rank) - circle.begin());
  Shift shift(world, comm, circle[(me + 1) % count], circle[(me + count - 1) % count]);
  const auto typical_us = [&](int messages, double bytes) {
    std::vector<double> times;
    for (int i = 0; i < kTimes; ++i) times.push_back(shift.us(messages, static_cast<int64_t>(bytes), deadline));
    return median_of(times);
  };
  typical_us(1, kLongBytes);  // the first of them make connections
  const double one = typical_us(1, 64), many = typical_us(kBurst, 64), wide = typical_us(1, kLongBytes);
  const double message = std::max(many - one, 0.0) / (kBurst - 1);
  return {std::max(one - message, 0.0), message, std::max(wide - one, 0.0) / kLongBytes};
}

Prices middle_of(const std::vector<Prices>& measured) {
  const auto middle = [&](double Prices::*price) {
    std::vector<double> values;
    for (const Prices& one : measured) values.push_back(one.*price);
    return median_of(values);
  };
  return {middle(&Prices::round_us), middle(&Prices::message_us), middle(&Prices::byte_us)};
}

}  // namespace tessera::mpi
