// Weights go from a trainer to a server. Ranks 0 to 3 train, each with some rows (FSDP); ranks 4 and 5 serve, each with half
// of the columns (tensor parallel). No rank ever has the whole, and each byte moves once.
#include <atomic>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

const Dims kShape = {1000, 600};

float weight(std::span<const int64_t> at) { return static_cast<float>(at[0] * 1000 + at[1]); }

Tensor part_of(const Layout& layout, int rank) {
  const auto box = layout.box(kShape, rank);
  return box ? Tensor::generate(DType::f32, box->extent, weight, box->offset) : Tensor();
}

}  // namespace

int main() {
  const Mesh trainer({{"fsdp", 4}}), server({{"tp", 2}}, {4, 5});
  const Layout rows(trainer, {Shard(0)}), columns(server, {Shard(1)});
  const Plan hand_over = plan(rows, columns, kShape, DType::f32, Topology::dtensor(trainer, server, 8));
  fmt::print("{}", hand_over.explain());

  std::atomic<int64_t> moved_bytes = 0;
  std::atomic<bool> right = true;
  run(6, [&](Comm& comm) {
    const Tensor mine = part_of(rows, comm.rank());  // undefined on the server
    const Tensor served = redistribute(comm, mine, hand_over);
    const Tensor expected = part_of(columns, comm.rank());
    if (served.defined() != expected.defined() || (served.defined() && !served.equals(expected))) right = false;
    moved_bytes += comm.stats().bytes_received;
  });
  fmt::print("{} of {} bytes moved; the server's weights are {}\n", moved_bytes.load(),
             kShape[0] * kShape[1] * size_bytes(DType::f32), right ? "right" : "WRONG");
  return right && moved_bytes == kShape[0] * kShape[1] * size_bytes(DType::f32) ? 0 : 1;
}
