#include <tessera/comm.hpp>

#include "comm/comm_state.hpp"

namespace tessera {

using detail::CommState;

Comm::Comm(std::shared_ptr<CommState> state) : state_(std::move(state)) {}
Comm::Comm(Comm&&) noexcept = default;

Comm& Comm::operator=(Comm&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Comm::~Comm() {
  // In a forked child its locks may be held, and its conditions waited for, by
  // threads that are not there.
  if (state_ != nullptr && state_->in_forked_child()) new std::shared_ptr<CommState>(std::move(state_));
}

CommState& Comm::state() const {
  if (state_ == nullptr) throw Error("the communicator is undefined: this rank is in no such group");
  return *state_;
}

int Comm::rank() const { return state().rank(); }
int Comm::size() const { return state().size(); }
const std::string& Comm::name() const { return state().name(); }
std::chrono::nanoseconds Comm::timeout() const { return state().timeout(); }
void Comm::set_timeout(std::chrono::nanoseconds timeout) { state().set_timeout(timeout); }

void Comm::set_remedy(const std::string& text) { state().set_remedy(text); }

Comm Comm::shrink() {
  CommState& s = state();
  s.check_not_forked();
  if (!s.transport().aborted()) throw Error(fmt::format("shrink(): communicator \"{}\" is alive", name()));
  auto rest = s.transport().survivors(s.deadline());
  if (rest == nullptr) {
    throw AbortedError(fmt::format("shrink(): rank {} came too late: the others have gone on without it", rank()));
  }
  return Comm(std::make_shared<CommState>(std::move(rest), name() + "'", timeout()));
}

void Comm::abort(const std::string& reason) {
  state().check_not_forked();
  state().abort(fmt::format("communicator \"{}\" was aborted by rank {}: {}", name(), rank(), reason));
}

Tensor Comm::allocate(DType dtype, const Dims& shape) const {
  state().check_not_forked();
  return state().transport().allocate(dtype, shape);
}

std::string Comm::transport() const { return state().transport().describe(); }

Stats Comm::stats() const {
  CommState& s = state();
  const Transport::Traffic traffic = s.transport().traffic();
  std::lock_guard lock(s.guard());
  Stats stats = s.stats;
  stats.bytes_attached = traffic.bytes_attached - s.traffic_before.bytes_attached;
  stats.bytes_staged = traffic.bytes_staged - s.traffic_before.bytes_staged;
  stats.heap_misses = traffic.heap_misses - s.traffic_before.heap_misses;
  stats.bytes_between_hosts += traffic.bytes_between_hosts - s.traffic_before.bytes_between_hosts;
  stats.bytes_within_host += traffic.bytes_within_host - s.traffic_before.bytes_within_host;
  return stats;
}

void Comm::reset_stats() {
  CommState& s = state();
  const Transport::Traffic traffic = s.transport().traffic();
  std::lock_guard lock(s.guard());
  s.stats = {};
  ++s.resets;
  s.traffic_before = traffic;
}

std::vector<CallRecord> Comm::recent_calls() const {
  std::lock_guard lock(state().guard());
  return state().recorder.calls();
}

std::string Comm::chrome_trace() const { return tessera::chrome_trace(recent_calls(), name(), rank()); }

}  // namespace tessera
