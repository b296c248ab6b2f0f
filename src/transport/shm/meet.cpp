#include "transport/shm/meet.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "transport/shm/process.hpp"

namespace tessera::shm {

Invitation invite(const Segment& segment) { return {getpid(), start_time(getpid()), segment.descriptor()}; }

std::shared_ptr<Segment> accept(const Invitation& invitation) {
  const std::string path = fmt::format("/proc/{}/fd/{}", invitation.pid, invitation.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw Error(fmt::format("shared memory: {}: {}", path, std::strerror(errno)));
  // While it lives nobody else has its number, so what was opened is its own.
  if (start_time(invitation.pid) != invitation.started) {
    close(descriptor);
    throw Error(fmt::format("shared memory: process {} is gone", invitation.pid));
  }
  return Segment::attach(descriptor);
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const auto name_space = [](const char* kind) {
    std::error_code none;
    return std::filesystem::read_symlink(std::filesystem::path("/proc/self/ns") / kind, none).string();
  };
  return fmt::format("{}/{}/{}/{}", boot, name_space("pid"), name_space("net"), geteuid());
}

}  // namespace tessera::shm
