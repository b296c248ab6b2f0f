// A carrier between threads: a send is over when its receive has come, as with Gloo, and who leaves is lost to the others.
#pragma once

#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>

#include <tessera/carrier.hpp>

namespace tessera::testing_support {

class Mailboxes {
 public:
  struct Letter {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    int sender = 0, receiver = 0;
    bool over = false, stopped = false;
  };
  using Key = std::tuple<int, int, int>;  // sender, receiver, channel

  void post(const Key& key, const std::shared_ptr<Letter>& letter) {
    std::lock_guard lock(guard_);
    check(*letter);
    auto& [sends, receives] = boxes_[key];
    (letter->from != nullptr ? sends : receives).push_back(letter);
    if (sends.empty() || receives.empty()) return;
    Letter &send = *sends.front(), &receive = *receives.front();
    if (send.bytes > receive.bytes) throw std::runtime_error("a message is longer than its receive");
    std::memcpy(receive.to, send.from, static_cast<size_t>(send.bytes));
    send.over = receive.over = true;
    sends.pop_front();
    receives.pop_front();
    changed_.notify_all();
  }
  bool wait(const Letter& letter) {
    std::unique_lock lock(guard_);
    changed_.wait(lock, [&] {
      if (!letter.over && !letter.stopped) check(letter);
      return letter.over || letter.stopped;
    });
    return letter.over;
  }
  void stop(Letter& letter) {
    std::lock_guard lock(guard_);
    letter.stopped = true;
    changed_.notify_all();
  }
  void forget(const Key& key, const std::shared_ptr<Letter>& letter) {
    std::lock_guard lock(guard_);
    auto& [sends, receives] = boxes_[key];
    sends.remove(letter);
    receives.remove(letter);
  }
  void leave(int rank) {
    std::lock_guard lock(guard_);
    gone_.insert(rank);
    changed_.notify_all();
  }

 private:
  void check(const Letter& letter) const {
    if (gone_.count(letter.sender) + gone_.count(letter.receiver) > 0) throw std::runtime_error("the peer is gone");
  }

  std::mutex guard_;
  std::condition_variable changed_;
  std::map<Key, std::pair<std::list<std::shared_ptr<Letter>>, std::list<std::shared_ptr<Letter>>>> boxes_;
  std::set<int> gone_;
};

class MailboxCarrier : public Carrier {
 public:
  MailboxCarrier(std::shared_ptr<Mailboxes> boxes, int rank) : boxes_(std::move(boxes)), rank_(rank) {}
  ~MailboxCarrier() override { boxes_->leave(rank_); }

  std::unique_ptr<Carried> send(const void* data, int64_t bytes, int to, int channel) override {
    return post({rank_, to, channel}, {.from = data, .bytes = bytes, .sender = rank_, .receiver = to});
  }
  std::unique_ptr<Carried> receive(void* data, int64_t bytes, int from, int channel) override {
    return post({from, rank_, channel}, {.to = data, .bytes = bytes, .sender = from, .receiver = rank_});
  }

 private:
  class Posted : public Carried {
   public:
    Posted(std::shared_ptr<Mailboxes> boxes, Mailboxes::Key key, std::shared_ptr<Mailboxes::Letter> letter)
        : boxes_(std::move(boxes)), key_(std::move(key)), letter_(std::move(letter)) {}
    ~Posted() override { boxes_->forget(key_, letter_); }
    bool wait() override { return boxes_->wait(*letter_); }
    void stop() noexcept override { boxes_->stop(*letter_); }

   private:
    const std::shared_ptr<Mailboxes> boxes_;
    const Mailboxes::Key key_;
    const std::shared_ptr<Mailboxes::Letter> letter_;
  };
  std::unique_ptr<Carried> post(const Mailboxes::Key& key, const Mailboxes::Letter& letter) {
    const auto shared = std::make_shared<Mailboxes::Letter>(letter);
    auto posted = std::make_unique<Posted>(boxes_, key, shared);
    boxes_->post(key, shared);
    return posted;
  }

  const std::shared_ptr<Mailboxes> boxes_;
  const int rank_;
};

}  // namespace tessera::testing_support
