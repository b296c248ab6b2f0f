#include "comm/board.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

namespace tessera {
namespace {

size_t head_bytes() { return (sizeof(BoardHead) + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot); }

bool reached(uint32_t word, uint32_t target) { return static_cast<int32_t>((word & ~1u) - target) >= 0; }

}  // namespace

size_t Board::bytes(int size) { return head_bytes() + static_cast<size_t>(size) * sizeof(Slot); }

void Board::initialise(void* memory, int size) {
  new (memory) BoardHead;
  auto* slots = reinterpret_cast<Slot*>(static_cast<std::byte*>(memory) + head_bytes());
  for (int r = 0; r < size; ++r) new (slots + r) Slot;
}

Board::Board(void* memory, int rank, int size)
    : head_(static_cast<BoardHead*>(memory)),
      slots_(reinterpret_cast<Slot*>(static_cast<std::byte*>(memory) + head_bytes())),
      rank_(rank),
      size_(size),
      // Spinning pays only while the one waited for can run at the same time.
      spins_(size <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 20),
      long_records_(static_cast<size_t>(size)) {}

void Board::write_record(std::span<const std::byte> mine, size_t from) {
  Slot& slot = slots_[rank_];
  const uint32_t side = announcements_ % 2;
  slot.record_bytes[side] = mine.size();
  if (from < mine.size())
    std::memcpy(slot.record[side], mine.data() + from, std::min(kRecordBytes, mine.size() - from));
}

Waited Board::announce(std::span<const std::byte> mine, uint64_t call, std::vector<std::span<const std::byte>>& records,
                       Deadline deadline, int& culprit) {
  slots_[rank_].call.store(call, std::memory_order_relaxed);
  records.resize(static_cast<size_t>(size_));
  // Two records take turns. A rank writes over the one of two announcements ago
  // only after everybody made the last one, and nobody does that before having
  // read the one before.
  size_t longest = 0;
  for (size_t from = 0; from == 0 || from < longest; from += kRecordBytes) {
    write_record(mine, from);
    step();
    if (const Waited waited = everyone(deadline, culprit); waited != Waited::reached) return waited;
    const uint32_t side = announcements_++ % 2;
    for (int r = 0; r < size_; ++r) longest = std::max<size_t>(longest, slots_[r].record_bytes[side]);
    for (int r = 0; r < size_; ++r) {
      const Slot& slot = slots_[r];
      const size_t total = slot.record_bytes[side];
      if (longest <= kRecordBytes) {
        records[static_cast<size_t>(r)] = {slot.record[side], total};
        continue;
      }
      auto& whole = long_records_[static_cast<size_t>(r)];
      whole.resize(total);
      if (from < total) std::memcpy(whole.data() + from, slot.record[side], std::min(kRecordBytes, total - from));
      records[static_cast<size_t>(r)] = whole;
    }
  }
  return Waited::reached;
}

Waited Board::everyone(Deadline deadline, int& culprit) {
  for (int i = 1; i < size_; ++i) {
    culprit = (rank_ + i) % size_;
    if (const Waited waited = wait_for(culprit, deadline); waited != Waited::reached) return waited;
  }
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
  Slot& slot = slots_[peer];
  for (int i = 0; i < spins_; ++i) {
    const uint32_t word = slot.step.load(std::memory_order_acquire);
    if (reached(word, steps_)) return Waited::reached;
    if ((word & 1) != 0) return Waited::closed;
    cpu_relax();
  }
  return sleep_for(slot, deadline);
}

Waited Board::sleep_for(Slot& slot, Deadline deadline) {
  Waited result = Waited::reached;
  slot.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t word = slot.step.load(std::memory_order_seq_cst);
    if (reached(word, steps_)) break;
    if ((word & 1) != 0) {
      result = Waited::closed;
      break;
    }
    if (Clock::now() >= deadline) {
      result = Waited::timed_out;
      break;
    }
    futex_wait(slot.step, word, deadline);
  }
  slot.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return result;
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
  slot.left.store(1, std::memory_order_release);
  close(slot);
}

void Board::abort(uint32_t kind, std::string_view text) {
  uint32_t none = 0;
  if (head_->verdict.compare_exchange_strong(none, 1, std::memory_order_seq_cst)) {
    const size_t length = std::min(text.size(), kVerdictBytes - 1);
    std::memcpy(head_->verdict_text, text.data(), length);
    head_->verdict_kind = kind;
    head_->verdict.store(2, std::memory_order_seq_cst);
  }
  for (int r = 0; r < size_; ++r) close(slots_[r]);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    while (slots_[r].claim.load(std::memory_order_seq_cst) != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void Board::verdict(uint32_t& kind, std::string& text) const {
  while (head_->verdict.load(std::memory_order_acquire) != 2) cpu_relax();
  kind = head_->verdict_kind;
  text = head_->verdict_text;
}

}  // namespace tessera
