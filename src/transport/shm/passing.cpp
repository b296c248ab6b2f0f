#include "transport/shm/passing.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/comm.hpp>
#include <tessera/error.hpp>

#include "comm/agreement.hpp"
#include "transport/shm/process.hpp"

namespace tessera::shm {
namespace {

constexpr size_t kSecretBytes = 16;

// What a guest says. Plain bytes of one packet.
struct Request {
  char secret[2 * kSecretBytes] = {};
  int32_t rank = -1;
};

[[noreturn]] void fail_join(const char* what) {
  throw Error(fmt::format("tessera::join(): {}: {}", what, std::strerror(errno)));
}

std::string hex(std::span<const unsigned char> bytes) { return fmt::format("{:02x}", fmt::join(bytes, "")); }

std::string random_secret() {
  std::array<unsigned char, kSecretBytes> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail_join("getrandom");
  return hex(bytes);
}

int new_socket() {
  const int descriptor = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) fail_join("socket");
  return descriptor;
}

bool is_peer(int connection, const Identity& process) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid() &&
         peer.pid == process.pid;
}

// How long poll() may sleep: it looks now and then whether the others still live.
int slice_ms(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 100));
}

bool send_descriptor(int connection, int descriptor) {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
}

// -1: there was none.
int receive_descriptor(int connection) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

// One hand-out: who has come, and who is still to come.
class Handing {
 public:
  Handing(int socket, const std::string& secret, int descriptor, std::span<const Identity> guests)
      : socket_(socket), secret_(secret), descriptor_(descriptor), guests_(guests), served_(guests.size(), false) {
    served_[0] = true;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (size_t r = 0; r < served_.size(); ++r) {
      if (!served_[r]) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }

  void serve(int wait_ms) {
    std::vector<pollfd> polled{{socket_, POLLIN, 0}};
    for (const auto& connection : connections_) polled.push_back({connection.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), wait_ms) <= 0) return;
    for (size_t i = polled.size() - 1; i > 0; --i) {
      if (polled[i].revents == 0) continue;
      answer(connections_[i - 1].get());
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (polled[0].revents == 0) return;
    OwnedDescriptor accepted(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() >= 0) connections_.push_back(std::move(accepted));
  }

 private:
  // Whoever is no guest gets nothing, and is not told why.
  void answer(int connection) {
    Request request;
    if (::recv(connection, &request, sizeof(request), 0) != sizeof(request)) return;
    const auto rank = static_cast<size_t>(request.rank);
    if (request.rank <= 0 || rank >= guests_.size() || !is_peer(connection, guests_[rank])) return;
    if (std::memcmp(request.secret, secret_.data(), sizeof(request.secret)) != 0) return;
    if (send_descriptor(connection, descriptor_)) served_[rank] = true;
  }

  const int socket_;
  const std::string& secret_;
  const int descriptor_;
  const std::span<const Identity> guests_;
  std::vector<bool> served_;
  std::vector<OwnedDescriptor> connections_;
};

}  // namespace

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OwnedDescriptor::~OwnedDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

int OwnedDescriptor::release() { return std::exchange(descriptor_, -1); }

Desk::Desk() : socket_(new_socket()) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // Without a name the kernel chooses one, in the namespace that has no files.
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0) fail_join("bind");
  if (::listen(socket_.get(), SOMAXCONN) != 0) fail_join("listen");
  socklen_t length = sizeof(address);
  if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) fail_join("getsockname");
  const size_t name_bytes = length - offsetof(sockaddr_un, sun_path) - 1;
  address_ = {std::string(address.sun_path + 1, name_bytes), random_secret()};
}

void Desk::hand_out(int descriptor, std::span<const Identity> guests, Deadline deadline) {
  Handing handing(socket_.get(), address_.secret, descriptor, guests);
  for (auto missing = handing.missing(); !missing.empty(); missing = handing.missing()) {
    for (const int rank : missing) {
      const Identity& guest = guests[static_cast<size_t>(rank)];
      if (!lives(guest)) {
        throw PeerLostError(fmt::format("tessera::join(): the process of rank {} (pid {}) is gone", rank, guest.pid));
      }
    }
    if (Clock::now() >= deadline) {
      throw TimeoutError(fmt::format("tessera::join(): rank{} {} came to the meeting, but did not go on",
                                     missing.size() == 1 ? "" : "s", rank_list(missing)));
    }
    call_wait_hook();
    handing.serve(slice_ms(deadline));
  }
}

int fetch(const Address& address, const Identity& host, int rank, Deadline deadline) {
  const OwnedDescriptor connection(new_socket());
  sockaddr_un there = {};
  there.sun_family = AF_UNIX;
  if (address.name.size() + 1 > sizeof(there.sun_path) || address.secret.size() != 2 * kSecretBytes) {
    throw Error("tessera::join(): what rank 0 said makes no sense: all ranks must use one version of tessera");
  }
  std::memcpy(there.sun_path + 1, address.name.data(), address.name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.name.size());
  while (::connect(connection.get(), reinterpret_cast<sockaddr*>(&there), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      throw PeerLostError(fmt::format("tessera::join(): rank 0 (pid {}) is no longer there to hand its memory over: {}",
                                      host.pid, lives(host) ? "it has failed" : "its process is gone"));
    }
    call_wait_hook();
    if (Clock::now() >= deadline) throw TimeoutError("tessera::join(): rank 0 lets nobody in");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!is_peer(connection.get(), host)) {
    throw Error("tessera::join(): another process than rank 0 holds its socket: it is not trusted");
  }
  Request request;
  std::memcpy(request.secret, address.secret.data(), sizeof(request.secret));
  request.rank = rank;
  const auto sent = ::send(connection.get(), &request, sizeof(request), MSG_NOSIGNAL);
  pollfd polled{connection.get(), POLLIN, 0};
  while (sent == sizeof(request) && ::poll(&polled, 1, slice_ms(deadline)) <= 0) {
    call_wait_hook();
    if (Clock::now() >= deadline) throw TimeoutError("tessera::join(): rank 0 did not hand its memory over");
  }
  const int descriptor = sent == sizeof(request) ? receive_descriptor(connection.get()) : -1;
  if (descriptor < 0) {
    throw PeerLostError("tessera::join(): rank 0 ended, or failed, before it handed its memory over");
  }
  return descriptor;
}

}  // namespace tessera::shm
