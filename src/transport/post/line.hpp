// The messages between this rank and one peer.
#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include "comm/futex.hpp"
#include "transport/post/post.hpp"

namespace tessera::post {

class Line {
 public:
  Line(Post& post, int peer);
  // Stops what waits.
  ~Line();
  Line(const Line&) = delete;

  // The request, if there is one, is done when the bytes have gone, or the peer is lost. Few bytes are copied. Throws
  // std::system_error where no thread can be had; nothing is sent then.
  void send(const Head& head, const void* data, Request* request);
  // Whether bytes of that number are copied, so that their memory is free at once.
  static bool copies(int64_t bytes);
  bool lost() const { return lost_; }
  // Waits until all that was sent has gone.
  void flush(Deadline deadline);
  // Ends what waits; the threads end by themselves then.
  void stop() noexcept;

 private:
  struct Outgoing {
    std::vector<std::byte> packet;
    std::unique_ptr<Carried> head, body;
    Request* request = nullptr;
  };
  struct Incoming {
    Post::Target target;
    std::unique_ptr<Carried> body;
  };
  // Waits for it, unless this is to stop. False: it is.
  bool await(Carried& carried, Carried*& place);
  void read();
  void take(const std::vector<std::byte>& packet);
  void fetch();
  void see_off();

  Post& post_;
  const int peer_;
  std::atomic<bool> lost_{false};
  std::mutex order_;  // of what is sent, on both channels
  std::mutex guard_;
  std::condition_variable changed_;
  bool stopping_ = false;
  Carried* read_now_ = nullptr;
  Carried* fetched_now_ = nullptr;
  Carried* sent_now_ = nullptr;
  std::deque<Outgoing> outgoing_;  // the first is waited for
  std::deque<Incoming> incoming_;  // here, too
  std::thread reader_, fetcher_, sender_;
};

}  // namespace tessera::post
