#include "comm/board.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include <fmt/format.h>

#include <tessera/comm.hpp>

namespace tessera {
namespace {

size_t head_bytes() { return (sizeof(BoardHead) + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot); }

// No call says more. A peer whose memory is damaged must not make this one take all there is.
constexpr size_t kLongestRecord = size_t{1} << 28;

std::atomic<void (*)()> wait_hook{nullptr};

// Counts this rank among those to be woken.
class Sleeper {
 public:
  explicit Sleeper(Slot& slot) : slot_(slot) { slot_.sleepers.fetch_add(1, std::memory_order_seq_cst); }
  ~Sleeper() { slot_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Slot& slot_;
};

bool reached(uint32_t word, uint32_t target) { return static_cast<int32_t>((word & ~1u) - target) >= 0; }

}  // namespace

void set_wait_hook(void (*hook)()) { wait_hook.store(hook, std::memory_order_release); }

bool call_wait_hook() {
  auto* const hook = wait_hook.load(std::memory_order_acquire);
  if (hook != nullptr) hook();
  return hook != nullptr;
}

size_t Board::bytes(int size) { return head_bytes() + static_cast<size_t>(size) * sizeof(Slot); }

void Board::initialise(void* memory, int size) {
  (new (memory) BoardHead)->users.store(static_cast<uint32_t>(size), std::memory_order_relaxed);
  auto* slots = reinterpret_cast<Slot*>(static_cast<std::byte*>(memory) + head_bytes());
  for (int r = 0; r < size; ++r) new (slots + r) Slot;
}

Board::Board(void* memory, int rank, int size, std::chrono::nanoseconds patience, int neighbours)
    : head_(static_cast<BoardHead*>(memory)),
      slots_(reinterpret_cast<Slot*>(static_cast<std::byte*>(memory) + head_bytes())),
      rank_(rank),
      size_(size),
      looks_(std::max(size, neighbours)),
      patience_(patience),
      records_(static_cast<size_t>(size)) {}

void Board::write_record(const Saying& mine, size_t from, uint64_t call) {
  const uint32_t side = announcements_ % 2;
  Slot::Page& page = slots_[rank_].pages[side];
  const bool lies_there = mine.version != 0 && mine.version == written_[side];
  const size_t end = !lies_there ? mine.bytes.size() : mine.payload.empty() ? mine.changed : mine.payload_at;
  if (from < end) {  // a short one has nothing to say while longer ones go on
    std::memcpy(page.record, mine.bytes.data() + from, std::min(kRecordBytes, end - from));
    std::byte* const payload = page.record + mine.payload_at;
    if (!mine.parts.empty()) {
      for (const PayloadPart& part : mine.parts) part.copy.run(payload + part.at, mine.payload.data() + part.at);
    } else if (!mine.payload.empty()) {
      std::memcpy(payload, mine.payload.data(), mine.payload.size());
    }
    written_[side] = mine.bytes.size() <= kRecordBytes ? mine.version : 0;
  }
  page.bytes = mine.bytes.size();
  slots_[rank_].call.store(call, std::memory_order_relaxed);
  // Those who spin need no more. The step is for those who sleep: it is in a line that is mostly this rank's alone.
  page.said.store(steps_ + 2, std::memory_order_release);
}

// Of the page that this rank writes next, the lines that peers have read come back to it meanwhile.
void Board::take_back(uint32_t side, size_t bytes) {
  const auto* page = reinterpret_cast<const std::byte*>(&slots_[rank_].pages[side]);
  prefetch_to_write({page, std::min(offsetof(Slot::Page, record) + bytes, sizeof(Slot::Page))});
}

void Board::note_message(uint64_t call) {
  std::atomic<uint64_t>& now = slots_[rank_].call;
  uint64_t last = now.load(std::memory_order_relaxed);
  while (last / 256 <= call / 256 && !now.compare_exchange_weak(last, call, std::memory_order_relaxed)) {}
}

Waited Board::announce(const Saying& mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                       Deadline deadline, int& culprit) {
  records.resize(static_cast<size_t>(size_));
  // Two records take turns. A rank writes over the one of two announcements ago
  // only after everybody made the last one, and nobody does that before having
  // read the one before. So short ones are read where they are.
  size_t longest = 0;
  for (size_t from = 0; from == 0 || from < longest; from += kRecordBytes) {
    write_record(mine, from, call);
    step();
    const uint32_t side = announcements_++ % 2;
    if (from == 0 && mine.meanwhile != nullptr) mine.meanwhile->meanwhile();
    if (const Waited waited = everyone(side, deadline, culprit); waited != Waited::reached) return waited;
    for (int r = 0; r < size_; ++r) {
      // Read once: what a peer writes over it later cannot change what was checked.
      const Slot::Page& page = slots_[r].pages[side];
      const size_t total = __atomic_load_n(&page.bytes, __ATOMIC_RELAXED);
      records[static_cast<size_t>(r)] = {page.record, total};
      longest = std::max(longest, total);
      if (r != rank_) prefetch_to_read({page.record, std::min(total, kRecordBytes)});
    }
    take_back(1 - side, mine.changed);
    if (longest > kRecordBytes) take_records(records, side, from);
  }
  return Waited::reached;
}

// One of them is long: of each the bytes from `from` on are copied, as its owner writes the next ones over them.
void Board::take_records(std::vector<std::span<const std::byte>>& records, uint32_t side, size_t from) {
  for (size_t r = 0; r < records.size(); ++r) {
    const size_t total = records[r].size();
    if (total > kLongestRecord) throw Error(fmt::format("rank {}'s record makes no sense: it is damaged", r));
    auto& whole = records_[r];
    if (whole.size() != total) whole.resize(total);
    if (from < total)
      std::memcpy(whole.data() + from, slots_[r].pages[side].record, std::min(kRecordBytes, total - from));
    records[r] = whole;
  }
}

Waited Board::everyone(uint32_t side, Deadline deadline, int& culprit) {
  culprit = rank_;
  for (int i = 1; i < size_; ++i) {
    culprit = culprit + 1 == size_ ? 0 : culprit + 1;
    Slot& slot = slots_[culprit];
    if (looks_.until([&] { return slot.pages[side].said.load(std::memory_order_acquire) == steps_; })) continue;
    if (const Waited waited = sleep_for(slot, deadline, &culprit); waited != Waited::reached) return waited;
  }
  met_ = steps_;
  return Waited::reached;
}

bool Board::claim() {
  slots_[rank_].claim.store(1, std::memory_order_seq_cst);
  if (!aborted()) return true;
  drop_claim();
  return false;
}

void Board::drop_claim() { slots_[rank_].claim.store(0, std::memory_order_release); }

void Board::step() {
  Slot& slot = slots_[rank_];
  steps_ += 2;
  // An abort may set the lowest bit at any time, so this adds and does not
  // store.
  slot.step.fetch_add(2, std::memory_order_seq_cst);
  if (slot.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(slot.step);
}

Waited Board::wait_for(int peer, Deadline deadline) {
  if (met_ == steps_) return Waited::reached;
  Slot& slot = slots_[peer];
  uint32_t word = 0;
  const bool moved = looks_.until([&] {
    word = slot.step.load(std::memory_order_acquire);
    return reached(word, steps_) || (word & 1) != 0;
  });
  if (!moved) return sleep_for(slot, deadline, nullptr);
  return reached(word, steps_) ? Waited::reached : Waited::closed;
}

int Board::first_dead() const {
  for (int r = 0; r < size_; ++r) {
    if (left(r) == Left::dead) return r;
  }
  return -1;
}

Waited Board::sleep_for(Slot& slot, Deadline deadline, int* lost) {
  // Processes look around now and then: one that nobody waits for just now may have died.
  const bool processes = patience_ != std::chrono::nanoseconds::max();

  const Sleeper sleeper(slot);
  while (true) {
    const uint32_t word = slot.step.load(std::memory_order_seq_cst);
    if (reached(word, steps_)) return Waited::reached;
    if ((word & 1) != 0) return Waited::closed;
    // Whether the dead rank had come does not matter: another has not, and so nobody has gone on. (Should that one come just
    // now, it may; it hears the same verdict in its next call.)
    if (const int dead = lost != nullptr && processes ? first_dead() : -1; dead >= 0) {
      if (reached(slot.step.load(std::memory_order_seq_cst), steps_)) return Waited::reached;
      *lost = dead;
      return Waited::closed;
    }
    const auto now = Clock::now();
    if (now >= deadline) return Waited::timed_out;
    auto until = deadline;
    if (processes) until = std::min(until, now + std::chrono::milliseconds(200));
    if (call_wait_hook()) until = std::min(until, now + kHookInterval);
    futex_wait(slot.step, word, idle(until));
  }
}

bool Board::has_come(int peer) const { return reached(slots_[peer].step.load(std::memory_order_acquire), steps_); }

bool Board::is_behind() const {
  for (int r = 0; r < size_; ++r) {
    if (reached(slots_[r].step.load(std::memory_order_acquire), steps_ + 2)) return true;
  }
  return false;
}

void Board::close(Slot& slot) {
  slot.step.fetch_or(1, std::memory_order_seq_cst);
  futex_wake_all(slot.step);
}

void Board::leave(std::string_view farewell) {
  Slot& slot = slots_[rank_];
  const size_t length = std::min(farewell.size(), sizeof(slot.farewell) - 1);
  std::memcpy(slot.farewell, farewell.data(), length);
  slot.left.store(static_cast<uint32_t>(Left::farewell), std::memory_order_release);
  close(slot);
}

std::string Board::farewell(int peer) const {
  const char* text = slots_[peer].farewell;
  return std::string(text, strnlen(text, sizeof(Slot::farewell)));
}

void Board::declare_dead(int peer) {
  auto no = static_cast<uint32_t>(Left::no);
  slots_[peer].left.compare_exchange_strong(no, static_cast<uint32_t>(Left::dead), std::memory_order_seq_cst);
  close(slots_[peer]);
  if (aborted()) close_all();  // it may have died between its verdict and the last slot
}

void Board::close_all() {
  for (int r = 0; r < size_; ++r) close(slots_[r]);
}

// Every rank writes into its own slot, and offers it whole: one that dies in between leaves nothing half written.
void Board::publish(uint32_t kind, std::string_view text) {
  std::lock_guard lock(*offering_);
  if (aborted()) return;
  Slot& slot = slots_[rank_];
  const size_t length = std::min(text.size(), kVerdictBytes - 1);
  std::memcpy(slot.verdict_text, text.data(), length);
  slot.verdict_text[length] = 0;
  slot.verdict_kind = kind;
  uint32_t none = 0;
  head_->verdict.compare_exchange_strong(none, static_cast<uint32_t>(rank_) + 1, std::memory_order_seq_cst);
}

void Board::abort(uint32_t kind, std::string_view text) {
  publish(kind, text);
  close_all();
  const auto start = Clock::now();
  for (int r = 0; r < size_; ++r) {
    while (r != rank_ && claimed(r) && Clock::now() - start < patience_)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

bool Board::claimed(int peer) const {
  return slots_[peer].claim.load(std::memory_order_seq_cst) != 0 && left(peer) != Left::dead;
}

void Board::verdict(uint32_t& kind, std::string& text) const {
  const uint32_t writer = head_->verdict.load(std::memory_order_acquire) - 1;
  const Slot& slot = slots_[writer < static_cast<uint32_t>(size_) ? writer : static_cast<uint32_t>(rank_)];
  kind = slot.verdict_kind;
  text.assign(slot.verdict_text, strnlen(slot.verdict_text, kVerdictBytes));
  if (text.empty()) text = "the shared memory of the communicator is damaged: there is a verdict, and nobody's text";
}

bool Board::any_to_shrink(uint32_t state) const {
  for (int r = 0; r < size_; ++r) {
    if (slots_[r].shrinks.load(std::memory_order_acquire) == state && !has_left(r)) return true;
  }
  return false;
}

// This rank's choice: all that have come and live. Nobody, where no rank has room: that is a choice too, and so all hear it.
void Board::choose(const Heir& heir, std::chrono::nanoseconds patience) {
  Slot& mine = slots_[rank_];
  int members = 0;
  for (int r = 0; r < size_; ++r) {
    const bool comes = slots_[r].shrinks.load(std::memory_order_seq_cst) != Slot::not_yet && !has_left(r);
    const uint64_t bit = uint64_t{1} << (r % 64);
    mine.chosen[r / 64] = comes ? mine.chosen[r / 64] | bit : mine.chosen[r / 64] & ~bit;
    members += comes ? 1 : 0;
  }
  if (const auto made = heir(members)) {
    mine.heir = *made;
  } else {
    std::fill(std::begin(mine.chosen), std::end(mine.chosen), 0);
    mine.shrinks.store(Slot::has_no_room, std::memory_order_seq_cst);
    const auto end = Clock::now() + patience;
    while (!chosen() && any_to_shrink(Slot::came) && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  uint32_t none = 0;
  head_->survivors.compare_exchange_strong(none, static_cast<uint32_t>(rank_) + 1, std::memory_order_seq_cst);
}

std::vector<int> Board::survivors(Deadline deadline, const Heir& heir, uint64_t& said) {
  // A rank that came later than this one may wait so much longer.
  const auto patience = std::max<std::chrono::nanoseconds>(deadline - Clock::now(), std::chrono::seconds(1));
  slots_[rank_].shrinks.store(Slot::came, std::memory_order_seq_cst);
  // Where one has no room, its time was over: whoever has room chooses at once.
  Deadline next_hook = Clock::now();
  while (!chosen() && any_to_shrink(Slot::not_yet) && !any_to_shrink(Slot::has_no_room) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (Clock::now() < next_hook) continue;
    next_hook = Clock::now() + kHookInterval;
    try {
      call_wait_hook();
    } catch (...) {
      leave("it gave up");  // nobody is to choose it
      throw;
    }
  }
  if (!chosen()) choose(heir, patience);
  const uint32_t chooser = head_->survivors.load(std::memory_order_seq_cst) - 1;
  if (chooser >= static_cast<uint32_t>(size_)) throw Error("the shared memory of the communicator is damaged");
  const Slot& choice = slots_[chooser];
  said = choice.heir;
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if ((choice.chosen[r / 64] >> (r % 64) & 1) != 0) ranks.push_back(r);
  }
  if (ranks.empty()) {
    throw Error(
        "shrink(): no rank has room in its shared heap for another communicator; give up tensors before it, or start "
        "with a larger heap (tessera run --heap)");
  }
  return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end() ? ranks : std::vector<int>();
}

}  // namespace tessera
