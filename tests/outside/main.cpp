// A ragged gather by someone who has only the installed headers and library: on three ranks, or, with an argument, on those of the
// launcher.
#include <atomic>
#include <cstdio>

#include <tessera/tessera.hpp>

namespace {

bool gathers(tessera::Comm& comm) {
  const int64_t n = comm.size(), rows = n * (n + 1) / 2;
  auto mine = tessera::Tensor::full(tessera::DType::f32, {comm.rank() + 1, 8}, 1.0f * comm.rank());
  auto [all, sizes] = tessera::all_gather(comm, mine, 0);
  const bool fits = all.shape() == tessera::Dims{rows, 8} && sizes.back() == n;
  return fits && all.at<float>(0, 0) == 0 && all.at<float>(rows - 1, 7) == static_cast<float>(n - 1);
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {
    tessera::Comm comm = tessera::Comm::from_env();
    const bool right = gathers(comm);
    std::printf("rank %d of %d is %s\n", comm.rank(), comm.size(), right ? "right" : "wrong");
    return right ? 0 : 1;
  }
  std::atomic<int> right = 0;
  tessera::run(3, [&](tessera::Comm& comm) { right += gathers(comm) ? 1 : 0; });
  std::printf("%d of 3 ranks are right\n", right.load());
  return right == 3 ? 0 : 1;
}
