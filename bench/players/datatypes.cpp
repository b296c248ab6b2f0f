// Rows that do not lie behind one another, from one rank to another: packed, or as a vector type of MPI's. By turns, and
// the best time of each counts. docs/between-hosts.md has what follows from it.
//
//   cmake --build build --target bench_players && mpirun -n 2 build/bench/datatypes_openmpi
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

struct Rows {
  int count = 0, bytes = 0, stride = 0;
};

void pack(char* to, const char* from, const Rows& rows) {
  for (int i = 0; i < rows.count; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * rows.bytes, from + static_cast<size_t>(i) * rows.stride, rows.bytes);
  }
}

void unpack(char* to, const char* from, const Rows& rows) {
  for (int i = 0; i < rows.count; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * rows.stride, from + static_cast<size_t>(i) * rows.bytes, rows.bytes);
  }
}

// Both ways at once, as in a gather.
class Swap {
 public:
  Swap(const Rows& rows, int peer)
      : rows_(rows),
        peer_(peer),
        from_(static_cast<size_t>(rows.count) * rows.stride, 'a'),
        to_(from_.size()),
        out_(static_cast<size_t>(rows.count) * rows.bytes),
        in_(out_.size()) {
    MPI_Type_vector(rows.count, rows.bytes, rows.stride, MPI_BYTE, &type_);
    MPI_Type_commit(&type_);
  }
  ~Swap() { MPI_Type_free(&type_); }
  Swap(const Swap&) = delete;

  void packed() {
    MPI_Request requests[2];
    MPI_Irecv(in_.data(), static_cast<int>(in_.size()), MPI_BYTE, peer_, 0, MPI_COMM_WORLD, &requests[0]);
    pack(out_.data(), from_.data(), rows_);
    MPI_Isend(out_.data(), static_cast<int>(out_.size()), MPI_BYTE, peer_, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    unpack(to_.data(), in_.data(), rows_);
  }
  void typed() {
    MPI_Request requests[2];
    MPI_Irecv(to_.data(), 1, type_, peer_, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(from_.data(), 1, type_, peer_, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  }

 private:
  Rows rows_;
  int peer_;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  std::vector<char> from_, to_, out_, in_;
};

template <class Fn>
double best_us(int times, Fn&& fn) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    fn();
    best = std::min(best, (MPI_Wtime() - start) * 1e6);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0 && ranks == 2)
    std::printf(
        "| KiB in all | bytes a row | packed, us | vector type, us | ratio |\n| --- | --- | --- | --- | --- |\n");
  for (int total = 64 << 10; ranks == 2 && total <= (4 << 20); total *= 8) {
    for (int bytes = 64; bytes <= (16 << 10); bytes *= 4) {
      Swap swap({total / bytes, bytes, 3 * bytes}, 1 - rank);
      double packed = 1e9, typed = 1e9;
      for (int turn = 0; turn < 12; ++turn) {
        packed = std::min(packed, best_us(8, [&] { swap.packed(); }));
        typed = std::min(typed, best_us(8, [&] { swap.typed(); }));
      }
      double slowest[2] = {packed, typed};
      MPI_Allreduce(MPI_IN_PLACE, slowest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (rank == 0) {
        std::printf("| %d | %d | %.1f | %.1f | %.2f |\n", total >> 10, bytes, slowest[0], slowest[1],
                    slowest[1] / slowest[0]);
      }
    }
  }
  if (rank == 0 && ranks != 2) std::printf("it takes 2 ranks\n");
  MPI_Finalize();
}
