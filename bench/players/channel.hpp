// A line at a time over a Unix socket: how the coordinator of a benchmark and the ranks of its players talk.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace tessera::bench {

inline sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) throw std::runtime_error("the path of a socket is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)), pending_(std::move(other.pending_)) {}
  Channel& operator=(Channel&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(pending_, other.pending_);
    return *this;
  }
  ~Channel() {
    if (fd_ >= 0) close(fd_);
  }

  static Channel connect(const std::string& path) {
    Channel channel(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    if (::connect(channel.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot reach the coordinator at " + path + ": " + std::strerror(errno));
    }
    return channel;
  }

  int fd() const { return fd_; }

  // False where the other side has gone.
  bool send(const std::string& line) {
    const std::string text = line + '\n';
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  // The next whole line of what was read, if there is one.
  std::optional<std::string> next() {
    const size_t end = pending_.find('\n');
    if (end == std::string::npos) return {};
    std::string line = pending_.substr(0, end);
    pending_.erase(0, end + 1);
    return line;
  }

  // Reads what is there; blocks where nothing is. False where the other side has gone.
  bool read_more() {
    char buffer[4096];
    ssize_t n = 0;
    do {
      n = read(fd_, buffer, sizeof(buffer));
    } while (n < 0 && errno == EINTR);
    if (n <= 0) return false;
    pending_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  // Blocks until a line is there; nothing where the other side has gone.
  std::optional<std::string> receive() {
    for (;;) {
      if (auto line = next()) return line;
      if (!read_more()) return {};
    }
  }

 private:
  int fd_;
  std::string pending_;
};

}  // namespace tessera::bench
