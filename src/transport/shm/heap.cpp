#include "transport/shm/heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include <tessera/error.hpp>
#include <tessera/pool.hpp>

#include "tensor/poison.hpp"
#include "transport/shm/huge_pages.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tessera::shm {
namespace {

constexpr size_t kPopulate = size_t{256} << 10;  // from here on one call maps fresh pages faster than faults do
constexpr size_t kStep = size_t{64} << 20;       // is taken at once
constexpr size_t kFewBytes = size_t{256} << 10;  // a rank that uses no more of its heap takes no huge page

size_t class_of(size_t bytes) { return bytes <= 128 ? 0 : static_cast<size_t>(std::bit_width((bytes - 1) / 128)); }

// Eight classes to a power of two, as in the pool: ragged outputs of about one size share blocks.
size_t rounded(size_t bytes, size_t small) {
  if (bytes <= small) return size_t{128} << class_of(bytes);
  const size_t step = std::max(kPage, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

Heap::Heap(std::shared_ptr<Segment> segment, int rank, size_t reserved, std::string system)
    : segment_(std::move(segment)),
      system_(std::move(system)),
      rank_(rank),
      base_(segment_->arena(rank).data()),
      end_(segment_->arena(rank).size()),
      fresh_((reserved + kPage - 1) / kPage * kPage),
      first_(fresh_),
      held_(fresh_) {}

std::shared_ptr<std::byte> Heap::allocate(int64_t bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > end_) return nullptr;
  const size_t size = rounded(std::max<size_t>(static_cast<size_t>(bytes), 1), kSmall);
  size_t offset = 0;
  {
    std::lock_guard lock(guard_);
    offset = take(size);
    if (offset == kNone) return nullptr;
    live_ += static_cast<int64_t>(size);
    unpoison(base_ + offset, size);
  }
  return {base_ + offset, [heap = shared_from_this(), offset, size](std::byte*) { heap->give(offset, size); }};
}

int64_t Heap::offset_of(const void* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data), begin = reinterpret_cast<uintptr_t>(base_);
  return at >= begin + first_ && at < begin + end_ ? static_cast<int64_t>(at - begin) : -1;
}

Heap::Usage Heap::usage() const {
  std::lock_guard lock(guard_);
  return {live_, static_cast<int64_t>(held_ - first_)};
}

size_t Heap::take(size_t bytes) { return bytes <= kSmall ? take_small(class_of(bytes)) : take_large(bytes); }

size_t Heap::take_small(size_t size_class) {
  auto& list = small_[size_class];
  if (list.empty()) {
    // A block is cut into pieces at once; a page holds as many as fit.
    const size_t piece = kSmallest << size_class, block = std::max(piece, kPage * 4);
    const size_t offset = take_large(block);
    if (offset == kNone) return kNone;
    for (size_t at = block; at >= piece; at -= piece) list.push_back(offset + at - piece);
  }
  const size_t offset = list.back();
  list.pop_back();
  return offset;
}

size_t Heap::take_large(size_t bytes) {
  const auto found = free_by_size_.lower_bound(bytes);
  if (found == free_by_size_.end()) return take_fresh(bytes);
  const size_t offset = found->second, size = found->first;
  erase_free(free_by_place_.find(offset));
  if (size > bytes) add_free(offset + bytes, size - bytes);
  return offset;
}

size_t Heap::take_fresh(size_t bytes) {
  // A free block that ends where nothing was used yet is the beginning of the new one.
  size_t offset = fresh_;
  auto last = free_by_place_.empty() ? free_by_place_.end() : std::prev(free_by_place_.end());
  if (last != free_by_place_.end() && last->first + last->second == fresh_) offset = last->first;
  else last = free_by_place_.end();
  if (bytes > end_ - offset) return kNone;
  hold(offset + bytes);
  if (last != free_by_place_.end()) erase_free(last);
  fresh_ = offset + bytes;
  return offset;
}

// There is memory up to `end` then. In steps, so that what is taken already is not promised as well for long.
void Heap::hold(size_t end) {
  if (end <= held_) return;
  check_limit(static_cast<int64_t>(end - held_), "shared");
  while (held_ < end) {
    promise(credit_ + static_cast<int64_t>(end - held_));
    hold_step(std::min(end, (held_ + kStep) / kHugePage * kHugePage));
  }
  promise(credit_);
}

// In whole huge pages, where the kernel gives them and the limits leave room for what nobody has asked for yet: on all ranks.
void Heap::hold_step(size_t end) {
  if (end - first_ > kFewBytes) end = hold_huge(end);
  const bool at_once = end - held_ >= kPopulate || credit_ < static_cast<int64_t>(kPopulate);
  if (at_once) madvise(base_ + held_, end - held_, MADV_POPULATE_WRITE);
  held_ = end;
}

size_t Heap::hold_huge(size_t end) {
  // The first of them may have parts in use, which stay as they are.
  const size_t from = held_ / kHugePage * kHugePage, until = (end + kHugePage - 1) / kHugePage * kHugePage;
  madvise(base_ + from, until - from, MADV_HUGEPAGE);  // where the setting wants to be asked so, on older kernels too
  if (!asks_for_huge_ || end <= refused_ || !can_spare(static_cast<int64_t>(until - end))) return end;
  const Huge huge = ask_for_huge_pages(base_ + from, until - from);
  if (huge == Huge::given) return until;
  asks_for_huge_ = huge != Huge::never;
  refused_ = until;  // not again at each step within these
  return end;
}

void Heap::give(size_t offset, size_t bytes) {
  std::lock_guard lock(guard_);
  live_ -= static_cast<int64_t>(bytes);
  poison(base_ + offset, bytes);
  if (bytes <= kSmall) small_[class_of(bytes)].push_back(offset);
  else add_free(offset, bytes);
}

void Heap::add_free(size_t offset, size_t bytes) {
  auto next = free_by_place_.lower_bound(offset);
  if (next != free_by_place_.end() && next->first == offset + bytes) {
    bytes += next->second;
    const auto joined = next++;
    erase_free(joined);
  }
  if (next != free_by_place_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      erase_free(before);
    }
  }
  free_by_place_[offset] = bytes;
  free_by_size_.emplace(bytes, offset);
}

void Heap::erase_free(std::map<size_t, size_t>::iterator block) {
  const auto [first, last] = free_by_size_.equal_range(block->second);
  for (auto same = first; same != last; ++same) {
    if (same->second != block->first) continue;
    free_by_size_.erase(same);
    break;
  }
  free_by_place_.erase(block);
}

// What the pool keeps, which may be of other sizes, is given back before anybody is refused.
void Heap::check_private(int64_t bytes) {
  const auto check = [&] {
    std::lock_guard lock(guard_);
    check_limit(bytes, "private");
    promise(credit_);
  };
  try {
    check();
  } catch (const Error&) {
    pool::trim();
    check();
  }
}

// With what other ranks were promised, and may take at any time, left out; and what all need for themselves.
MemoryLimit Heap::limit_for_this() const {
  MemoryLimit limit = memory_limit(system_);
  const auto ranks = static_cast<int64_t>(segment_->ranks());
  const auto leave = [&](int64_t bytes) {
    limit.available_bytes -= std::clamp<int64_t>(bytes, 0, std::max<int64_t>(limit.available_bytes, 0));
  };
  leave(std::min(ranks << 20, limit.tightest_bytes / 64));
  for (int r = 0; r < segment_->ranks(); ++r) {
    const Place& other = segment_->place(r);
    if (r != rank_ && other.ended.load(std::memory_order_relaxed) == 0) leave(other.promised.load());
  }
  return limit;
}

// Memory that is not there is a kill or a SIGBUS at the first touch. Asking takes longer than a small call, so an
// answer is good for a part of what was there. What a rank wants it says before it looks again: of two that ask at once,
// each sees the other.
void Heap::check_limit(int64_t wanted, const char* kind) {
  if (wanted <= credit_) {
    credit_ -= wanted;
    return;
  }
  MemoryLimit limit = limit_for_this();
  if (wanted <= limit.available_bytes) {  // else nobody else has to see it
    promise(credit_ + wanted);
    limit = limit_for_this();
  }
  if (wanted > limit.available_bytes) {
    promise(credit_);
    throw Error(
        fmt::format("rank {} needs {} bytes of {} memory, but {} has {} left of {}. Use fewer or smaller tensors, "
                    "or raise the limit",
                    rank_, wanted, kind, limit.tightest, limit.available_bytes, limit.tightest_bytes));
  }
  credit_ = (limit.available_bytes - wanted) / 64 / segment_->ranks();
}

// Of an eighth of what there is, of which every rank has as much.
bool Heap::can_spare(int64_t bytes) const { return bytes <= limit_for_this().available_bytes / 8 / segment_->ranks(); }

}  // namespace tessera::shm
