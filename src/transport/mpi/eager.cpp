#include "transport/mpi/eager.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tessera::mpi {
namespace {

// Powers of two, less what MPI puts before each message.
constexpr int64_t kHeadBytes = 256;
constexpr int kFirstPower = 11, kLastPower = 17;
constexpr int kLengths = kLastPower - kFirstPower + 1;
int64_t length_of(int number) { return (int64_t{1} << (kFirstPower + number)) - kHeadBytes; }

// Messages of all lengths to one rank, and from another.
class Trial {
 public:
  Trial(World& world, CommHandle comm) : world_(world), comm_(comm), requests_(kLengths, 0) {}
  ~Trial() {
    for (const RequestHandle request : requests_) {
      if (request != 0) world_.keep(request, memory_);
    }
  }
  Trial(const Trial&) = delete;

  void send(int to) {
    for (int number = 0; number < kLengths; ++number) {
      RequestHandle& request = requests_[static_cast<size_t>(number)];
      world_.check(world_.api().isend(memory_->data(), length_of(number), to, kData, comm_, &request), "MPI_Isend");
    }
  }

  // How many of the shortest are over.
  int count_taken() {
    constexpr int kLooks = 100;
    for (int looks = 0; looks < kLooks; ++looks) look();
    const auto first =
        std::find_if(requests_.begin(), requests_.end(), [](RequestHandle request) { return request != 0; });
    return static_cast<int>(first - requests_.begin());
  }

  void receive(int from, Deadline deadline) {
    std::byte* place = memory_->data() + memory_->size() / 2;
    for (int number = 0; number < kLengths; place += length_of(number++)) {
      RequestHandle& request = requests_.emplace_back(0);
      world_.check(world_.api().irecv(place, length_of(number), from, kData, comm_, &request), "MPI_Irecv");
    }
    for (Patience patience; !is_over(); patience.pause()) {
      look();
      if (patience.should_look_around() && Clock::now() >= deadline) throw PeerTrouble{PeerTrouble::timed_out, from};
    }
  }

 private:
  void look() { world_.check(world_.test_some(requests_, over_), "MPI_Testsome"); }
  bool is_over() const {
    return std::all_of(requests_.begin(), requests_.end(), [](RequestHandle request) { return request == 0; });
  }

  World& world_;
  const CommHandle comm_;
  // What goes, and what comes: nobody reads it.
  const std::shared_ptr<std::vector<std::byte>> memory_ =
      std::make_shared<std::vector<std::byte>>(2 * static_cast<size_t>(length_of(kLengths)));
  std::vector<RequestHandle> requests_;
  World::Over over_;
};

}  // namespace

int64_t find_eager_bytes(World& world, CommHandle comm, const std::vector<int>& circle, int rank, Deadline deadline,
                         const std::function<std::vector<std::string>(const std::string&)>& tell_all) {
  if (world.api().all_gather_v == nullptr || circle.size() < 2) return 0;  // no MPI, but an engine without such a limit
  const auto me = std::find(circle.begin(), circle.end(), rank);
  const size_t place = static_cast<size_t>(me - circle.begin()), count = circle.size();
  Trial trial(world, comm);
  std::string mine;
  // Some messages are over only when the receiver has seen them: it has, when it has answered what came after them. Nobody
  // asks for them before all senders have looked.
  if (me != circle.end()) trial.send(circle[(place + count - 1) % count]);
  for (int i = 0; i < 2; ++i) tell_all("");
  if (me != circle.end()) mine = std::to_string(trial.count_taken());
  const std::vector<std::string> all = tell_all(mine);
  int least = kLengths;
  for (const int r : circle) least = std::min(least, std::atoi(all[static_cast<size_t>(r)].c_str()));
  if (me != circle.end()) trial.receive(circle[(place + 1) % count], deadline);
  return least == 0 || least == kLengths ? 0 : length_of(least - 1);
}

}  // namespace tessera::mpi
