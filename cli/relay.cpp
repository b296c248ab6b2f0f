#include "relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include <fmt/color.h>
#include <fmt/format.h>

#include "command.hpp"

namespace tessera::cli {
namespace {

constexpr size_t kChunk = size_t{1} << 16;
constexpr size_t kMostInAPipe = size_t{1} << 20;  // what /proc/sys/fs/pipe-max-size allows to users
constexpr uint64_t kFinish = UINT64_MAX;

void watch(int poll, int descriptor, uint64_t as) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = as;
  if (epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event) != 0) fail_with_errno("epoll");
}

void raise(int event) {
  const uint64_t one = 1;
  // It cannot fail: the counter has room.
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof(one));
}

}  // namespace

void Lines::put(std::string_view line, std::string& output) {
  output += prefix_;
  output += line;
  if (!line.ends_with('\n')) output += '\n';
}

void Lines::add(std::string_view bytes, std::string& output) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const bool whole = newline != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, whole ? newline + 1 : bytes.size());
    bytes.remove_prefix(piece.size());
    if (whole && begun_.empty()) {
      put(piece, output);
      continue;
    }
    begun_ += piece;
    if (whole || begun_.size() >= kLongest) end(output);
  }
}

void Lines::end(std::string& output) {
  if (!begun_.empty()) put(begun_, output);
  begun_.clear();
}

std::string rank_prefix(int rank, int ranks, bool color) {
  using enum fmt::terminal_color;
  constexpr fmt::terminal_color kColors[] = {blue, yellow, green, magenta, cyan, red};
  const std::string text = fmt::format("[{:>{}}]", rank, std::to_string(ranks - 1).size());
  if (!color) return text + ' ';
  return fmt::format(fg(kColors[static_cast<size_t>(rank) % std::size(kColors)]), "{}", text) + ' ';
}

Relay::Relay(int target, std::vector<Descriptor> from, std::shared_ptr<std::mutex> guard)
    : target_(target), from_(std::move(from)), guard_(std::move(guard)), open_(from_.size()), chunk_(kChunk, '\0') {
  poll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  finish_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  ended_ = Descriptor(eventfd(0, EFD_CLOEXEC));
  if (!poll_ || !finish_ || !ended_) fail_with_errno("eventfd");
  const bool color = wants_color(target);
  for (size_t r = 0; r < from_.size(); ++r) {
    lines_.emplace_back(rank_prefix(static_cast<int>(r), static_cast<int>(from_.size()), color));
    fcntl(from_[r].get(), F_SETFL, O_NONBLOCK);
    watch(poll_.get(), from_[r].get(), r);
  }
  watch(poll_.get(), finish_.get(), kFinish);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  finish();
  thread_.join();
}

void Relay::finish() const { raise(finish_.get()); }

void Relay::run() {
  std::array<epoll_event, 64> events;
  bool finishing = false;
  while (open_ > 0 && !finishing) {
    const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<size_t>(i)].data.u64 == kFinish) {
        finishing = true;
      } else {
        read_some(events[static_cast<size_t>(i)].data.u64);
      }
    }
  }
  drain();
  raise(ended_.get());
}

// True: there may be more.
bool Relay::read_some(size_t rank) {
  if (!from_[rank]) return false;
  const ssize_t got = read(from_[rank].get(), chunk_.data(), chunk_.size());
  if (got < 0) return errno == EINTR;
  if (got == 0) {
    close_stream(rank);
    return false;
  }
  lines_[rank].add(std::string_view(chunk_).substr(0, static_cast<size_t>(got)), output_);
  write_out();
  return true;
}

void Relay::close_stream(size_t rank) {
  if (!from_[rank]) return;
  lines_[rank].end(output_);
  from_[rank].reset();
  --open_;
  write_out();
}

void Relay::drain() {
  for (size_t r = 0; r < from_.size(); ++r) {
    // Bounded: a stranger may still write to it.
    for (size_t i = 0; i < kMostInAPipe / kChunk && read_some(r);) ++i;
    close_stream(r);
  }
}

void Relay::write_out() {
  {
    const std::lock_guard lock(*guard_);
    for (std::string_view rest = output_; !rest.empty() && !broken_;) {
      const ssize_t written = write(target_, rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<size_t>(written));
      } else if (errno == EAGAIN) {  // somebody else made it so
        pollfd room = {target_, POLLOUT, 0};
        poll(&room, 1, -1);
      } else if (errno != EINTR) {
        broken_ = true;
      }
    }
  }
  output_.clear();
  if (!broken_) return;
  // With nobody to read it, ranks that print get SIGPIPE, as they would without a launcher.
  for (size_t r = 0; r < from_.size(); ++r) {
    if (!from_[r]) continue;
    from_[r].reset();
    --open_;
  }
}

}  // namespace tessera::cli
