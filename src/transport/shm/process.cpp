#include "transport/shm/process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include <tessera/error.hpp>

namespace tessera::shm {
namespace {

struct ProcessStat {
  char state = 'X';
  uint64_t started = 0;  // 0: there is no such process
};

// That this process has no descriptor left says nothing of the other one.
[[noreturn]] void throw_blind(int64_t pid) {
  const bool files = errno == EMFILE || errno == ENFILE;
  throw Error(
      fmt::format("cannot look at process {}: {}{}", pid, std::strerror(errno), files ? "; raise ulimit -n" : ""));
}

std::string stat_line(int64_t pid) {
  const int file = open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && (errno == EMFILE || errno == ENFILE)) throw_blind(pid);
  if (file < 0) return "";
  std::array<char, 1024> line;
  const ssize_t got = read(file, line.data(), line.size());
  close(file);
  return {line.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

ProcessStat stat_of(int64_t pid) {
  const std::string line = stat_line(pid);
  // The second field, the program's name in parentheses, may hold anything; the start is field 22.
  const size_t after_name = line.rfind(')');
  if (after_name == std::string::npos) return {};
  std::istringstream fields(line.substr(after_name + 1));
  ProcessStat stat;
  std::string skipped;
  fields >> stat.state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.started;
  return stat;
}

}  // namespace

uint64_t start_time(int64_t pid) { return stat_of(pid).started; }

bool lives(const Identity& process) {
  const ProcessStat stat = stat_of(process.pid);
  return stat.started == process.started && stat.started != 0 && stat.state != 'Z' && stat.state != 'X';
}

int open_process(int64_t pid, uint64_t started) {
  const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (descriptor < 0 && errno == ESRCH) return -1;
  if (descriptor < 0) throw_blind(pid);
  try {
    // The number cannot change hands any more without the descriptor telling: so the start says which process it is.
    if (start_time(pid) == started) return descriptor;
  } catch (...) {
    close(descriptor);
    throw;
  }
  close(descriptor);
  return -1;
}

void admit_readers(int64_t ancestor) {
  static std::atomic<pid_t> admitted_in{0};  // a forked child starts anew
  if (admitted_in.exchange(getpid()) == getpid()) return;
  prctl(PR_SET_PTRACER, static_cast<unsigned long>(ancestor), 0, 0, 0);
}

Identity own_identity() {
  static auto* token = new uint64_t(0);  // never freed: peers look for it as long as this process lives
  static pid_t owner = 0;
  if (owner != getpid()) {  // a forked child is another process
    owner = getpid();
    if (getrandom(token, sizeof(*token), 0) != sizeof(*token)) *token = static_cast<uint64_t>(owner);
  }
  return {owner, start_time(owner), *token, reinterpret_cast<uint64_t>(token)};
}

namespace {

size_t total(std::span<const iovec> pieces) {
  size_t sum = 0;
  for (const iovec& piece : pieces) sum += piece.iov_len;
  return sum;
}

// Drops the first `bytes` bytes.
void advance(std::span<iovec>& pieces, size_t bytes) {
  while (bytes > 0) {
    const size_t part = std::min(bytes, pieces[0].iov_len);
    pieces[0].iov_base = static_cast<char*>(pieces[0].iov_base) + part;
    pieces[0].iov_len -= part;
    bytes -= part;
    if (pieces[0].iov_len == 0) pieces = pieces.subspan(1);
  }
}

}  // namespace

Attached read_process(const Identity& process, std::span<const iovec> here, std::span<const iovec> there) {
  std::array<iovec, kMostPieces + 1> local, remote;
  const uint64_t expected = process.token;
  const auto pid = static_cast<pid_t>(process.pid);
  uint64_t token = 0;
  // The token first: what is read after it in one call comes of the same process.
  local[0] = {&token, sizeof(token)};
  remote[0] = {reinterpret_cast<void*>(process.token_address), sizeof(token)};
  std::copy(here.begin(), here.end(), local.begin() + 1);
  std::copy(there.begin(), there.end(), remote.begin() + 1);
  std::span<iovec> to = std::span(local).first(here.size() + 1), from = std::span(remote).first(there.size() + 1);
  size_t left = total(here) + sizeof(token);
  while (true) {
    token = 0;
    const ssize_t got = process_vm_readv(pid, to.data(), to.size(), from.data(), from.size(), 0);
    if (got < 0) {
      if (errno == ESRCH) return Attached::gone;
      if (errno == EINTR) continue;
      return Attached::refused;
    }
    if (got < static_cast<ssize_t>(sizeof(token)) || token != expected) return Attached::gone;
    if (static_cast<size_t>(got) == left) return Attached::whole;
    if (static_cast<size_t>(got) == sizeof(token)) return Attached::refused;  // the next byte cannot be read
    // At most 2 GiB are read at once: go on behind them, with the token in front again.
    left -= static_cast<size_t>(got) - sizeof(token);
    std::span<iovec> rest_to = to.subspan(1), rest_from = from.subspan(1);
    advance(rest_to, static_cast<size_t>(got) - sizeof(token));
    advance(rest_from, static_cast<size_t>(got) - sizeof(token));
    to = {rest_to.data() - 1, rest_to.size() + 1};
    from = {rest_from.data() - 1, rest_from.size() + 1};
    to[0] = {&token, sizeof(token)};
    from[0] = {reinterpret_cast<void*>(process.token_address), sizeof(token)};
  }
}

}  // namespace tessera::shm
