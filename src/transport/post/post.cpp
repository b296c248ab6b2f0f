#include "transport/post/post.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "transport/post/line.hpp"

namespace tessera::post {
namespace {

bool fits(int wanted, int32_t wanted_tag, int from, int64_t tag) {
  return (wanted < 0 || wanted == from) && (wanted_tag < 0 || wanted_tag == tag);
}

// Not filled with zeros: all of it is written.
std::unique_ptr<std::byte[]> room(int64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

// All members work out the same number for a new communicator, and no other is likely to have it.
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void fill(Request& request, const void* data, int64_t bytes) {
  if (bytes > request.bytes) request.code = kTooLong;
  else if (bytes > 0) std::memcpy(request.data, data, static_cast<size_t>(bytes));
  request.done = true;
}

int Communicator::place_of(int member) const {
  return static_cast<int>(std::find(members.begin(), members.end(), member) - members.begin());
}

Post::Post(std::shared_ptr<Carrier> carrier, int rank, int size) : carrier_(std::move(carrier)), rank_(rank) {
  all_ = &known(0);
  all_->rank = rank;
  all_->members.resize(static_cast<size_t>(size));
  std::iota(all_->members.begin(), all_->members.end(), 0);
  all_->told_lost.resize(static_cast<size_t>(size));
  lines_.resize(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    if (r != rank) lines_[static_cast<size_t>(r)] = std::make_unique<Line>(*this, r);
  }
}

Post::~Post() {
  const Deadline end = Clock::now() + std::chrono::seconds(1);
  for (const auto& line : lines_) {
    if (line != nullptr) line->flush(end);
  }
  for (const auto& line : lines_) {
    if (line != nullptr) line->stop();
  }
  lines_.clear();
}

Communicator& Post::known(uint64_t id) {
  auto& comm = comms_[id];
  if (comm == nullptr) {
    comm = std::make_unique<Communicator>();
    comm->post = this;
    comm->id = id;
  }
  return *comm;
}

Request* Post::send(Communicator& comm, const void* data, int64_t bytes, int to, int32_t tag) {
  const Head head{comm.id, bytes, tag};
  const int peer = comm.members[static_cast<size_t>(to)];
  auto request = std::make_unique<Request>();
  if (peer == rank_) {
    deliver(rank_, head, data);
    request->done = true;
  } else {
    request->done = Line::copies(bytes);
    lines_[static_cast<size_t>(peer)]->send(head, data, request->done ? nullptr : request.get());
  }
  return request.release();
}

Request* Post::receive(Communicator& comm, void* data, int64_t bytes, int from, int32_t tag) {
  auto request = std::make_unique<Request>();
  request->comm = &comm;
  request->data = data;
  request->bytes = bytes;
  request->tag = tag;
  std::lock_guard lock(guard_);
  request->from = from < 0 ? from : comm.members[static_cast<size_t>(from)];
  const auto found = std::find_if(comm.arrived.begin(), comm.arrived.end(), [&](const Arrived& message) {
    return message.taker == nullptr && fits(request->from, tag, message.from, message.tag);
  });
  if (found == comm.arrived.end()) {
    comm.posted.push_back(request.get());
  } else if (found->whole) {
    fill(*request, found->data.get(), found->bytes);
    comm.arrived.erase(found);
  } else {
    request->filling = true;
    found->taker = request.get();
  }
  return request.release();
}

// What is coming in is over soon, well or not.
void Post::cancel(Request& receive) {
  std::lock_guard lock(guard_);
  receive.given_up = true;
  if (receive.filling || receive.done) return;
  receive.comm->posted.remove(&receive);
  receive.done = true;
}

bool Post::find(Communicator& comm, int from, int32_t tag, mpi::Found& found) {
  std::lock_guard lock(guard_);
  const int peer = from < 0 ? from : comm.members[static_cast<size_t>(from)];
  const auto first = std::find_if(comm.arrived.begin(), comm.arrived.end(), [&](const Arrived& message) {
    return message.taker == nullptr && fits(peer, tag, message.from, message.tag);
  });
  if (first == comm.arrived.end() || !first->whole) return false;
  auto taken = std::make_unique<Arrived>(std::move(*first));
  comm.arrived.erase(first);
  found.source = comm.place_of(taken->from);
  found.tag = taken->tag;
  found.bytes = taken->bytes;
  found.message = reinterpret_cast<uint64_t>(taken.release());
  return true;
}

Post::Target Post::begin(int from, const Head& head) {
  std::lock_guard lock(guard_);
  Target target{.comm = &known(head.comm)};
  auto& posted = target.comm->posted;
  const auto found = std::find_if(posted.begin(), posted.end(), [&](const Request* request) {
    return fits(request->from, request->tag, from, head.tag);
  });
  if (found != posted.end()) {
    target.request = *found;
    target.request->filling = true;
    posted.erase(found);
    if (head.bytes > target.request->bytes) {
      target.request->code = kTooLong;
      target.waste = room(head.bytes);
    }
    return target;
  }
  auto& arrived = target.comm->arrived;
  target.aside =
      arrived.insert(arrived.end(), Arrived{from, static_cast<int32_t>(head.tag), room(head.bytes), head.bytes});
  return target;
}

// Not well: the rest of it never comes, and whoever waits for it has to give it up.
void Post::end(Target& target, bool well) {
  std::lock_guard lock(guard_);
  wake_all();
  Request* request = target.request;
  if (request == nullptr) {
    target.aside->whole = well;
    request = target.aside->taker;
    if (request == nullptr && well) return;
    const Arrived message = std::move(*target.aside);
    target.comm->arrived.erase(target.aside);
    if (request == nullptr) return;
    if (well) return fill(*request, message.data.get(), message.bytes);
  }
  // Who sees that it is done may delete it.
  request->filling = false;
  if (well || request->given_up) request->done = true;
}

void Post::deliver(int from, const Head& head, const void* data) {
  Target target = begin(from, head);
  if (head.bytes > 0) std::memcpy(target.data(), data, static_cast<size_t>(head.bytes));
  end(target, true);
}

Communicator& Post::make(Communicator& parent, uint64_t kind, std::vector<int> members) {
  std::lock_guard lock(guard_);
  Communicator& comm = known(mix(mix(parent.id, ++parent.children), kind));
  comm.members = std::move(members);
  comm.rank = comm.place_of(rank_);
  comm.told_lost.resize(comm.members.size());
  return comm;
}

Communicator& Post::duplicate(Communicator& comm) { return make(comm, UINT64_MAX, comm.members); }

// Nothing is sent and nobody waited for: all know the members of their part already, and what they send before others have
// made it is put aside for it.
Communicator* Post::split(Communicator& comm, std::span<const int32_t> places) {
  std::vector<int> members;
  for (const int32_t place : places) members.push_back(comm.members[static_cast<size_t>(place)]);
  if (!members.empty()) return &make(comm, static_cast<uint64_t>(places[0]), std::move(members));
  ++comm.children;  // it stays in step with those that make one
  return nullptr;
}

void Post::free(Communicator& comm) {
  std::lock_guard lock(guard_);
  comms_.erase(comm.id);
}

void Post::finish(Request& send) {
  std::lock_guard lock(guard_);
  send.done = true;
  wake_all();
}

void Post::wake() {
  std::lock_guard lock(guard_);
  wake_all();
}

void Post::wake_all() {
  ++changes_;
  if (resting_ > 0) changed_.notify_all();
}

// After a moment deadlines and other communicators want to be looked at.
void Post::rest(uint64_t& seen) {
  constexpr std::chrono::milliseconds kMoment(1);
  std::unique_lock lock(guard_);
  ++resting_;
  changed_.wait_for(lock, kMoment, [&] { return changes_ != seen; });
  --resting_;
  seen = changes_;
}

int Post::next_lost(Communicator& comm) {
  for (size_t r = 0; r < comm.members.size(); ++r) {
    const auto& line = lines_[static_cast<size_t>(comm.members[r])];
    if (line == nullptr || !line->lost() || comm.told_lost[r]) continue;
    comm.told_lost[r] = true;
    return static_cast<int>(r);
  }
  return -1;
}

}  // namespace tessera::post
