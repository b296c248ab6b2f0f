#include "transport/post/line.hpp"

#include <cstring>

namespace tessera::post {
namespace {

constexpr int kHeads = 0, kBodies = 1;  // channels
// All but pieces of tensors is shorter.
constexpr int64_t kInlineBytes = 16384;
constexpr size_t kPacketBytes = sizeof(Head) + kInlineBytes;
// Receives of heads that are posted before they are needed: what comes need not wait for them.
constexpr int kPosted = 4;

}  // namespace

Line::Line(Post& post, int peer) : post_(post), peer_(peer) {
  reader_ = std::thread([this] { read(); });
}

Line::~Line() {
  stop();
  reader_.join();
  if (fetcher_.joinable()) fetcher_.join();
  if (sender_.joinable()) sender_.join();
}

bool Line::copies(int64_t bytes) { return bytes <= kInlineBytes; }

void Line::stop() noexcept {
  std::lock_guard lock(guard_);
  stopping_ = true;
  for (Carried* const waited_for : {read_now_, fetched_now_, sent_now_}) {
    if (waited_for != nullptr) waited_for->stop();
  }
  changed_.notify_all();
}

void Line::flush(Deadline deadline) {
  std::unique_lock lock(guard_);
  changed_.wait_until(lock, deadline, [&] { return outgoing_.empty(); });
}

void Line::send(const Head& head, const void* data, Request* request) {
  Outgoing out;
  const auto inlined = static_cast<size_t>(copies(head.bytes) ? head.bytes : 0);
  out.packet.resize(sizeof(head) + inlined);
  std::memcpy(out.packet.data(), &head, sizeof(head));
  if (inlined > 0) std::memcpy(out.packet.data() + sizeof(head), data, inlined);
  out.request = request;
  std::lock_guard order(order_);
  {
    // First, as it may fail: what the engine has got must be seen off.
    std::lock_guard lock(guard_);
    if (!sender_.joinable()) sender_ = std::thread([this] { see_off(); });
  }
  try {
    out.head = post_.carrier_->send(out.packet.data(), static_cast<int64_t>(out.packet.size()), peer_, kHeads);
    if (!copies(head.bytes)) out.body = post_.carrier_->send(data, head.bytes, peer_, kBodies);
  } catch (const std::exception&) {
    // The reader finds that out too, when it has taken what came before.
    if (out.head == nullptr) {
      if (request != nullptr) post_.finish(*request);
      return;
    }
  }
  std::lock_guard lock(guard_);
  outgoing_.push_back(std::move(out));
  changed_.notify_all();
}

bool Line::await(Carried& carried, Carried*& place) {
  {
    std::lock_guard lock(guard_);
    if (stopping_) return false;
    place = &carried;
  }
  const auto leave = [&] {
    std::lock_guard lock(guard_);
    place = nullptr;
  };
  try {
    const bool over = carried.wait();
    leave();
    return over;
  } catch (...) {
    leave();
    throw;
  }
}

void Line::see_off() {
  std::unique_lock lock(guard_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !outgoing_.empty(); });
    if (stopping_) return;
    Outgoing& out = outgoing_.front();
    lock.unlock();
    try {
      for (Carried* carried : {out.head.get(), out.body.get()}) {
        if (carried != nullptr && !await(*carried, sent_now_)) return;
      }
    } catch (const std::exception&) {
      // As above.
    }
    Request* const request = out.request;
    lock.lock();
    outgoing_.pop_front();  // the engine lets go of the memory before its owner is told
    changed_.notify_all();
    if (request == nullptr) continue;
    lock.unlock();
    post_.finish(*request);
    lock.lock();
  }
}

void Line::read() {
  struct Posted {
    std::vector<std::byte> packet;
    std::unique_ptr<Carried> carried;
  };
  std::deque<Posted> posted;
  const auto post = [&](std::vector<std::byte> packet) {
    auto carried = post_.carrier_->receive(packet.data(), static_cast<int64_t>(packet.size()), peer_, kHeads);
    posted.push_back({std::move(packet), std::move(carried)});
  };
  try {
    for (int i = 0; i < kPosted; ++i) post(std::vector<std::byte>(kPacketBytes));
    while (await(*posted.front().carried, read_now_)) {
      std::vector<std::byte> packet = std::move(posted.front().packet);
      posted.pop_front();
      take(packet);
      post(std::move(packet));
    }
  } catch (const std::exception&) {
    lost_ = true;
    post_.wake();
  }
}

// The heads that follow are read while the bytes come: an engine asks the sender for these when there is a receive, and many
// messages one after the other would each wait for that.
void Line::take(const std::vector<std::byte>& packet) {
  Head head;
  std::memcpy(&head, packet.data(), sizeof(head));
  if (copies(head.bytes)) return post_.deliver(peer_, head, packet.data() + sizeof(head));
  Incoming incoming{post_.begin(peer_, head), nullptr};
  try {
    incoming.body = post_.carrier_->receive(incoming.target.data(), head.bytes, peer_, kBodies);
  } catch (const std::exception&) {
    post_.end(incoming.target, false);
    throw;
  }
  std::lock_guard lock(guard_);
  incoming_.push_back(std::move(incoming));
  if (!fetcher_.joinable()) fetcher_ = std::thread([this] { fetch(); });
  changed_.notify_all();
}

void Line::fetch() {
  std::unique_lock lock(guard_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !incoming_.empty(); });
    if (incoming_.empty()) return;
    Incoming incoming = std::move(incoming_.front());
    incoming_.pop_front();
    lock.unlock();
    bool well = false;
    try {
      well = await(*incoming.body, fetched_now_);
    } catch (const std::exception&) {
      lost_ = true;
    }
    incoming.body = nullptr;  // the engine lets go of the memory before its owner is told
    post_.end(incoming.target, well);
    lock.lock();
  }
}

}  // namespace tessera::post
