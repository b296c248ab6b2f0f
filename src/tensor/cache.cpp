#include "tensor/cache.hpp"

#include <algorithm>
#include <fstream>
#include <string>

namespace tessera {
namespace {

int64_t read_largest_cache() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size * (unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1));
  }
  return largest > 0 ? largest : int64_t{32} << 20;
}

}  // namespace

int64_t last_level_cache_bytes() {
  static const int64_t bytes = read_largest_cache();
  return bytes;
}

int64_t copy_stream_bytes() {
  static const int64_t bytes = std::max(last_level_cache_bytes() / 2, int64_t{2} << 20);
  return bytes;
}

int64_t sum_stream_bytes() {
  static const int64_t bytes = std::max(last_level_cache_bytes() / 16, int64_t{2} << 20);
  return bytes;
}

}  // namespace tessera
