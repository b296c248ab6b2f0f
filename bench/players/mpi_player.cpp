// One rank of the players `openmpi` and `mpich`: this one source, built once with each.
//
//   mpirun -n RANKS player NAME SOCKET
//
// It does what careful code on MPI does: it finds out the sizes where tessera does too, and writes to warm memory that
// it has allocated beforehand, which is more than a caller who learns the sizes in the call could do. As `openmpi-raw` and
// `mpich-raw` it knows the sizes beforehand: the call that moves is all that it makes. As `openmpi-least` and `mpich-least`
// the same goes through a function with the arguments and the result of a library's: with MPI_THREAD_MULTIPLE, sizes and an
// output that the caller keeps, and a result that has both. It does no work of its own.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string_view>

#include "play.hpp"

namespace tessera::bench {
namespace {

using Buffers = std::vector<std::vector<float>>;

std::vector<int> running_sum(const std::vector<int>& counts) {
  std::vector<int> starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

// What a gather is given, and what comes back.
struct Gather {
  std::vector<int64_t> sizes;
  std::shared_ptr<void> owner;  // of the output
  float* out;
};

// As a library's: called through a pointer, as one that is loaded when the program runs.
[[gnu::noinline]] Gather gather_least(const std::vector<float>& in, Gather op, const int* counts, const int* starts) {
  MPI_Allgatherv(in.data(), static_cast<int>(in.size()), MPI_FLOAT, op.out, counts, starts, MPI_FLOAT, MPI_COMM_WORLD);
  return {std::move(op.sizes), std::move(op.owner), op.out};
}
Gather (*volatile least_gather)(const std::vector<float>&, Gather, const int*, const int*) = gather_least;

class MpiRank : public Rank {
 public:
  MpiRank(int rank, int ranks) : rank_(rank), ranks_(ranks), sizes_(static_cast<size_t>(ranks)) {}

  void prepare(const Case& c) override {
    case_ = c;
    is_least_ = c.output == "least";
    is_raw_ = is_least_ || c.output == "raw";
    inputs_.clear();
    outputs_.clear();
    for (int64_t set = 0; set < c.sets; ++set) {
      inputs_.emplace_back(static_cast<size_t>(input_of(c, rank_).elements()));
      outputs_.emplace_back(static_cast<size_t>(output_elements(c, rank_)));
      fill_input(c, rank_, set, inputs_.back().data());
    }
    staging_.resize(c.op == Op::all_gather && c.dim == 1 ? outputs_[0].size() : 0);
    counts_.resize(static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_; ++r) counts_[static_cast<size_t>(r)] = static_cast<int>(cut_of(c, r).elements());
    find_starts();
    for (int r = 0; r < ranks_; ++r) sizes_[static_cast<size_t>(r)] = c.extent(r);
    make_types();
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  void call(int64_t set) override {
    auto& in = inputs_[static_cast<size_t>(set)];
    auto& out = outputs_[static_cast<size_t>(set)];
    switch (case_.op) {
      case Op::all_gather: return all_gather(in, out);
      case Op::reduce_scatter:
        MPI_Reduce_scatter(in.data(), out.data(), counts_.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Op::all_reduce:
        MPI_Allreduce(in.data(), out.data(), static_cast<int>(in.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Op::all_to_all: return all_to_all(in, out);
      case Op::redistribute: return turn(in, out);
      case Op::broadcast:
        MPI_Bcast(rank_ == 0 ? in.data() : out.data(), static_cast<int>(out.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
  }

  float* input(int64_t set) override { return inputs_[static_cast<size_t>(set)].data(); }
  float* output(int64_t set) override {
    return case_.op == Op::broadcast && rank_ == 0 ? nullptr : outputs_[static_cast<size_t>(set)].data();
  }

 private:
  void all_gather(const std::vector<float>& in, std::vector<float>& out) {
    if (!is_raw_) {
      int64_t mine = case_.extent(rank_);
      MPI_Allgather(&mine, 1, MPI_INT64_T, sizes_.data(), 1, MPI_INT64_T, MPI_COMM_WORLD);
      for (size_t r = 0; r < sizes_.size(); ++r) counts_[r] = static_cast<int>(sizes_[r] * case_.across);
      find_starts();
    }
    float* target = case_.dim == 0 ? out.data() : staging_.data();
    if (is_least_) {
      least_gather(in, {sizes_, owner_, target}, counts_.data(), starts_.data());
    } else {
      MPI_Allgatherv(in.data(), static_cast<int>(in.size()), MPI_FLOAT, target, counts_.data(), starts_.data(),
                     MPI_FLOAT, MPI_COMM_WORLD);
    }
    if (case_.dim == 1) put_side_by_side(out);
  }

  void find_starts() {
    starts_.resize(counts_.size());
    std::exclusive_scan(counts_.begin(), counts_.end(), starts_.begin(), 0);
  }

  // Columns of different widths are no single MPI type: they are gathered behind one another and then put in place.
  void put_side_by_side(std::vector<float>& out) {
    const auto width = static_cast<size_t>(std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}));
    size_t column = 0;
    for (size_t r = 0; r < sizes_.size(); ++r) {
      const auto columns = static_cast<size_t>(sizes_[r]);
      const float* from = staging_.data() + starts_[r];
      for (size_t row = 0; row < static_cast<size_t>(case_.across); ++row) {
        std::memcpy(out.data() + row * width + column, from + row * columns, columns * sizeof(float));
      }
      column += columns;
    }
  }

  void all_to_all(const std::vector<float>& in, std::vector<float>& out) {
    const int64_t* rows = &case_.counts[static_cast<size_t>(rank_ * ranks_)];
    MPI_Alltoall(rows, 1, MPI_INT64_T, sizes_.data(), 1, MPI_INT64_T, MPI_COMM_WORLD);
    std::vector<int> sends(sizes_.size()), receives(sizes_.size());
    for (size_t r = 0; r < sizes_.size(); ++r) {
      sends[r] = static_cast<int>(rows[r] * case_.across);
      receives[r] = static_cast<int>(sizes_[r] * case_.across);
    }
    MPI_Alltoallv(in.data(), sends.data(), running_sum(sends).data(), MPI_FLOAT, out.data(), receives.data(),
                  running_sum(receives).data(), MPI_FLOAT, MPI_COMM_WORLD);
  }

  // What goes to each rank is a box of the input and lands in one piece: a type for each, made once.
  void make_types() {
    for (MPI_Datatype& type : columns_) MPI_Type_free(&type);
    columns_.clear();
    if (case_.op != Op::redistribute) return;
    columns_.resize(static_cast<size_t>(ranks_));
    floats_.assign(columns_.size(), MPI_FLOAT);
    for (int r = 0; r < ranks_; ++r) {
      const Box box = columns_of(case_, r);
      MPI_Datatype& type = columns_[static_cast<size_t>(r)];
      MPI_Type_vector(static_cast<int>(case_.extent(rank_)), static_cast<int>(box.columns),
                      static_cast<int>(case_.across), MPI_FLOAT, &type);
      MPI_Type_commit(&type);
    }
  }

  void turn(const std::vector<float>& in, std::vector<float>& out) {
    const std::vector<int> ones(sizes_.size(), 1);
    std::vector<int> from(sizes_.size()), receives(sizes_.size()), to(sizes_.size());
    const auto width = static_cast<int>(columns_of(case_, rank_).columns);
    for (int r = 0; r < ranks_; ++r) {
      const auto i = static_cast<size_t>(r);
      from[i] = static_cast<int>(columns_of(case_, r).column * static_cast<int64_t>(sizeof(float)));
      receives[i] = static_cast<int>(case_.extent(r)) * width;
      to[i] = static_cast<int>(case_.offset(r)) * width * static_cast<int>(sizeof(float));
    }
    MPI_Alltoallw(in.data(), ones.data(), from.data(), columns_.data(), out.data(), receives.data(), to.data(),
                  floats_.data(), MPI_COMM_WORLD);
  }

  int rank_, ranks_;
  Case case_;
  std::vector<MPI_Datatype> columns_, floats_;
  Buffers inputs_, outputs_;
  std::vector<float> staging_;
  std::vector<int64_t> sizes_;
  std::vector<int> counts_, starts_;
  std::shared_ptr<void> owner_ = std::make_shared<int>();
  bool is_raw_ = false, is_least_ = false;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  const bool is_least = argc > 1 && std::string_view(argv[1]).ends_with("-least");
  int provided = 0;
  MPI_Init_thread(&argc, &argv, is_least ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    if (argc != 3) throw std::runtime_error("usage: mpirun -n RANKS player NAME SOCKET");
    auto channel = tessera::bench::Channel::connect(argv[2]);
    tessera::bench::MpiRank player(rank, ranks);
    tessera::bench::Play(channel, rank, player).run(argv[1], ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
