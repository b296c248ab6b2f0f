#include "collective/trusted.hpp"

#include <numeric>

#include <tessera/collective.hpp>

#include "collective/call_plan.hpp"
#include "collective/guarded.hpp"
#include "collective/schedule.hpp"
#include "collective/tally.hpp"
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

int64_t row_bytes_of(const Asked& asked, size_t dim) { return row_bytes(asked.x->shape(), dim, asked.x->dtype()); }

// Along an inner dimension the one call brings everything to memory of our own, from where it is put in place when all is
// here. A move puts in place what has come while more comes: for that it pays to agree, where there is much of it.
bool should_agree(const Network& network, const Dims& shape, size_t dim, double bytes) {
  if (volume(Dims(std::span(shape.data(), dim))) == 1) return false;
  const Prices& prices = network.prices;
  const auto rounds = static_cast<double>(doublings(network.hosts.count()));
  return bytes * Prices::kPackedByteUs > rounds * (prices.round_us + prices.message_us);
}

// Alike on all ranks, where the caller is right: so no strides matter.
bool has_way(CommState& comm, const Asked& asked) {
  const Tensor& x = *asked.x;
  if (comm.size() == 1 || !x.defined() || asked.dim < -x.ndim() || asked.dim >= x.ndim()) return false;
  const auto dim = static_cast<size_t>(normalize_dim(asked.dim, x.shape().size()));
  const int64_t rows = rows_of(*asked.sizes), row_bytes = row_bytes_of(asked, dim);
  if (!comm.transport().gathers_trusted(rows, row_bytes)) return false;
  const Network* const network = comm.transport().network();
  return network == nullptr ||
         !should_agree(*network, x.shape(), dim, static_cast<double>(rows) * static_cast<double>(row_bytes));
}

// A loop, as most ranks are few: std::equal() calls memcmp().
bool same(const Sizes& a, const Sizes& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Within the handler of what it was. Not inlined: it would make every call longer.
[[gnu::noinline, noreturn]] void fail_trusted(CommState& comm, int64_t call, Tally& tally) {
  const auto again = [&] {
    try {
      throw;
    } catch (const PeerTrouble& trouble) {
      comm.fail(trouble, call);
    }
  };
  run_guarded(comm, call, again, [&](const char* error) { tally.end(comm, call, error); });
  std::terminate();
}

}  // namespace

bool TrustedGather::fits(const Tensor& x, const Tensor& out, int64_t dim, const Sizes& sizes) const {
  return dim == dim_ && x_.fits(x) && out_.fits(out) && !out.read_only() && same(sizes, rows_.sizes);
}

void TrustedGather::work_out(CommState& comm, const Asked& asked) {
  const Tensor &x = *asked.x, &out = *asked.out;
  const auto dim = static_cast<size_t>(normalize_dim(asked.dim, x.shape().size()));
  check_own_size(comm, x, dim, *asked.sizes);
  shape_ = x.shape();
  shape_[dim] = rows_of(*asked.sizes);
  if (out.defined()) check_out(out, x.dtype(), shape_);
  dim_ = asked.dim;
  x_ = TensorForm::of(x);
  out_ = TensorForm::of(out);
  x_is_contiguous_ = x.is_contiguous();
  const bool out_is_contiguous = !out.defined() || out.is_contiguous();
  rows_ = {.dim = dim,
           .sizes = *asked.sizes,
           .row_bytes = row_bytes_of(asked, dim),
           .out_in_order = out_is_contiguous && volume(Dims(std::span(shape_.data(), dim))) == 1};
  for (int64_t at = 0; const int64_t size : rows_.sizes) {
    rows_.places.push_back(at);
    at += size;
  }
  comm.transport().prepare_trusted(rows_);
  count(comm.size(), x.bytes());
}

void TrustedGather::count(int ranks, int64_t own_bytes) {
  const int64_t all_bytes = rows_of(rows_.sizes) * rows_.row_bytes;
  counted_.moves = 1;
  counted_.messages = ranks - 1;
  counted_.bytes_received = all_bytes - own_bytes;
  counted_.bytes_sent = own_bytes * (ranks - 1);
  counted_.copies = ranks;
  counted_.bytes_copied = all_bytes;
  counted_.bytes_between_hosts = rows_.bytes_between_hosts;
  counted_.bytes_within_host = rows_.bytes_within_host;
}

inline void TrustedGather::run(CommState& comm, const Tensor& x, const Tensor& out, const Tensor& result,
                               int64_t call) const {
  const bool x_in_order = x_is_contiguous_ && lie_apart(x, x_, out, out_);
  const auto number = static_cast<uint64_t>(call) * 256 + static_cast<uint64_t>(OpCode::all_gather);
  comm.transport().gather_trusted(x, x_in_order, result, rows_, number,
                                  rows_.heeds_deadline ? comm.deadline() : Deadline());
}

inline const TrustedGather* TrustedGathers::find(const Tensor& x, const Tensor& out, int64_t dim, const Sizes& sizes) {
  for (size_t i = all_.size(); i > 0; --i) {
    if (all_[last_].fits(x, out, dim, sizes)) return &all_[last_];
    last_ = last_ + 1 < all_.size() ? last_ + 1 : 0;
  }
  return nullptr;
}

const TrustedGather& TrustedGathers::add(TrustedGather gather) {
  if (all_.size() < kMost) {
    all_.push_back(std::move(gather));
    return all_.back();
  }
  TrustedGather& place = all_[oldest_];
  oldest_ = (oldest_ + 1) % kMost;
  return place = std::move(gather);
}

bool gather_trusted(CommState& comm, const Asked& asked, Outcome& outcome, const Site& site) {
  const Tensor &x = *asked.x, &out = *asked.out;
  TrustedGathers& known = kept<TrustedGathers>(comm.trusted);
  const TrustedGather* gather = known.find(x, out, asked.dim, *asked.sizes);
  if (gather == nullptr && !has_way(comm, asked)) return false;
  const int64_t call = comm.next_call();
  Tally tally;
  const auto run = [&] {
    if (gather == nullptr) {
      TrustedGather made;
      made.work_out(comm, asked);
      gather = &known.add(std::move(made));
    }
    outcome.sizes = *asked.sizes;
    outcome.tensor = out;
    if (!out.defined()) {
      outcome.tensor = comm.transport().allocate(x.dtype(), gather->shape());
      tally.allocated(outcome.tensor.bytes());
    }
    gather->run(comm, x, out, outcome.tensor, call);
  };
  tally.begin(comm, call, OpCode::all_gather, 1, site, false, nullptr);
  try {
    run();
  } catch (...) {
    fail_trusted(comm, call, tally);
  }
  tally.moved(gather->counted(), nullptr);
  tally.end(comm, call, nullptr);
  return true;
}

bool gather_again(CommState& comm, const Tensor& x, const AllGather& op, const Site& site) {
  if (comm.has_pending() || comm.trusted == nullptr || op.scale != 1 || !op.out.defined()) return false;
  comm.check_open();
  TrustedGathers& known = *static_cast<TrustedGathers*>(comm.trusted.get());
  const TrustedGather* const gather = known.find(x, op.out, op.dim, op.sizes);
  if (gather == nullptr) return false;
  const int64_t call = comm.next_call();
  Tally tally;
  tally.begin(comm, call, OpCode::all_gather, 1, site, false, &gather->counted());
  try {
    gather->run(comm, x, op.out, op.out, call);
  } catch (...) {
    fail_trusted(comm, call, tally);
  }
  tally.end(comm, call, nullptr);
  return true;
}

}  // namespace tessera::detail
