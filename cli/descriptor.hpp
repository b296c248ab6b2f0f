// File descriptors that close themselves.
#pragma once

#include <unistd.h>

#include <utility>

namespace tessera::cli {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void reset() {
    if (number_ >= 0) close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

// Throws Error with `what` and what the system says of it (errno).
[[noreturn]] void fail_with_errno(const char* what);

// Closed by exec, both ends.
Pipe make_pipe();

// A descriptor that becomes readable when the process, a child of ours, ends.
Descriptor watch_process(pid_t process);

}  // namespace tessera::cli
