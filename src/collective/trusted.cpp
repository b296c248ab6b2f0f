#include "collective/trusted.hpp"

#include <numeric>

#include "comm/comm_state.hpp"
#include "tensor/strided.hpp"

namespace tessera::detail {
namespace {

void check_own_size(const CommState& comm, const Tensor& x, size_t dim, const Sizes& sizes) {
  if (sizes.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(fmt::format("sizes has {} entries for {} ranks: give one for each", sizes.size(), comm.size()));
  }
  const int64_t own = sizes[static_cast<size_t>(comm.rank())];
  if (x.shape()[dim] != own) {
    throw ShapeError(fmt::format("sizes[{}] is {}, but dim {} of x has {}", comm.rank(), own, dim, x.shape()[dim]));
  }
  for (const int64_t size : sizes) {
    if (size < 0) throw ShapeError(fmt::format("sizes has {}: a size cannot be negative", size));
  }
}

void check_out(const Tensor& out, DType dtype, const Dims& shape) {
  if (out.dtype() != dtype || !(out.shape() == shape)) {
    throw ShapeError(fmt::format("out is {} {}, but the result is {} {}", out.dtype(), out.shape(), dtype, shape));
  }
  if (out.read_only() || may_overlap_itself(out)) throw ShapeError("out cannot be written to");
}

int64_t rows_of(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

}  // namespace

bool TrustedGather::fits(const Asked& asked) const {
  return noted_ && asked.dim == dim_ && x_.fits(*asked.x) && out_.fits(*asked.out) && !asked.out->read_only() &&
         *asked.sizes == rows_.sizes;
}

bool TrustedGather::work_out(CommState& comm, const Asked& asked) {
  const Tensor &x = *asked.x, &out = *asked.out;
  const Sizes& sizes = *asked.sizes;
  noted_ = false;
  if (comm.size() == 1 || !x.defined() || x.ndim() == 0) return false;
  const int64_t ndim = x.ndim();
  if (asked.dim < -ndim || asked.dim >= ndim) return false;
  const auto dim = static_cast<size_t>(normalize_dim(asked.dim, x.shape().size()));
  Dims row = x.shape();
  row[dim] = 1;
  const int64_t row_bytes = volume(row) * size_bytes(x.dtype());
  if (!comm.transport().gathers_trusted(rows_of(sizes), row_bytes)) return false;
  check_own_size(comm, x, dim, sizes);
  shape_ = x.shape();
  shape_[dim] = rows_of(sizes);
  if (out.defined()) check_out(out, x.dtype(), shape_);
  dim_ = asked.dim;
  x_ = TensorForm::of(x);
  out_ = TensorForm::of(out);
  x_is_contiguous_ = x.is_contiguous();
  const bool out_is_contiguous = !out.defined() || out.is_contiguous();
  rows_ = {.dim = dim,
           .sizes = sizes,
           .row_bytes = row_bytes,
           .out_in_order = out_is_contiguous && volume(Dims(std::span(shape_.data(), dim))) == 1};
  for (int64_t at = 0; const int64_t size : sizes) {
    rows_.places.push_back(at);
    at += size;
  }
  count(comm.size(), x.bytes());
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

void TrustedGather::run(CommState& comm, const Asked& asked, Outcome& outcome, int64_t call, Deadline deadline) {
  const Tensor &x = *asked.x, &out = *asked.out;
  if (out.defined()) outcome.tensor = out;
  else outcome.tensor = comm.transport().allocate(x.dtype(), shape_);
  if (asked.whole != nullptr) outcome.sizes = *asked.sizes;  // whoever asks in short has them
  rows_.x_in_order = x_is_contiguous_ && lie_apart(x, x_, out, out_);
  comm.transport().gather_trusted(x, outcome.tensor, rows_, static_cast<uint64_t>(call), deadline);
}

}  // namespace tessera::detail
