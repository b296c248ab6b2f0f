// The launcher's hand-over: three variables, the header of the segment, and the letters that lie in it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include <tessera/error.hpp>

#include "tensor/runs.hpp"
#include "transport/shm/mail.hpp"
#include "transport/shm/segment.hpp"
#include "transport/shm/source.hpp"

namespace {

using namespace tessera;

void try_variables(const std::string& text) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  const std::string rank = text.substr(0, first), ranks = text.substr(std::min(first, text.size()), second),
                    descriptor = text.substr(std::min(second, text.size()));
  shm::parse_hand_over(rank.c_str(), ranks.c_str(), text.size() % 2 == 0 ? nullptr : descriptor.c_str());
  shm::parse_way(rank.c_str());
}

// A file whose beginning is the input, sealed as the launcher's is; its size is the input's last word.
void try_segment(const uint8_t* data, size_t size) {
  const int file = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  uint32_t pages = 0;
  std::memcpy(&pages, data + size - std::min<size_t>(size, 4), std::min<size_t>(size, 4));
  if (ftruncate(file, static_cast<off_t>(pages % 70000) * 4096) != 0) abort();
  if (pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) abort();
  fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const auto segment = shm::Segment::attach(file);
  // What was accepted can be used, to the last byte of the last arena.
  for (int r = 0; r < segment->ranks(); ++r) {
    segment->last_words(r);
    if (!segment->arena(r).empty()) segment->arena(r).back() = std::byte{1};
  }
}

void try_letter(const uint8_t* data, size_t size) {
  static const auto arena = std::make_unique<std::byte[]>(1 << 16);
  shm::Letter letter;
  std::memcpy(static_cast<void*>(&letter), data, std::min(size, sizeof(letter)));
  const Announced tensor = shm::announced(letter, 1);
  if (volume(tensor.shape) == 0 || volume(tensor.shape) > 1 << 16) return;
  const shm::Source source = shm::locate({arena.get(), 1 << 16}, 1, tensor, Box::whole(tensor.shape));
  if (source.kind == shm::Source::attached) return;
  std::vector<std::byte> here(static_cast<size_t>(source.view.elements() * size_bytes(tensor.dtype)));
  const View target{here.data(), tensor.dtype, tensor.shape, row_major(tensor.shape)};
  for_each_run(target, source.view, [](std::byte* to, const std::byte* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return true;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  try {
    switch (data[0] % 3) {
      case 0: try_variables(std::string(reinterpret_cast<const char*>(data + 1), size - 1)); break;
      case 1: try_segment(data + 1, size - 1); break;
      default: try_letter(data + 1, size - 1); break;
    }
  } catch (const tessera::Error&) {}
  return 0;
}
