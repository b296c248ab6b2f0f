#include "transport/mpi/flow.hpp"

#include <algorithm>
#include <optional>

#include <tessera/pool.hpp>

#include "tensor/copy.hpp"
#include "tensor/loop_nest.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"
#include "transport/mpi/eager.hpp"

namespace tessera::mpi {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int kWindow = 8;  // pieces on their way, by peer and direction
// Of those that come into memory of our own, to be put in place: so few that it stays in the cache.
constexpr int kStagedWindow = 2;

Chunks pieces_of(const Box& box, DType dtype) { return {box.extent, kPieceBytes / size_bytes(dtype)}; }

bool comes_before(int tensor, const Box& box, int other_tensor, const Box& other) {
  if (tensor != other_tensor) return tensor < other_tensor;
  const auto less = [](const Dims& a, const Dims& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  };
  if (!(box.offset == other.offset)) return less(box.offset, other.offset);
  return less(box.extent, other.extent);
}

// Rows of so many bytes, that many bytes from one to the next.
struct StridedRows {
  int64_t count = 1, bytes = 0, stride = 0;
};

// The view's elements in their order; none: they are no such rows.
std::optional<StridedRows> rows_of(const ConstView& view) {
  StridedRows rows{1, size_bytes(view.dtype), 0};
  for (size_t d = view.shape.size(); d-- > 0;) {
    const int64_t extent = view.shape[d], stride = view.strides[d] * size_bytes(view.dtype);
    if (extent == 1) continue;
    if (rows.count == 1 && stride == rows.bytes) {
      rows.bytes *= extent;
    } else if (rows.count == 1 && stride > rows.bytes) {
      rows.count = extent;
      rows.stride = stride;
    } else if (rows.count > 1 && stride == rows.stride * rows.count) {
      rows.count *= extent;
    } else {
      return std::nullopt;
    }
  }
  return rows;
}

// What a message must have for its type to be worth making.
constexpr int64_t kFewestTypedBytes = 64 << 10;

int64_t bytes_of(const ConstView& view) { return view.elements() * size_bytes(view.dtype); }

// Recycled: a piece is so large that new memory would be the system's, and dearer than what is copied.
std::shared_ptr<std::byte> buffer_of(int64_t bytes) {
  return std::static_pointer_cast<std::byte>(pool::allocate(bytes));
}

// Rows that this MPI sends as they lie faster than they are packed.
std::optional<StridedRows> typed_rows(const Api& api, const ConstView& view) {
  if (api.isend_rows == nullptr || is_row_major(view) || bytes_of(view) < kFewestTypedBytes) return std::nullopt;
  const auto rows = rows_of(view);
  return rows && rows->bytes >= api.fewest_row_bytes ? rows : std::nullopt;
}

}  // namespace

Flow::Flow(World& world, CommHandle comm, int rank, const Move& move, std::span<const Tensor> mine,
           const PeerTensors& peers, int64_t eager_bytes)
    : world_(world),
      comm_(comm),
      rank_(rank),
      move_(move),
      mine_(mine),
      peers_(&peers),
      total_bytes_(move.received_bytes(mine)),
      sends_(by_peer(list_sends())),
      receives_(by_peer(list_receives())) {
  cut_into_parts(eager_bytes);
  list_units();
  find_flat();
}

void Flow::start(std::span<const Tensor> mine, const PeerTensors& peers) {
  mine_ = mine;
  peers_ = &peers;
  for (auto* queues : {&sends_, &receives_}) {
    for (Queue& queue : *queues) {
      queue.at = 0;
      queue.pending = queue.staged = 0;
      for (Lane& lane : queue.lanes) {
        lane.next = 0;
        lane.left = lane.parts;
        lane.buffer.reset();
      }
    }
  }
  for (Unit& unit : units_) unit.missing = unit.remote;
  taken_ = 0;
  units_done_ = 0;
  post_all(false);
  post_all(true);
}

// What is left then keeps the tensors, so that whatever it still touches is nobody else's; only a view of the caller's memory
// cannot be kept so.
void Flow::end() {
  if (requests_.empty()) return;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (!pending_[i].is_send && requests_[i] != 0) world_.api().cancel(requests_[i]);
  }
  world_.settle(requests_, Clock::now() + kSettling);
  const auto tensors = std::make_shared<std::vector<Tensor>>(mine_.begin(), mine_.end());
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == 0) continue;
    world_.keep(requests_[i], std::pair(tensors, std::move(pending_[i].buffer)));
  }
  requests_.clear();
  pending_.clear();
}

// What was said in the record itself is there already.
bool Flow::travels(int rank, int tensor) const {
  const Announced* announced = (*peers_)[static_cast<size_t>(rank)][static_cast<size_t>(tensor)];
  return announced == nullptr || announced->inlined == nullptr;
}

// Each begins with another one, and both ends of a queue have its lanes in one order.
std::vector<Flow::Queue> Flow::by_peer(std::vector<Lane> lanes) const {
  const auto ranks = static_cast<int>(peers_->size());
  const auto distance = [&](const Lane& lane) { return (lane.peer + ranks - rank_) % ranks; };
  std::stable_sort(lanes.begin(), lanes.end(), [&](const Lane& a, const Lane& b) {
    return a.peer != b.peer ? distance(a) < distance(b) : comes_before(a.tensor, a.box, b.tensor, b.box);
  });
  std::vector<Queue> queues;
  for (Lane& lane : lanes) {
    if (queues.empty() || queues.back().peer != lane.peer) queues.push_back({lane.peer, {}, 0, 0, 0});
    queues.back().lanes.push_back(std::move(lane));
  }
  return queues;
}

std::vector<Flow::Lane> Flow::list_sends() const {
  std::vector<Lane> lanes;
  for (const Send& send : move_.sends) {
    if (!travels(rank_, send.tensor) || send.box.elements() == 0) continue;
    const DType dtype = mine_[static_cast<size_t>(send.tensor)].dtype();
    lanes.push_back(
        {send.rank, send.tensor, send.box, 0, 0, pieces_of(send.box, dtype), send.box.elements() * size_bytes(dtype)});
  }
  return lanes;
}

std::vector<Flow::Lane> Flow::list_receives() const {
  std::vector<Lane> lanes;
  for (size_t r = 0; r < move_.receives.size(); ++r) {
    const Receive& receive = move_.receives[r];
    for (size_t t = 0; t < receive.terms; ++t) {
      const Term& term = move_.terms[receive.first_term + t];
      if (term.rank == rank_ || !travels(term.rank, term.tensor) || term.box.elements() == 0) continue;
      const DType dtype = mine_[static_cast<size_t>(receive.tensor)].dtype();
      lanes.push_back({term.rank, term.tensor, term.box, r, t, pieces_of(term.box, dtype),
                       term.box.elements() * size_bytes(dtype)});
    }
  }
  return lanes;
}

// Where that is so of all that goes from one to the other, and back: both ends cut alike then. Beside a long message parts
// would be more work for the one that waits for it: it copies them itself, where else the other one reads.
void Flow::cut_into_parts(int64_t eager_bytes) {
  std::vector<int64_t> most(peers_->size(), 0);  // by peer, of both ways
  for (const auto* queues : {&sends_, &receives_}) {
    for (const Queue& queue : *queues) {
      int64_t bytes = 0;
      for (const Lane& lane : queue.lanes) bytes += lane.bytes;
      int64_t& so_far = most[static_cast<size_t>(queue.peer)];
      so_far = std::max(so_far, bytes);
    }
  }
  for (auto* queues : {&sends_, &receives_}) {
    for (Queue& queue : *queues) {
      if (most[static_cast<size_t>(queue.peer)] > kMostEagerParts * eager_bytes) continue;
      for (Lane& lane : queue.lanes) {
        if (lane.bytes <= eager_bytes || lane.pieces.count() != 1) continue;
        lane.part_bytes = eager_bytes;
        lane.parts = (lane.bytes + eager_bytes - 1) / eager_bytes;
      }
    }
  }
}

// The terms of one result lie in the same tensor on every rank, and in the order of the results: so what is combined next
// comes next from every peer.
void Flow::list_units() {
  first_unit_.assign(move_.receives.size(), SIZE_MAX);
  std::vector<const Lane*> firsts;
  std::vector<size_t> remote(move_.receives.size(), 0);
  for (const Queue& queue : receives_) {
    for (const Lane& lane : queue.lanes) {
      if (move_.receives[lane.receive].is_copy()) continue;
      if (remote[lane.receive]++ == 0) firsts.push_back(&lane);
    }
  }
  std::stable_sort(firsts.begin(), firsts.end(), [&](const Lane* a, const Lane* b) {
    if (a->tensor != b->tensor) return a->tensor < b->tensor;
    const Receive &first = move_.receives[a->receive], &second = move_.receives[b->receive];
    return comes_before(first.tensor, first.box, second.tensor, second.box);
  });
  for (const Lane* lane : firsts) {
    first_unit_[lane->receive] = units_.size();
    for (int64_t piece = 0; piece < lane->pieces.count(); ++piece) {
      units_.push_back({lane->receive, piece, remote[lane->receive], 0, {}});
      units_.back().terms.resize(move_.receives[lane->receive].terms);
    }
  }
}

// Most of what moves lies in one piece at both ends: where, is found out once and not in every call. Strides are part of what
// ranks say, so a later call of this plan has the same.
void Flow::find_flat() {
  const auto place_in = [](const Tensor& tensor, const ConstView& view) {
    return is_row_major(view) ? view.data - tensor.data() : kNotFlat;
  };
  for (Queue& queue : sends_) {
    for (Lane& lane : queue.lanes) {
      const Tensor& tensor = mine_[static_cast<size_t>(lane.tensor)];
      lane.flat_at = lane.pieces.count() == 1 ? place_in(tensor, view_of(tensor).box(lane.box)) : kNotFlat;
    }
  }
  for (Queue& queue : receives_) {
    for (Lane& lane : queue.lanes) {
      const Receive& receive = move_.receives[lane.receive];
      if (!receive.is_copy() || lane.pieces.count() != 1) continue;
      const Tensor& tensor = mine_[static_cast<size_t>(receive.tensor)];
      const View to = target_of(receive);
      lane.flat_at = place_in(tensor, to);
      if (lane.flat_at != kNotFlat) continue;
      const ConstView from{to.data, to.dtype, to.shape, row_major(to.shape)};
      lane.placing = {to.data - tensor.data(), PreparedCopy(to, from, total_bytes_)};
    }
  }
  for (size_t r = 0; r < move_.receives.size(); ++r) {
    if (const auto local = local_of(move_.receives[r])) locals_.push_back(*local);
    else others_.push_back(r);
  }
}

std::optional<Flow::Local> Flow::local_of(const Receive& receive) const {
  if (!receive.is_copy() || move_.terms[receive.first_term].rank != rank_) return std::nullopt;
  const Term& term = move_.terms[receive.first_term];
  const auto from = static_cast<size_t>(term.tensor), to = static_cast<size_t>(receive.tensor);
  const ConstView source = own_or_inlined(term);
  const View target = target_of(receive);
  return Local{from, to, source.data - mine_[from].data(), target.data - mine_[to].data(),
               PreparedCopy(target, source, total_bytes_)};
}

View Flow::target_of(const Receive& receive) const {
  return view_of(mine_[static_cast<size_t>(receive.tensor)]).box(receive.box);
}

ConstView Flow::own_or_inlined(const Term& term) const {
  const auto number = static_cast<size_t>(term.tensor);
  if (term.rank == rank_) return view_of(mine_[number]).box(term.box);
  return (*peers_)[static_cast<size_t>(term.rank)][number]->inlined_view().box(term.box);
}

void Flow::do_local() {
  for (const Local& local : locals_) {
    local.copy.run(mine_[local.to].data() + local.to_at, mine_[local.from].data() + local.from_at);
  }
  std::vector<ConstView> terms;
  for (const size_t r : others_) {
    const Receive& receive = move_.receives[r];
    terms.clear();
    for (size_t t = 0; t < receive.terms; ++t) {
      const Term& term = move_.terms[receive.first_term + t];
      if (term.rank != rank_ && travels(term.rank, term.tensor)) break;
      terms.push_back(own_or_inlined(term));
    }
    if (terms.size() != receive.terms) continue;
    if (receive.is_copy()) copy_box(target_of(receive), terms[0], total_bytes_);
    else reduce_boxes(target_of(receive), terms, receive.reduction, total_bytes_, receive.axes, receive.read_next);
  }
}

RequestHandle Flow::post_send(Lane& lane, Pending& pending) {
  const Api& api = world_.api();
  RequestHandle request = 0;
  auto [at, bytes] = lane.part(lane.next);
  const Tensor& tensor = mine_[static_cast<size_t>(lane.tensor)];
  const std::byte* memory = nullptr;
  if (lane.flat_at != kNotFlat) {
    memory = tensor.data() + lane.flat_at;
  } else if (lane.buffer != nullptr) {
    pending.buffer = lane.buffer;
    memory = lane.buffer.get();
  } else {
    const ConstView from = view_of(tensor).box(lane.box).box(lane.pieces[lane.piece()]);
    if (const auto rows = lane.parts == 1 ? typed_rows(api, from) : std::nullopt) {
      world_.check(api.isend_rows(from.data, rows->count, rows->bytes, rows->stride, lane.peer, kData, comm_, &request),
                   "MPI_Isend");
      return request;
    }
    memory = from.data;
    if (lane.parts == 1) bytes = bytes_of(from);
    if (!is_row_major(from)) {
      lane.buffer = pending.buffer = buffer_of(bytes_of(from));
      memory = pending.buffer.get();
      copy_box({pending.buffer.get(), from.dtype, from.shape, row_major(from.shape)}, from);
    }
  }
  if (lane.parts == 1) lane.buffer.reset();
  world_.check(api.isend(memory + at, bytes, lane.peer, kData, comm_, &request), "MPI_Isend");
  return request;
}

RequestHandle Flow::post_receive(Lane& lane, Pending& pending) {
  const Receive& receive = move_.receives[lane.receive];
  auto [at, bytes] = lane.part(lane.next);
  std::byte* memory = nullptr;
  if (lane.flat_at != kNotFlat) {
    memory = mine_[static_cast<size_t>(receive.tensor)].data() + lane.flat_at;
  } else if (lane.pieces.count() == 1) {
    if (lane.next == 0) lane.buffer = buffer_of(lane.bytes);
    pending.buffer = lane.buffer;
    memory = lane.buffer.get();
  } else {
    const View to = target_of(receive).box(lane.pieces[lane.next]);
    bytes = bytes_of(to);
    memory = to.data;
    if (!receive.is_copy() || !is_row_major(to)) {
      pending.buffer = buffer_of(bytes);
      memory = pending.buffer.get();
    }
  }
  RequestHandle request = 0;
  world_.check(world_.api().irecv(memory + at, bytes, lane.peer, kData, comm_, &request), "MPI_Irecv");
  return request;
}

// Whether a term of that unit is still to be asked for there.
bool Flow::owes(const Queue& queue, const Unit& unit) const {
  return std::any_of(queue.lanes.begin() + static_cast<ptrdiff_t>(queue.at), queue.lanes.end(), [&](const Lane& lane) {
    return lane.receive == unit.receive && lane.piece() <= unit.piece && lane.next < lane.messages();
  });
}

// The next piece of a queue. False: none may go yet.
bool Flow::post(size_t number, bool is_send) {
  Queue& queue = (is_send ? sends_ : receives_)[number];
  while (queue.at < queue.lanes.size() && queue.lanes[queue.at].next == queue.lanes[queue.at].messages()) ++queue.at;
  if (queue.at == queue.lanes.size() || queue.pending == kWindow) return false;
  Lane& lane = queue.lanes[queue.at];
  const bool goes_on = lane.parts > 1 && lane.next > 0;
  if (queue.staged == kStagedWindow && !goes_on) return false;
  size_t unit = SIZE_MAX;
  if (!is_send && !move_.receives[lane.receive].is_copy()) {
    unit = first_unit_[lane.receive] + static_cast<size_t>(lane.piece());
    // One of a peer goes on where what is to be combined next may wait for what comes behind it.
    if (unit >= units_done_ + kWindow && (queue.pending > 0 || !owes(queue, units_[units_done_]))) return false;
  }
  Pending pending{is_send, goes_on, number, queue.at, lane.next, unit, nullptr};
  requests_.push_back(is_send ? post_send(lane, pending) : post_receive(lane, pending));
  if (is_staged(pending)) ++queue.staged;
  pending_.push_back(std::move(pending));
  if (++lane.next == lane.messages()) lane.buffer.reset();  // those under way have it
  ++queue.pending;
  return true;
}

void Flow::post_all(bool is_send) {
  for (size_t i = 0; i < (is_send ? sends_ : receives_).size(); ++i) {
    while (post(i, is_send)) {}
  }
}

void Flow::take(Pending& pending, int64_t bytes) {
  Queue& queue = (pending.is_send ? sends_ : receives_)[pending.queue];
  --queue.pending;
  if (is_staged(pending)) --queue.staged;
  ++taken_;
  if (pending.is_send) return;
  Lane& lane = queue.lanes[pending.lane];
  const bool in_one = lane.pieces.count() == 1;
  if (in_one) check_length(lane.peer, bytes, lane.part(pending.message).second);
  if (lane.flat_at != kNotFlat || --lane.left > 0) return;
  const Receive& receive = move_.receives[lane.receive];
  if (lane.placing) {
    std::byte* const to = mine_[static_cast<size_t>(receive.tensor)].data() + lane.placing->first;
    return lane.placing->second.run(to, pending.buffer.get());
  }
  const View to = target_of(receive).box(lane.pieces[in_one ? 0 : pending.message]);
  if (!in_one) check_length(lane.peer, bytes, bytes_of(to));
  if (!receive.is_copy()) {
    Unit& unit = units_[pending.unit];
    unit.terms[lane.term] = std::move(pending.buffer);
    if (--unit.missing == 0) combine(unit);
    while (units_done_ < units_.size() && units_[units_done_].missing == 0) ++units_done_;
  } else if (pending.buffer != nullptr) {
    copy_box(to, {pending.buffer.get(), to.dtype, to.shape, row_major(to.shape)}, total_bytes_);
  }
}

void Flow::combine(Unit& unit) {
  const Receive& receive = move_.receives[unit.receive];
  const View whole = target_of(receive);
  const Box piece = pieces_of(receive.box, whole.dtype)[unit.piece];
  const View to = whole.box(piece);
  std::vector<ConstView> terms;
  for (size_t t = 0; t < receive.terms; ++t) {
    if (unit.terms[t] != nullptr) terms.push_back({unit.terms[t].get(), to.dtype, to.shape, row_major(to.shape)});
    else terms.push_back(own_or_inlined(move_.terms[receive.first_term + t]).box(piece));
  }
  reduce_boxes(to, terms, receive.reduction, total_bytes_, receive.axes, receive.read_next);
  for (Buffer& term : unit.terms) term.reset();
}

bool Flow::is_over() const {
  if (!requests_.empty()) return false;
  if (units_done_ < units_.size())
    throw Error("a sum waits for a part of it that nobody sends: this is a fault of tessera's");
  return true;
}

bool Flow::progress() {
  if (requests_.empty()) return is_over();
  world_.check(world_.test_some(requests_, over_), "MPI_Testsome");
  if (over_.count == 0) return false;
  const size_t units_done = units_done_;
  touched_.clear();
  for (size_t i = 0; i < over_.count; ++i) {
    Pending& pending = pending_[static_cast<size_t>(over_.which[i])];
    take(pending, over_.bytes[i]);
    touched_.emplace_back(pending.queue, pending.is_send);
  }
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == 0) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      pending_[kept] = std::move(pending_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  pending_.resize(kept);
  if (units_done != units_done_) post_all(false);
  for (const auto& [queue, is_send] : touched_) {
    while (post(queue, is_send)) {}
  }
  return is_over();
}

int Flow::waits_for() const {
  for (const Pending& pending : pending_) {
    if (!pending.is_send) return receives_[pending.queue].peer;
  }
  return pending_.empty() ? rank_ : sends_[pending_[0].queue].peer;
}

}  // namespace tessera::mpi
