// Ranks as processes: the same program runs as one rank, or as many under the launcher.
//   build/examples/example_processes
//   build/tessera run -n 4 -- build/examples/example_processes
#include <tessera/tessera.hpp>

using namespace tessera;

int main() {
  Comm comm = Comm::from_env();

  // Rank r brings r + 1 rows, each filled with its own number; memory of the communicator is what peers read fastest.
  Tensor mine = comm.allocate(DType::f32, {comm.rank() + 1, 4});
  mine.fill([&](auto) { return comm.rank(); });

  // Nobody says how many rows the others have.
  auto [all, sizes] = all_gather(comm, mine, 0);

  // Every rank checks what it got against what one process would have.
  int64_t row = 0;
  for (int r = 0; r < comm.size(); ++r) {
    for (int64_t i = 0; i < r + 1; ++i, ++row) {
      if (all.at<float>(row, 0) != static_cast<float>(r)) throw Error(fmt::format("row {} is not rank {}'s", row, r));
    }
  }
  if (comm.rank() == 0) {
    fmt::print("{} gathered {} rows, [{}] from each\n",
               comm.size() == 1 ? "1 rank" : fmt::format("{} ranks", comm.size()), all.shape(0),
               fmt::join(sizes, ", "));
  }
  comm.barrier();
  fmt::print("rank {} is right\n", comm.rank());
}
