#include "descriptor.hpp"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <tessera/error.hpp>

namespace tessera::cli {

void fail_with_errno(const char* what) {
  const int code = errno;
  std::string text = fmt::format("{}: {}", what, std::strerror(code));
  if (code == EMFILE) text += " (raise ulimit -n)";
  if (code == EAGAIN) text += " (raise ulimit -u, or pids.max of the control group)";
  throw Error(text);
}

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_with_errno("cannot open a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor watch_process(pid_t process) {
  Descriptor descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!descriptor) fail_with_errno("pidfd_open, which Linux has from 5.3 on");
  return descriptor;
}

}  // namespace tessera::cli
