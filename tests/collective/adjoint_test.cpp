// For every collective A and all x, y: the sum over ranks of <A x, y> equals that of <x, A* y>, exactly.
#include <tessera/gradient.hpp>

#include "support/random.hpp"

namespace tessera::testing_support {
namespace {

// Small integers: their sums and products are exact in either dtype.
Tensor integers(DType dtype, const Dims& shape, uint64_t seed, int rank, Form form = Form::plain) {
  const Tensor t = new_tensor(dtype, shape, form);
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for_each_element(t, [&](const Dims& index, std::byte* at) {
      const auto small = static_cast<int64_t>(hash_of(index, seed * 64 + static_cast<uint64_t>(rank)) % 101) - 50;
      const T value = cast_to<T>(small);
      std::memcpy(at, &value, sizeof(T));
    });
  });
  return t;
}

// <a, b>; an undefined tensor stands for zero.
double dot(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return 0;
  require(a.shape() == b.shape() && a.dtype() == b.dtype(),
          fmt::format("<,> of {} {} and {} {}", a.dtype(), a.shape(), b.dtype(), b.shape()));
  double sum = 0;
  const Tensor other = b.clone();
  int64_t i = 0;
  for_each_element(a, [&](const Dims&, const std::byte* at) {
    if (a.dtype() == DType::i64) {
      int64_t value;
      std::memcpy(&value, at, sizeof value);
      sum += static_cast<double>(value) * static_cast<double>(other.span<int64_t>()[static_cast<size_t>(i++)]);
    } else {
      double value;
      std::memcpy(&value, at, sizeof value);
      sum += value * other.span<double>()[static_cast<size_t>(i++)];
    }
  });
  return sum;
}

double dot(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  require(a.size() == b.size(), "lists of different lengths");
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += dot(a[i], b[i]);
  return sum;
}

// Adds up both sides over the ranks, and compares.
void require_adjoint(Comm& comm, double forward, double backward) {
  double left = 0, right = 0;
  for (const Tensor& t : all_gather_same(comm, Tensor::full(DType::f64, {}, forward))) left += t.at<double>();
  for (const Tensor& t : all_gather_same(comm, Tensor::full(DType::f64, {}, backward))) right += t.at<double>();
  require(left == right, fmt::format("the sum of <A x, y> is {}, that of <x, A* y> is {}", left, right));
}

// The x and y of one rank, apart from each other.
struct Operands {
  DType dtype;
  uint64_t seed;
  int rank;
  Tensor x(const Dims& shape) const { return integers(dtype, shape, 2 * seed, rank, form(0)); }
  Tensor y(const Dims& shape) const { return integers(dtype, shape, 2 * seed + 1, rank, form(3)); }
  Form form(uint64_t shift) const { return kForms[(seed + shift) % 6]; }
};

// Runs body(comm, operands) on the case's ranks.
template <class Fn>
void check(const Cut& c, const Fn& body, DType dtype = DType::i64) {
  property_on_ranks(c.ranks, [&](Comm& comm) { body(comm, Operands{dtype, c.seed, comm.rank()}); });
}

// A linear reduction, its dtype, and a number of ranks for which it is exact.
struct Linear {
  Reduction op;
  DType dtype;
  int ranks;
};
Linear pick_linear() {
  const int which = static_cast<int>(pick(0, 2));
  if (which == 0) return {ReduceOp::sum, DType::i64, static_cast<int>(pick(1, 7))};
  if (which == 1) return {ReduceOp::avg, DType::f64, *rc::gen::element(1, 2, 4)};
  return {{ReduceOp::premul_sum, static_cast<double>(pick(-8, 8)) / 4}, DType::f64, static_cast<int>(pick(1, 7))};
}

RC_GTEST_PROP(Adjoint, AllGather, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.box(o.rank).extent), y = o.y(c.shape);
    const auto [all, sizes] = all_gather(comm, x, c.dim);
    require_adjoint(comm, dot(all, y), dot(x, all_gather_backward(comm, y, c.dim, sizes)));
  });
}

RC_GTEST_PROP(Adjoint, AllGatherParts, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.box(o.rank).extent);
    std::vector<Tensor> y;
    for (int r = 0; r < c.ranks; ++r) y.push_back(integers(DType::i64, c.box(r).extent, c.seed + 100 + r, o.rank));
    const auto parts = all_gather_parts(comm, x, c.dim).parts;
    require_adjoint(comm, dot(parts, y), dot(x, all_gather_parts_backward(comm, y)));
  });
}

RC_GTEST_PROP(Adjoint, AllGatherSame, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.shape);
    std::vector<Tensor> y;
    for (int r = 0; r < c.ranks; ++r) y.push_back(integers(DType::i64, c.shape, c.seed + 100 + r, o.rank));
    require_adjoint(comm, dot(all_gather_same(comm, x), y), dot(x, all_gather_same_backward(comm, y)));
  });
}

RC_GTEST_PROP(Adjoint, Split, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.shape), y = o.y(c.box(o.rank).extent);
    require_adjoint(comm, dot(split(comm, x, c.dim, c.sizes), y), dot(x, split_backward(comm, y, c.dim, c.sizes)));
  });
}

RC_GTEST_PROP(Adjoint, SplitByRank, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    std::vector<Tensor> x;
    for (int r = 0; r < c.ranks; ++r) x.push_back(integers(DType::i64, c.box(r).extent, c.seed + 100 + r, o.rank));
    const Tensor y = o.y(c.box(o.rank).extent);
    require_adjoint(comm, dot(split_by_rank(comm, x).tensor, y), dot(x, split_by_rank_backward(comm, y, x)));
  });
}

RC_GTEST_PROP(Adjoint, ReduceScatter, ()) {
  const Linear l = pick_linear();
  const Cut c = pick_cut(l.ranks);
  const auto body = [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.shape), y = o.y(c.box(o.rank).extent);
    require_adjoint(comm, dot(reduce_scatter(comm, x, c.dim, c.sizes, l.op), y),
                    dot(x, reduce_scatter_backward(comm, y, c.dim, c.sizes, l.op)));
  };
  check(c, body, l.dtype);
}

RC_GTEST_PROP(Adjoint, AllReduce, ()) {
  const Linear l = pick_linear();
  const Cut c = pick_cut(l.ranks);
  const auto body = [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.shape), y = o.y(c.shape);
    require_adjoint(comm, dot(all_reduce(comm, x, l.op), y), dot(x, all_reduce_backward(comm, y, l.op)));
  };
  check(c, body, l.dtype);
}

RC_GTEST_PROP(Adjoint, Reduce, ()) {
  const Linear l = pick_linear();
  const Cut c = pick_cut(l.ranks);
  const auto body = [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.shape), y = o.rank == c.root ? o.y(c.shape) : Tensor();
    require_adjoint(comm, dot(reduce(comm, x, c.root, l.op), y), dot(x, reduce_backward(comm, y, c.root, l.op)));
  };
  check(c, body, l.dtype);
}

RC_GTEST_PROP(Adjoint, AllToAll, ()) {
  Cut c = pick_cut(static_cast<int>(pick(1, 7)), 2);
  const auto ndim = static_cast<int64_t>(c.shape.size());
  const int64_t split_dim = (c.dim + ndim + pick(1, ndim - 1)) % ndim - ndim * pick(0, 1);
  const Sizes cuts = pick_sizes(c.ranks, 3);
  c.shape = with_extent(c.shape, split_dim, sum_of(cuts));
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.box(o.rank).extent), y = o.y(cut(c.shape, split_dim, cuts, o.rank).extent);
    const auto [mine, sizes] = all_to_all(comm, x, split_dim, c.dim, cuts);
    require_adjoint(comm, dot(mine, y), dot(x, all_to_all_backward(comm, y, split_dim, c.dim, sizes)));
  });
}

RC_GTEST_PROP(Adjoint, AllToAllV, ()) {
  const Cut c = pick_cut();
  std::vector<Sizes> send;
  for (int r = 0; r < c.ranks; ++r) send.push_back(pick_sizes(c.ranks, 3));
  check(c, [&](Comm& comm, const Operands& o) {
    const Sizes& mine = send[static_cast<size_t>(o.rank)];
    const Tensor x = o.x(with_extent(c.shape, c.dim, sum_of(mine)));
    const auto [came, sizes] = all_to_all_v(comm, x, mine, {}, c.dim);
    const Tensor y = o.y(came.shape());
    require_adjoint(comm, dot(came, y), dot(x, all_to_all_v_backward(comm, y, mine, sizes, c.dim)));
  });
}

RC_GTEST_PROP(Adjoint, Broadcast, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.rank == c.root ? o.x(c.shape) : Tensor(), y = o.y(c.shape);
    require_adjoint(comm, dot(broadcast(comm, x, c.root), y), dot(x, broadcast_backward(comm, y, c.root)));
  });
}

RC_GTEST_PROP(Adjoint, Scatter, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.rank == c.root ? o.x(c.shape) : Tensor(), y = o.y(c.box(o.rank).extent);
    const Tensor mine = scatter(comm, x, c.root, c.dim, o.rank == c.root ? c.sizes : Sizes{}).tensor;
    require_adjoint(comm, dot(mine, y), dot(x, scatter_backward(comm, y, c.root, c.dim)));
  });
}

RC_GTEST_PROP(Adjoint, Gather, ()) {
  const Cut c = pick_cut();
  check(c, [&](Comm& comm, const Operands& o) {
    const Tensor x = o.x(c.box(o.rank).extent), y = o.rank == c.root ? o.y(c.shape) : Tensor();
    const auto [all, sizes] = gather(comm, x, c.root, c.dim);
    require_adjoint(comm, dot(all, y), dot(x, gather_backward(comm, y, c.root, c.dim, sizes)));
  });
}

// A message round the ring. Rank 0 sends first and the others receive first, so that nobody waits for ever.
RC_GTEST_PROP(Adjoint, SendAndReceive, ()) {
  const Cut c = pick_cut(static_cast<int>(pick(2, 7)));
  const int64_t tag = pick(0, 3);
  check(c, [&](Comm& comm, const Operands& o) {
    const int next = (o.rank + 1) % c.ranks, last = (o.rank + c.ranks - 1) % c.ranks;
    const Tensor x = o.x(c.shape), y = o.y(c.shape);
    Received got;
    Tensor back;
    if (o.rank == 0) send(comm, x, next, tag);
    got = recv(comm, kAnySource, tag);
    if (o.rank != 0) send(comm, x, next, tag);
    require(got.source == last, "the source");
    if (o.rank == 0) recv_backward(comm, y, got.source, tag);
    back = send_backward(comm, next, tag);
    if (o.rank != 0) recv_backward(comm, y, got.source, tag);
    require_adjoint(comm, dot(got.tensor, y), dot(x, back));
  });
}

}  // namespace
}  // namespace tessera::testing_support
