#include "transport/threads/group.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#include <tessera/collective.hpp>

#include "comm/agreement.hpp"
#include "tensor/copy.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

std::byte* allocate_board(int size) {
  const size_t bytes = (Board::bytes(size) + alignof(Slot) - 1) / alignof(Slot) * alignof(Slot);
  void* memory = std::aligned_alloc(alignof(Slot), bytes);
  if (memory == nullptr) throw std::bad_alloc();
  Board::initialise(memory, size);
  return static_cast<std::byte*>(memory);
}

std::string text_of(const Posted& p) {
  return fmt::format("rank {}: {} {} {}   {}", p.owner, p.is_send ? "sends" : "receives into", p.tensor.dtype(),
                     p.tensor.shape(), p.site);
}

}  // namespace

Group::Group(int size, Probe probe)
    : size_(size),
      probe_(std::move(probe)),
      memory_(allocate_board(size), std::free),
      left_(static_cast<size_t>(size)) {}

std::shared_ptr<Group> Group::child(uint64_t id, std::span<const int> members, int rank) {
  std::lock_guard lock(children_guard_);
  Child& child = children_[{id, members[0]}];
  if (child.group == nullptr) {
    child.group = std::make_shared<Group>(static_cast<int>(members.size()), probe_);
    child.members = child.missing = {members.begin(), members.end()};
    std::lock_guard mail_lock(mail_guard_);
    for (const int member : members) {
      if (left_[static_cast<size_t>(member)]) leave_unborn(child, member);
    }
  }
  auto result = child.group;
  std::erase(child.missing, rank);
  if (child.missing.empty()) children_.erase({id, members[0]});
  return result;
}

void Group::leave_unborn(Child& child, int rank) {
  if (std::erase(child.missing, rank) == 0) return;
  const auto index =
      static_cast<int>(std::find(child.members.begin(), child.members.end(), rank) - child.members.begin());
  child.group->board(index).leave("it left the group that this one was made of");
  child.group->left(index);
}

bool Group::fits(const Posted& send, const Posted& receive) const {
  return send.is_send && !receive.is_send && send.peer == receive.owner && send.tag == receive.tag &&
         (receive.peer == kAnySource || receive.peer == send.owner);
}

std::shared_ptr<Posted> Group::post(Posted posted) {
  auto mine = std::make_shared<Posted>(std::move(posted));
  std::unique_lock lock(mail_guard_);
  const auto found = std::find_if(mail_.begin(), mail_.end(), [&](const auto& other) {
    return mine->is_send ? fits(*mine, *other) : fits(*other, *mine);
  });
  if (found == mail_.end()) {
    mail_.push_back(mine);
    return mine;
  }
  const auto other = *found;
  mail_.erase(found);
  transfer(mine->is_send ? *mine : *other, mine->is_send ? *other : *mine, lock);
  return mine;
}

void Group::transfer(Posted& send, Posted& receive, std::unique_lock<std::mutex>& lock) {
  receive.peer = send.owner;
  const Tensor& out = receive.tensor;
  const bool fits_out = !out.defined() || (out.dtype() == send.tensor.dtype() && out.shape() == send.tensor.shape() &&
                                           !may_overlap(out, send.tensor));
  if (!fits_out) {
    send.error = fmt::format(
        "a message of tag {} does not fit its receive\n  {}\n  {}\nGive the "
        "same dtype and shape on both "
        "sides, and memory that does not overlap. Nothing was moved.",
        send.tag, text_of(send), text_of(receive));
    receive.error = send.error;
    send.state = receive.state = Posted::failed;
    mail_changed_.notify_all();
    return;
  }
  send.state = receive.state = Posted::copying;
  lock.unlock();
  Posted::State result = Posted::done;
  try {
    if (!receive.tensor.defined()) receive.tensor = Tensor::empty(send.tensor.dtype(), send.tensor.shape());
    copy_box(view_of(receive.tensor), view_of(send.tensor), send.tensor.bytes());
  } catch (const std::exception& e) {
    result = Posted::failed;
    send.kind = receive.kind = ErrorKind::other;
    send.error = receive.error =
        fmt::format("rank {} could not receive from rank {}: {}", receive.owner, send.owner, e.what());
  }
  lock.lock();
  send.state = receive.state = result;
  mail_changed_.notify_all();
}

bool Group::is_done(const std::shared_ptr<Posted>& posted) {
  std::lock_guard lock(mail_guard_);
  return posted->state == Posted::done || posted->state == Posted::failed || aborted_ || peer_gone(*posted);
}

bool Group::peer_gone(const Posted& p) const {
  if (p.state != Posted::waiting) return false;
  if (p.peer != kAnySource) return left_[static_cast<size_t>(p.peer)];
  for (int r = 0; r < size_; ++r) {
    if (r != p.owner && !left_[static_cast<size_t>(r)]) return false;
  }
  return true;
}

bool Group::is_over(const Posted& p) const {
  return p.state == Posted::done || p.state == Posted::failed ||
         (p.state == Posted::waiting && (aborted_ || peer_gone(p)));
}

bool Group::await(const std::shared_ptr<Posted>& posted, Deadline deadline) {
  std::unique_lock lock(mail_guard_);
  return mail_changed_.wait_until(lock, deadline, [&] { return is_over(*posted); });
}

bool Group::wait(const std::shared_ptr<Posted>& posted, Deadline deadline, bool& gone) {
  std::unique_lock lock(mail_guard_);
  mail_changed_.wait_until(lock, deadline, [&] { return is_over(*posted); });
  // A copy that has begun touches both tensors: it is waited for, however long
  // it takes.
  mail_changed_.wait(lock, [&] { return posted->state != Posted::copying; });
  gone = peer_gone(*posted) || aborted_;
  if (posted->state != Posted::waiting) return true;
  mail_.remove(posted);
  return false;
}

void Group::left(int rank) {
  {
    std::lock_guard lock(mail_guard_);
    left_[static_cast<size_t>(rank)] = true;
    mail_changed_.notify_all();
  }
  std::lock_guard lock(children_guard_);
  for (auto child = children_.begin(); child != children_.end();) {
    leave_unborn(child->second, rank);
    child = child->second.missing.empty() ? children_.erase(child) : std::next(child);
  }
}

void Group::aborted() {
  std::lock_guard lock(mail_guard_);
  aborted_ = true;
  mail_changed_.notify_all();
}

}  // namespace tessera
