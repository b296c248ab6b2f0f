// A line on stderr that tells how far a long command is.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace tessera::cli {

// Drawn over at each step, and gone at the end; only where a person looks on.
class Progress {
 public:
  explicit Progress(size_t steps) : steps_(steps), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  Progress(const Progress&) = delete;

  void step(const std::string& what) {
    if (!shown_) return;
    constexpr size_t kBarWidth = 30;
    const size_t full = std::min(kBarWidth, kBarWidth * done_++ / std::max<size_t>(steps_, 1));
    fmt::print(stderr, "\r[{}{}] {}\033[K", std::string(full, '#'), std::string(kBarWidth - full, '.'), what);
    std::fflush(stderr);
  }

 private:
  size_t steps_, done_ = 0;
  bool shown_;
};

}  // namespace tessera::cli
