// More than 2^31 elements: no count on the way is an int.
#include <fstream>

#include <tessera/collective.hpp>
#include <tessera/pool.hpp>

#include "support/global.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

// The value at a global place repeats after a prime number of places: a pattern can be copied at the speed of memory, and
// a place that is off by a power of two shows.
constexpr int64_t kPeriod = 1048583;

const std::vector<uint8_t>& pattern() {
  static const std::vector<uint8_t> values = [] {
    std::vector<uint8_t> list(2 * kPeriod);
    for (int64_t i = 0; i < 2 * kPeriod; ++i) {
      list[static_cast<size_t>(i)] = static_cast<uint8_t>(mix(static_cast<uint64_t>(i % kPeriod)));
    }
    return list;
  }();
  return values;
}

// Calls fn(bytes of the tensor, bytes of the pattern, count) along a run that begins at the global place.
template <class Fn>
void along(std::byte* data, int64_t count, int64_t place, const Fn& fn) {
  for (int64_t done = 0; done < count;) {
    const int64_t piece = std::min(count - done, kPeriod);
    fn(data + done, pattern().data() + (place + done) % kPeriod, static_cast<size_t>(piece));
    done += piece;
  }
}

void fill(std::byte* data, int64_t count, int64_t place) {
  along(data, count, place, [](std::byte* to, const uint8_t* from, size_t bytes) { std::memcpy(to, from, bytes); });
}

bool holds(std::byte* data, int64_t count, int64_t place) {
  bool same = true;
  along(data, count, place, [&](const std::byte* found, const uint8_t* expected, size_t bytes) {
    same = same && std::memcmp(found, expected, bytes) == 0;
  });
  return same;
}

int64_t shadow_factor() {
#if defined(__SANITIZE_THREAD__)
  return 5;  // four bytes of shadow for each that is touched
#else
  return 1;
#endif
}

// What the system could give, in bytes; 0 where it does not say.
int64_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string field; meminfo >> field;) {
    int64_t kib = 0;
    if (field == "MemAvailable:" && meminfo >> kib) return kib << 10;
  }
  return 0;
}

// Fresh memory costs more than all the rest, so rank 0 gathers in place and both gathers use the same blocks.
TEST(Huge, AllGatherOfMoreThanTwoToThe31Elements) {
  const int64_t needed = (int64_t{5} << 30) * shadow_factor();
  if (available_memory() < needed) {
    GTEST_SKIP() << "needs " << (needed >> 30) << " GiB of memory; " << (available_memory() >> 30) << " are available";
  }
  const Sizes sizes = {(int64_t{1} << 31) + 13, 7};
  on_ranks(transports()[0], 2, [&](Comm& comm) {
    const Box own = cut({sum_of(sizes)}, 0, sizes, comm.rank());
    const Tensor out = comm.rank() == 0 ? Tensor::empty(DType::u8, {sum_of(sizes)}) : Tensor();
    const Tensor x = comm.rank() == 0 ? out.box(own) : Tensor::empty(DType::u8, own.extent);
    fill(x.data(), x.elements(), own.offset[0]);
    const auto [all, found] = all_gather(comm, x, {.out = out});
    EXPECT_EQ(found, sizes);
    ASSERT_EQ(all.elements(), sum_of(sizes));
    EXPECT_TRUE(holds(all.data(), all.elements(), 0));
    for (int64_t place = (int64_t{1} << 31) - 20; place < all.elements(); ++place) {
      EXPECT_EQ(all.at<uint8_t>(place), pattern()[static_cast<size_t>(place % kPeriod)]) << place;
    }
    EXPECT_EQ(comm.stats().bytes_copied, comm.rank() == 0 ? 7 : sum_of(sizes));
  });

  // Along an inner dimension: rows of which one rank has 2^15 columns and the other 8.
  const int64_t rows = int64_t{1} << 16;
  const Sizes columns = {int64_t{1} << 15, 8};
  on_ranks(transports()[0], 2, [&](Comm& comm) {
    const Dims shape = {rows, sum_of(columns)};
    const Box own = cut(shape, 1, columns, comm.rank());
    const Tensor out = comm.rank() == 0 ? Tensor::empty(DType::u8, shape) : Tensor();
    const Tensor x = comm.rank() == 0 ? out.box(own) : Tensor::empty(DType::u8, own.extent);
    for (int64_t row = 0; row < rows; ++row) {
      fill(x.data() + row * x.strides()[0], own.extent[1], row * shape[1] + own.offset[1]);
    }
    const Tensor all = all_gather(comm, x, {.dim = 1, .out = out}).tensor;
    ASSERT_EQ(all.shape(), shape);
    ASSERT_GT(all.elements(), int64_t{1} << 31);
    EXPECT_TRUE(holds(all.data(), all.elements(), 0));
  });
  pool::trim();
}

}  // namespace
}  // namespace tessera::testing_support
