#include "transport/mpi/prices.hpp"

#include <algorithm>
#include <cstdlib>
#include <locale>
#include <sstream>

#include <fmt/format.h>

#include <tessera/topology.hpp>

#include "plan/calibrated.hpp"
#include "transport/mpi/eager.hpp"

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

// So many messages of so many bytes to those behind a rank in the circle, one after the other, and as many from those
// before it; kLongBytes at most together.
class Shift {
 public:
  Shift(World& world, CommHandle comm, const std::vector<int>& circle, int rank)
      : world_(world),
        comm_(comm),
        circle_(circle),
        me_(static_cast<size_t>(std::find(circle.begin(), circle.end(), rank) - circle.begin())),
        memory_(std::make_shared<Memory>()) {
    for (auto* place : {&memory_->first, &memory_->second}) place->resize(static_cast<size_t>(kLongBytes));
  }

  double us(int count, int64_t bytes, Deadline deadline) {
    const auto start = Clock::now();
    requests_.assign(2 * static_cast<size_t>(count), 0);
    const size_t others = circle_.size() - 1;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const Api& api = world_.api();
      std::byte* const place = memory_->first.data() + static_cast<int64_t>(i) * bytes;
      const int to = circle_[(me_ + 1 + i % others) % circle_.size()];
      const int from = circle_[(me_ + others - i % others) % circle_.size()];
      world_.check(api.irecv(place, bytes, from, kData, comm_, &requests_[2 * i]), "MPI_Irecv");
      world_.check(api.isend(memory_->second.data(), bytes, to, kData, comm_, &requests_[2 * i + 1]), "MPI_Isend");
    }
    for (Patience patience; !is_over(); patience.pause()) {
      if (!patience.should_look_around() || Clock::now() < deadline) continue;
      for (const RequestHandle request : requests_) {
        if (request != 0) world_.keep(request, memory_);
      }
      throw PeerTrouble{PeerTrouble::timed_out, missing()};
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

 private:
  using Memory = std::pair<std::vector<std::byte>, std::vector<std::byte>>;
  // The other end of the first that has not ended.
  int missing() const {
    const size_t others = circle_.size() - 1;
    const auto open =
        std::find_if(requests_.begin(), requests_.end(), [](RequestHandle request) { return request != 0; });
    const auto i = static_cast<size_t>(open - requests_.begin());
    const size_t step = i / 2 % others;
    return circle_[(me_ + (i % 2 == 0 ? others - step : 1 + step)) % circle_.size()];
  }
  bool is_over() {
    int32_t done = 0;
    which_.resize(requests_.size());
    world_.check(world_.api().test_some(static_cast<int32_t>(requests_.size()), requests_.data(), &done, which_.data()),
                 "MPI_Testsome");
    return std::all_of(requests_.begin(), requests_.end(), [](RequestHandle request) { return request == 0; });
  }

  World& world_;
  CommHandle comm_;
  const std::vector<int>& circle_;
  const size_t me_;
  std::shared_ptr<Memory> memory_;
  std::vector<RequestHandle> requests_;
  std::vector<int32_t> which_;
};

}  // namespace

std::string wanted_prices() {
  const char* text = std::getenv("TESSERA_NETWORK");
  if (text == nullptr || *text == 0) return "";
  if (std::string(text) == kMeasure) return kMeasure;
  try {
    return to_words(prices_of(read_topology(text), text));
  } catch (const std::exception& error) {
    return fmt::format("!{}", error.what());
  }
}

bool is_to_be_measured(const std::string& wanted) { return wanted == kMeasure; }

std::string to_words(const Prices& prices) {
  return fmt::format("{} {} {} {} {}", prices.round_us, prices.message_us, prices.byte_us, prices.answer_us,
                     prices.unanswered_bytes);
}

std::string describe(const Prices& prices) {
  std::string answer;
  if (prices.answer_us > 0) {
    answer = fmt::format(" and {:.3g} us more above {} bytes", prices.answer_us, prices.unanswered_bytes);
  }
  return fmt::format("{:.3g} us a round, {:.3g} us a message{}, {:.3g} GB/s", prices.round_us, prices.message_us,
                     answer, 1e-3 / std::max(prices.byte_us, 1e-9));
}

Prices prices_from(const std::string& wanted) {
  if (wanted.starts_with("!")) throw Error(wanted.substr(1));
  std::istringstream words(wanted);
  words.imbue(std::locale::classic());  // the program's may have a comma where these have a point
  Prices prices;
  words >> prices.round_us >> prices.message_us >> prices.byte_us >> prices.answer_us >> prices.unanswered_bytes;
  if (words) return prices;
  throw Error("what rank 0 says of the network makes no sense: it is damaged");
}

// What is taken at once is little where nothing but memory is between two ranks (Open MPI: 3,840 bytes), as the receiver can
// read the rest itself. Fitted to gathers of 8 KiB to 1 MiB by 4 and 8 ranks on 16 cores.
Prices typical_prices(bool near, int64_t eager_bytes) {
  constexpr int64_t kMostThroughMemory = 4096;
  if (!near || eager_bytes == 0 || eager_bytes > kMostThroughMemory) return {};
  return {.round_us = 1.5,
          .message_us = 0.5,
          .byte_us = 1.6e-4,
          .answer_us = 3,
          .unanswered_bytes = kMostEagerParts * eager_bytes};
}

Prices measure(World& world, CommHandle comm, const std::vector<int>& circle, int rank, int64_t eager_bytes,
               Deadline deadline) {
  constexpr int kBurst = 9;
  Shift shift(world, comm, circle, rank);
  // Whatever else goes on makes it longer. The first of them make connections.
  const auto least_us = [&](int messages, double bytes) {
    const int repeats = bytes < 1000 ? 30 : 8;
    double least = shift.us(messages, static_cast<int64_t>(bytes), deadline);
    for (int i = 0; i < repeats; ++i) {
      least = std::min(least, shift.us(messages, static_cast<int64_t>(bytes), deadline));
    }
    return least;
  };
  const double one = least_us(1, 64), many = least_us(kBurst, 64), wide = least_us(1, kLongBytes);
  const auto each_of = [](double burst, double alone, int messages) {
    return std::max(burst - alone, 0.0) / (messages - 1);
  };
  Prices prices;
  prices.message_us = each_of(many, one, kBurst);
  prices.round_us = std::max(one - prices.message_us, 0.0);
  prices.byte_us = std::max(wide - one, 0.0) / kLongBytes;
  if (eager_bytes == 0) return prices;
  prices.unanswered_bytes = kMostEagerParts * eager_bytes;  // what is no longer goes in parts
  const double bytes = static_cast<double>(prices.unanswered_bytes) * 1.5;
  const int burst = std::min(kBurst, static_cast<int>(kLongBytes / bytes));
  if (burst < 2) return prices;
  const double each = each_of(least_us(burst, bytes), least_us(1, bytes), burst);
  prices.answer_us = std::max(each - prices.message_us - bytes * prices.byte_us, 0.0);
  return prices;
}

Prices middle_of(const std::vector<Prices>& measured) {
  const auto middle = [&](double Prices::*price) {
    std::vector<double> values;
    for (const Prices& one : measured) values.push_back(one.*price);
    return median_of(values);
  };
  return {middle(&Prices::round_us), middle(&Prices::message_us), middle(&Prices::byte_us), middle(&Prices::answer_us),
          measured[0].unanswered_bytes};
}

}  // namespace tessera::mpi
