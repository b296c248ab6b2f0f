#include "collective/trusted.hpp"

#include <numeric>

#include "comm/comm_state.hpp"
#include "tensor/strided.hpp"

namespace tessera::detail {
namespace {

void check_own_size(const CommState& comm, const Description& d, size_t dim) {
  if (d.sizes.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(fmt::format("sizes has {} entries for {} ranks: give one for each", d.sizes.size(), comm.size()));
  }
  const int64_t own = d.sizes[static_cast<size_t>(comm.rank())];
  if (d.x.shape()[dim] != own) {
    throw ShapeError(fmt::format("sizes[{}] is {}, but dim {} of x has {}", comm.rank(), own, dim, d.x.shape()[dim]));
  }
  for (const int64_t size : d.sizes) {
    if (size < 0) throw ShapeError(fmt::format("sizes has {}: a size cannot be negative", size));
  }
}

void check_out(const Description& d, const Dims& shape) {
  if (d.out.dtype() != d.x.dtype() || !(d.out.shape() == shape)) {
    throw ShapeError(
        fmt::format("out is {} {}, but the result is {} {}", d.out.dtype(), d.out.shape(), d.x.dtype(), shape));
  }
  if (d.out.read_only() || may_overlap_itself(d.out)) throw ShapeError("out cannot be written to");
}

int64_t rows_of(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

}  // namespace

bool can_trust(CommState& comm, const Description& d) {
  if (comm.size() == 1 || !d.x.defined() || d.x.ndim() == 0) return false;
  const int64_t ndim = d.x.ndim();
  if (d.dim < -ndim || d.dim >= ndim) return false;
  Dims row = d.x.shape();
  row[static_cast<size_t>(d.dim < 0 ? d.dim + ndim : d.dim)] = 1;
  return comm.transport().gathers_trusted(rows_of(d.sizes), volume(row) * size_bytes(d.x.dtype()));
}

Stats gather_trusted(CommState& comm, const Description& d, Outcome& outcome, int64_t call, Deadline deadline) {
  const auto dim = static_cast<size_t>(normalize_dim(d.dim, d.x.shape().size()));
  check_own_size(comm, d, dim);
  Dims shape = d.x.shape();
  shape[dim] = rows_of(d.sizes);
  if (d.out.defined()) check_out(d, shape);
  outcome.tensor = d.out.defined() ? d.out : comm.transport().allocate(d.x.dtype(), shape);
  outcome.sizes = d.sizes;
  comm.transport().gather_trusted(d.x, outcome.tensor, dim, d.sizes, static_cast<uint64_t>(call), deadline);
  Stats counted;
  counted.moves = 1;
  counted.messages = comm.size() - 1;
  counted.bytes_received = outcome.tensor.bytes() - d.x.bytes();
  counted.bytes_sent = d.x.bytes() * (comm.size() - 1);
  counted.copies = comm.size();
  counted.bytes_copied = outcome.tensor.bytes();
  return counted;
}

}  // namespace tessera::detail
