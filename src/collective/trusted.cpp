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

bool TrustedGather::fits(const Description& d) const {
  return noted_ && d.dim == dim_ && x_.fits(d.x) && out_.fits(d.out) && !d.out.read_only() && d.sizes == rows_.sizes;
}

bool TrustedGather::work_out(CommState& comm, const Description& d) {
  noted_ = false;
  if (comm.size() == 1 || !d.x.defined() || d.x.ndim() == 0) return false;
  const int64_t ndim = d.x.ndim();
  if (d.dim < -ndim || d.dim >= ndim) return false;
  const auto dim = static_cast<size_t>(normalize_dim(d.dim, d.x.shape().size()));
  Dims row = d.x.shape();
  row[dim] = 1;
  const int64_t row_bytes = volume(row) * size_bytes(d.x.dtype());
  if (!comm.transport().gathers_trusted(rows_of(d.sizes), row_bytes)) return false;
  check_own_size(comm, d, dim);
  shape_ = d.x.shape();
  shape_[dim] = rows_of(d.sizes);
  if (d.out.defined()) check_out(d, shape_);
  dim_ = d.dim;
  x_ = TensorForm::of(d.x);
  out_ = TensorForm::of(d.out);
  x_is_contiguous_ = d.x.is_contiguous();
  const bool out_is_contiguous = !d.out.defined() || d.out.is_contiguous();
  rows_ = {.dim = dim,
           .sizes = d.sizes,
           .row_bytes = row_bytes,
           .out_in_order = out_is_contiguous && volume(Dims(std::span(shape_.data(), dim))) == 1};
  for (int64_t at = 0; const int64_t size : d.sizes) {
    rows_.places.push_back(at);
    at += size;
  }
  count(comm.size(), d.x.bytes());
  noted_ = true;
  return true;
}

void TrustedGather::count(int ranks, int64_t own_bytes) {
  const int64_t all_bytes = rows_of(rows_.sizes) * rows_.row_bytes;
  counted_ = {};
  counted_.moves = 1;
  counted_.messages = ranks - 1;
  counted_.bytes_received = all_bytes - own_bytes;
  counted_.bytes_sent = own_bytes * (ranks - 1);
  counted_.copies = ranks;
  counted_.bytes_copied = all_bytes;
}

void TrustedGather::run(CommState& comm, const Description& d, Outcome& outcome, int64_t call, Deadline deadline) {
  outcome.tensor = d.out.defined() ? d.out : comm.transport().allocate(d.x.dtype(), shape_);
  outcome.sizes = d.sizes;
  rows_.x_in_order = x_is_contiguous_ && lie_apart(d.x, x_, d.out, out_);
  comm.transport().gather_trusted(d.x, outcome.tensor, rows_, static_cast<uint64_t>(call), deadline);
}

}  // namespace tessera::detail
