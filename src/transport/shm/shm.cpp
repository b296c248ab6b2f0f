#include "transport/shm/shm.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "comm/agreement.hpp"
#include "tensor/cache.hpp"
#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"
#include "transport/chunks.hpp"
#include "transport/shm/ready_reads.hpp"

namespace tessera::shm {
namespace {

// How long an owner that gives up waits for a reader that has stopped: what that one reads late it throws away.
constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(1);

// What is fetched of all terms at once: half of a usual second-level cache, so that it stays there. Each call into the
// kernel takes some 5 us besides, which smaller pieces pay more often.
constexpr int64_t kReduceBytes = int64_t{512} << 10;
constexpr int64_t kReadBytes = int64_t{256} << 10;

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int index_of(const std::vector<int>& members, int rank) {
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

uint64_t place_in(const Segment& segment, const void* data) {
  return static_cast<uint64_t>(static_cast<const std::byte*>(data) - segment.all().data());
}

void* board_in(const Segment& segment, uint64_t at, size_t members) {
  const size_t bytes = Board::bytes(static_cast<int>(members));
  if (at % alignof(Slot) != 0 || at > segment.all().size() || bytes > segment.all().size() - at) {
    throw Error("a peer's record is damaged: its board lies outside of the shared memory");
  }
  return segment.all().data() + at;
}

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<World> world, Probe probe)
    : ShmTransport(world, all_ranks(world->ranks()), place_in(world->segment(), world->segment().board()),
                   std::move(probe)) {}

ShmTransport::ShmTransport(std::shared_ptr<World> world, std::vector<int> members, uint64_t board_at, Probe probe)
    : BoardTransport(Board(board_in(world->segment(), board_at, members.size()), index_of(members, world->rank()),
                           static_cast<int>(members.size()), kPatience, world->neighbours()),
                     std::move(probe)),
      world_(std::move(world)),
      members_(std::move(members)),
      board_at_(board_at),
      attachable_(all_can_attach()) {
  mail_ = std::make_unique<Mail>(Postal{world_, board(), members_, board_at_,
                                        [this](const Tensor& tensor, std::unique_ptr<Mirror>& mirror) {
                                          const Handle handle = announce(tensor, Use::copied, mirror);
                                          if (mirror != nullptr) mirror->fill();
                                          return handle;
                                        },
                                        [this](DType dtype, const Dims& shape) { return allocate(dtype, shape); },
                                        bytes_attached_});
  world_->enroll(*this);
}

ShmTransport::~ShmTransport() {
  mail_.reset();
  world_->dismiss(*this);
  board().let_go();
}

bool ShmTransport::all_can_attach() const {
  return std::all_of(members_.begin(), members_.end(),
                     [&](int member) { return world_->can_read(member, world_->rank()); });
}

size_t ShmTransport::inline_bytes(const Tensor& tensor, bool alike) const {
  const bool shared = alike || world_->heap().offset_of(tensor.data()) >= 0;
  return shared ? BoardTransport::inline_bytes(tensor, alike) : kInlineUnsharedBytes;
}

Handle ShmTransport::handle_of(const Tensor& tensor, Use use) {
  std::unique_ptr<Mirror> mirror;
  const Handle handle = announce(tensor, use, mirror);
  if (mirror != nullptr) announcing_.push_back(std::move(mirror));
  return handle;
}

Handle ShmTransport::announce(const Tensor& tensor, Use use, std::unique_ptr<Mirror>& mirror) {
  const auto address = reinterpret_cast<uint64_t>(tensor.data());
  if (tensor.bytes() == 0 || board().size() == 1) return {{address, 0}};
  const int64_t offset = world_->heap().offset_of(tensor.data());
  const Way way = world_->way();
  if (offset >= 0 && (way == Way::choose || way == Way::in_place)) {
    return {{address, kShared | static_cast<uint64_t>(offset)}};
  }
  if (way == Way::attach) {
    if (!attachable_)
      throw Error("TESSERA_SHM_WAY is attach, but the system does not let ranks read each other's memory");
    return {{address, 0}};
  }
  // A few elements side by side, such as a column: picking them out is faster here than through the kernel.
  const bool in_rows = tensor.ndim() == 0 || tensor.strides().back() == 1;
  const bool written = use == Use::written, small = tensor.bytes() <= eager_bytes(board().size());
  const bool staged = !written && (small || (use == Use::picked && tensor.bytes() <= kStagedBytes));
  if (way == Way::choose && attachable_ && in_rows && !staged) return {{address, 0}};
  return mirrored(tensor, !written && (small || way == Way::in_place), mirror);
}

Handle ShmTransport::mirrored(const Tensor& tensor, bool now, std::unique_ptr<Mirror>& mirror) {
  const auto address = reinterpret_cast<uint64_t>(tensor.data());
  mirror = Mirror::make(world_->heap(), tensor);
  if (mirror == nullptr) {
    ++heap_misses_;
    if (attachable_) return {{address, 0}};
    throw Error(
        fmt::format("the shared heap has no room to pass {} bytes on; start with a larger one (tessera run "
                    "--heap), or let ranks read each other's memory (tessera doctor says how)",
                    tensor.bytes()));
  }
  if (now) mirror->fill();
  bytes_staged_ += mirror->copied_bytes();
  return {{address, kShared | kMirrored | static_cast<uint64_t>(mirror->offset())}};
}

Tensor ShmTransport::allocate(DType dtype, const Dims& shape) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(volume(shape), size_bytes(dtype), &bytes)) return Tensor::empty(dtype, shape);
  auto block = world_->heap().allocate(bytes);
  if (block != nullptr) return Tensor::view(block.get(), dtype, shape, row_major(shape), block);
  ++heap_misses_;
  world_->heap().check_private(bytes);
  return Tensor::empty(dtype, shape);
}

void ShmTransport::exchange(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                            Deadline deadline) {
  mirrors_.swap(announcing_);  // nobody reads those of the last call any more
  announcing_.clear();
  BoardTransport::exchange(mine, call, records, deadline);
}

void ShmTransport::list_fills(const Move& move, const PeerTensors& peers) {
  fills_.clear();
  if (mirrors_.empty()) return;
  for (const Send& send : move.sends) {
    const Announced* own = peers[static_cast<size_t>(rank())][static_cast<size_t>(send.tensor)];
    if (own == nullptr || (own->where.words[1] & kMirrored) == 0) continue;
    const auto offset = static_cast<int64_t>(own->where.words[1] & kOffsetMask);
    const auto found =
        std::find_if(mirrors_.begin(), mirrors_.end(), [&](const auto& mirror) { return mirror->offset() == offset; });
    if (found == mirrors_.end() || (*found)->full()) continue;
    if (move.sends_alone) (*found)->want(send.box);
    if (std::find(fills_.begin(), fills_.end(), found->get()) == fills_.end()) fills_.push_back(found->get());
  }
}

// False where all is filled.
bool ShmTransport::fill_next() {
  while (!fills_.empty() && fills_.back()->full()) fills_.pop_back();
  if (fills_.empty()) return false;
  fills_.back()->fill_next();
  if (fills_.back()->full()) bytes_staged_ += fills_.back()->copied_bytes();
  return true;
}

// A rank fills its own mirrors before it waits for another's, so no two wait for each other; where its thread has calls of
// several communicators under way, those go on meanwhile.
void ShmTransport::await_filled(const Source& source, Deadline deadline) {
  const uint64_t bytes = needed(source);
  auto& head = *const_cast<MirrorHead*>(source.head);
  const auto filled = [&] { return head.filled.load(std::memory_order_acquire) >= bytes; };
  while (!filled()) {
    if (fill_next() || world_->looks().until(filled)) continue;
    const int peer = index_of(members_, source.rank);
    const auto now = Clock::now();
    if (board().aborted() || board().has_left(peer)) throw PeerTrouble{PeerTrouble::closed, peer};
    if (now >= deadline) throw PeerTrouble{PeerTrouble::timed_out, peer};
    // An abort does not wake this sleeper: it looks around now and then.
    const Deadline until = board().idle(std::min(deadline, now + std::chrono::milliseconds(20)));
    head.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t count = head.count.load(std::memory_order_seq_cst);
    if (!filled()) futex_wait(head.count, count, until);
    head.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

// A reader may be the first to see that a process is gone. The one who watches knows a moment later, and then all agree.
void ShmTransport::lose(int peer) const {
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (!board().has_left(peer) && Clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(100));
  throw PeerTrouble{PeerTrouble::closed, peer};
}

void ShmTransport::read(const View& target, const Source& source, int64_t total_bytes, Deadline deadline) {
  const int64_t bytes = target.elements() * size_bytes(target.dtype);
  switch (source.kind) {
    case Source::direct: copy_box(target, source.view, total_bytes); break;
    case Source::attached:
      bytes_attached_ += bytes;
      if (!read_attached(*world_, target, source, scratch_)) lose(index_of(members_, source.rank));
      break;
    case Source::mirrored: {
      const Chunks chunks(target.shape, kReadBytes / size_bytes(target.dtype));
      for (int64_t i = 0; i < chunks.count(); ++i) {
        const Box box = chunks[i];
        Source piece = source;
        piece.view = source.view.box(box);
        await_filled(piece, deadline);
        copy_box(target.box(box), piece.view, total_bytes);
      }
      break;
    }
  }
}

void ShmTransport::reduce(const View& target, std::span<const Source> sources, const Receive& receive,
                          int64_t total_bytes, Deadline deadline) {
  std::vector<ConstView> terms;
  size_t fetched = 0;
  for (const Source& source : sources) {
    fetched += source.kind == Source::direct ? 0 : 1;
    terms.push_back(source.view);
  }
  if (fetched == 0) {
    reduce_boxes(target, terms, receive.reduction, total_bytes, receive.axes, receive.read_next);
    return;
  }
  term_scratch_.resize(std::max(term_scratch_.size(), sources.size()));
  const int64_t size = size_bytes(target.dtype);
  const Chunks chunks(target.shape, std::max<int64_t>(kReduceBytes / static_cast<int64_t>(fetched) / size, 1));
  for (int64_t i = 0; i < chunks.count(); ++i) {
    const Box box = chunks[i];
    for (size_t t = 0; t < sources.size(); ++t) {
      terms[t] = sources[t].view.box(box);
      if (sources[t].kind == Source::direct) continue;
      auto& scratch = term_scratch_[t];
      scratch.resize(std::max(scratch.size(), static_cast<size_t>(box.elements() * size)));
      Source piece = sources[t];
      piece.view = terms[t];
      if (piece.kind == Source::mirrored) {
        await_filled(piece, deadline);
        continue;  // read where it is
      }
      const View here{scratch.data(), target.dtype, box.extent, row_major(box.extent)};
      read(here, piece, 0, deadline);
      terms[t] = here;
    }
    reduce_boxes(target.box(box), terms, receive.reduction, total_bytes, receive.axes, receive.read_next);
  }
}

void ShmTransport::receive_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers,
                               Deadline deadline) {
  auto& prepared = move.prepared.what;
  if (prepared != nullptr && mirrors_.empty()) {
    if (static_cast<ReadyReads*>(prepared.get())->run(*world_, members_, mapper_, mine, peers)) return;
  }
  list_fills(move, peers);
  const int64_t total_bytes = move.received_bytes(mine);
  for (const Receive& receive : move.receives) {
    const View target = view_of(mine[static_cast<size_t>(receive.tensor)]).box(receive.box);
    sources_.clear();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      const Term& term = move.terms[t];
      const auto number = static_cast<size_t>(term.tensor);
      if (term.rank == rank()) {
        while (receive.is_copy() && fill_next()) {}  // peers wait for that, and for this rank's own part nobody does
        sources_.push_back({Source::direct, world_->rank(), view_of(mine[number]).box(term.box), nullptr, nullptr});
        continue;
      }
      const Announced& there = *peers[static_cast<size_t>(term.rank)][number];
      const int peer = world_rank(term.rank);
      sources_.push_back(locate(world_->segment().arena(peer), peer, there, term.box));
      const Source& source = sources_.back();
      if (source.kind == Source::direct && there.inlined == nullptr)
        mapper_.map(*world_, source.rank, end_of(source.view));
    }
    if (receive.is_copy()) read(target, sources_[0], total_bytes, deadline);
    else reduce(target, sources_, receive, total_bytes, deadline);
  }
  while (fill_next()) {}
  if (prepared == nullptr && total_bytes < kNearBytes && ReadyReads::fits(move, rank(), peers)) {
    prepared = std::make_shared<ReadyReads>(move, rank(), mine, peers);
  }
}

std::unique_ptr<Ticket> ShmTransport::post_send(const Tensor& tensor, int to, int64_t tag, const std::string& site) {
  return mail_->send(tensor, to, tag, site);
}

std::unique_ptr<Ticket> ShmTransport::post_receive(const Tensor& out, int from, int64_t tag, const std::string& site,
                                                   bool started) {
  return mail_->receive(out, from, tag, site, started);
}

void ShmTransport::ring_members() const {
  for (const int member : members_) world_->segment().ring(member);
}

void ShmTransport::leave(const std::string& farewell) noexcept {
  board().leave(farewell);
  ring_members();
}

Verdict ShmTransport::abort(const Verdict& verdict) noexcept {
  board().abort(verdict.kind, verdict.text);
  ring_members();
  Verdict first;
  board().verdict(first.kind, first.text);
  return first;
}

std::string ShmTransport::farewell(int peer) const {
  return board().left(peer) == Left::dead ? world_->obituary(world_rank(peer)) : board().farewell(peer);
}

void ShmTransport::on_death(int dead) {
  const int member = index_of(members_, dead);
  if (member < board().size()) board().declare_dead(member);
}

void ShmTransport::on_launcher_gone() {
  board().abort(static_cast<uint32_t>(ErrorKind::aborted), "the launcher is gone, so the job is over");
}

uint64_t ShmTransport::make_board(int size) {
  auto block = world_->heap().allocate(static_cast<int64_t>(Board::bytes(size)));
  if (block == nullptr) {
    throw Error(
        fmt::format("the shared heap has no room for the {} bytes of a communicator; give up tensors, or start "
                    "with a larger one (tessera run --heap)",
                    Board::bytes(size)));
  }
  Board::initialise(block.get(), size);
  const uint64_t at = place_in(world_->segment(), block.get());
  world_->keep_board(std::move(block));
  return at;
}

// One that nobody has come to hold.
void ShmTransport::drop_board(uint64_t at) {
  reinterpret_cast<BoardHead*>(world_->segment().all().data() + at)->users.store(0);
}

std::unique_ptr<Transport> ShmTransport::born(std::vector<int> members, uint64_t board_at) {
  for (int& member : members) member = world_rank(member);
  return std::make_unique<ShmTransport>(world_, std::move(members), board_at, probe());
}

// The first rank of each group makes its board. One that cannot says why in its record, in place of where the board is: so
// all ranks throw that, and go on in step.
std::unique_ptr<Transport> ShmTransport::subgroup(uint64_t id, std::span<const int> members, Deadline deadline) {
  uint64_t board_at = 0;
  std::string trouble;
  try {
    if (!members.empty() && members[0] == rank()) board_at = make_board(static_cast<int>(members.size()));
  } catch (const std::exception& e) {
    trouble = e.what();
  }
  std::string mine(reinterpret_cast<const char*>(&board_at), sizeof(board_at));
  mine += trouble;
  std::vector<std::span<const std::byte>> records;
  exchange(std::as_bytes(std::span(mine)), id * 256 + static_cast<uint64_t>(OpCode::split_comm), records, deadline);
  for (size_t r = 0; r < records.size(); ++r) {
    if (records[r].size() == sizeof(board_at)) continue;
    if (board_at != 0) drop_board(board_at);
    if (records[r].size() < sizeof(board_at)) throw Error("a peer's record makes no sense: it is damaged");
    const std::string text(reinterpret_cast<const char*>(records[r].data()), records[r].size());
    throw Error(fmt::format("Comm::split: rank {} cannot make its group: {}. No rank has split the communicator", r,
                            text.substr(sizeof(board_at))));
  }
  if (members.empty()) return nullptr;
  std::memcpy(&board_at, records[static_cast<size_t>(members[0])].data(), sizeof(board_at));
  return born({members.begin(), members.end()}, board_at);
}

std::unique_ptr<Transport> ShmTransport::survivors(Deadline deadline) {
  uint64_t board_at = 0, mine = 0;
  const auto heir = [&](int count) -> std::optional<uint64_t> {
    try {
      return mine = make_board(count);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  };
  std::vector<int> members;
  try {
    members = board().survivors(deadline, heir, board_at);
  } catch (...) {
    if (mine != 0) drop_board(mine);
    throw;
  }
  if (mine != 0 && (members.empty() || mine != board_at)) drop_board(mine);  // another's choice stands
  if (members.empty()) return nullptr;
  return born(std::move(members), board_at);
}

Transport::Traffic ShmTransport::traffic() const { return {bytes_attached_, bytes_staged_, heap_misses_}; }

}  // namespace tessera::shm
