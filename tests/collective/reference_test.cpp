// Random ragged cases against simple loops in one process: every rank knows the tensors of all, and so what it must get.
#include <tessera/collective.hpp>

#include "comm/comm_state.hpp"
#include "support/random.hpp"

namespace tessera::testing_support {
namespace {

// The collectives as loops ----------------------------------------------------------------------------------------------

std::byte* address(const Tensor& t, const Dims& index) {
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * t.strides()[d];
  return t.data() + at * size_bytes(t.dtype());
}

// `length` elements of dim from `begin` on.
Tensor slice(const Tensor& t, int64_t dim, int64_t begin, int64_t length) {
  const auto d = static_cast<size_t>(normalize_dim(dim, t.shape().size()));
  const Tensor result = Tensor::empty(t.dtype(), with_extent(t.shape(), dim, length));
  for_each_element(result, [&](Dims index, std::byte* to) {
    index[d] += begin;
    std::memcpy(to, address(t, index), static_cast<size_t>(size_bytes(t.dtype())));
  });
  return result;
}

Tensor concatenation(const std::vector<Tensor>& list, int64_t dim) {
  const auto d = static_cast<size_t>(normalize_dim(dim, list[0].shape().size()));
  int64_t extent = 0;
  for (const Tensor& t : list) extent += t.shape(dim);
  const Tensor result = Tensor::empty(list[0].dtype(), with_extent(list[0].shape(), dim, extent));
  for_each_element(result, [&](Dims index, std::byte* to) {
    size_t i = 0;
    for (; index[d] >= list[i].shape(dim); ++i) index[d] -= list[i].shape(dim);
    std::memcpy(to, address(list[i], index), static_cast<size_t>(size_bytes(result.dtype())));
  });
  return result;
}

Tensor combination(const std::vector<Tensor>& terms, Reduction reduction) {
  const Tensor result = Tensor::empty(terms[0].dtype(), terms[0].shape());
  visit(result.dtype(), [&]<class T>(std::type_identity<T>) {
    std::array<T, 64> values{};
    for_each_element(result, [&](const Dims& index, std::byte* to) {
      for (size_t k = 0; k < terms.size(); ++k) std::memcpy(&values[k], address(terms[k], index), sizeof(T));
      const T value = defined_result<T>(reduction, {values.data(), terms.size()});
      std::memcpy(to, &value, sizeof(T));
    });
  });
  return result;
}

Sizes offsets_of(const Sizes& sizes) {
  Sizes offsets;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    offsets.push_back(at);
    at += size;
  }
  return offsets;
}

// Random tensors --------------------------------------------------------------------------------------------------------

DType pick_dtype() { return *rc::gen::elementOf(std::vector<DType>(kDTypes.begin(), kDTypes.end())); }
Form pick_form() { return kForms[static_cast<size_t>(pick(0, 5))]; }

Reduction pick_reduction(DType dtype) {
  std::vector<ReduceOp> fit;
  for (const ReduceOp op : kReduceOps) {
    if (reducible(op, dtype)) fit.push_back(op);
  }
  const ReduceOp op = *rc::gen::elementOf(fit);
  return {op, op == ReduceOp::premul_sum ? static_cast<double>(pick(-30, 30)) / 7 : 1.0};
}

Tensor noise(DType dtype, const Dims& shape, uint64_t seed, int rank, Form form = Form::plain) {
  const Tensor t = new_tensor(dtype, shape, form);
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for_each_element(t, [&](const Dims& index, std::byte* at) {
      const T value = term_from<T>(hash_of(index, seed * 64 + static_cast<uint64_t>(rank)));
      std::memcpy(at, &value, sizeof(T));
    });
  });
  return t;
}

// One tensor for each rank, of shape(rank).
template <class Shape>
std::vector<Tensor> noises(DType dtype, const Cut& c, const Shape& shape) {
  std::vector<Tensor> list;
  for (int r = 0; r < c.ranks; ++r) list.push_back(noise(dtype, shape(r), c.seed, r));
  return list;
}

void require_equal(const Tensor& found, const Tensor& expected, std::string_view what) {
  require(found.equals(expected), fmt::format("{}:\n  found    {}\n  expected {}", what, found, expected));
}

// Properties ------------------------------------------------------------------------------------------------------------

RC_GTEST_PROP(Reference, Gathers, ()) {
  const Cut c = pick_cut();
  const DType dtype = pick_dtype();
  const Form form = pick_form();
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const auto all = noises(dtype, c, [&](int r) { return c.box(r).extent; });
    const auto me = static_cast<size_t>(comm.rank());
    const Tensor x = noise(dtype, all[me].shape(), c.seed, comm.rank(), form);
    const Tensor whole = concatenation(all, c.dim);
    const auto [gathered, sizes] = all_gather(comm, x, c.dim);
    require_equal(gathered, whole, "all_gather");
    require(sizes == c.sizes && gather_sizes(comm, x, c.dim) == c.sizes, "sizes");
    const auto parts = all_gather_parts(comm, x, c.dim).parts;
    for (size_t r = 0; r < all.size(); ++r) require_equal(parts[r], all[r], "all_gather_parts");
    const Tensor at_root = gather(comm, x, c.root, c.dim).tensor;
    if (comm.rank() == c.root) require_equal(at_root, whole, "gather");
    require_equal(split(comm, whole, c.dim, c.sizes), all[me], "split");
    const Tensor dealt = scatter(comm, comm.rank() == c.root ? whole : Tensor(), c.root, c.dim, c.sizes).tensor;
    require_equal(dealt, all[me], "scatter");
    require_equal(broadcast(comm, comm.rank() == c.root ? x : Tensor(), c.root), all[static_cast<size_t>(c.root)],
                  "broadcast");
  });
}

RC_GTEST_PROP(Reference, GathersOfEqualShapes, ()) {
  const Cut c = pick_cut();
  const DType dtype = pick_dtype();
  const Form form = pick_form();
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const auto same = all_gather_same(comm, noise(dtype, c.shape, c.seed, comm.rank(), form));
    for (int r = 0; r < c.ranks; ++r) {
      require_equal(same[static_cast<size_t>(r)], noise(dtype, c.shape, c.seed, r), "all_gather_same");
    }
  });
}

RC_GTEST_PROP(Reference, Reductions, ()) {
  const Cut c = pick_cut();
  const DType dtype = pick_dtype();
  const Reduction op = pick_reduction(dtype);
  const Form form = pick_form();
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const Tensor whole = combination(noises(dtype, c, [&](int) { return c.shape; }), op);
    const Tensor x = noise(dtype, c.shape, c.seed, comm.rank(), form);
    const auto me = static_cast<size_t>(comm.rank());
    require_equal(reduce_scatter(comm, x, c.dim, c.sizes, op),
                  slice(whole, c.dim, offsets_of(c.sizes)[me], c.sizes[me]), "reduce_scatter");
    require_equal(all_reduce(comm, x, op), whole, "all_reduce");
    const Tensor at_root = reduce(comm, x, c.root, op);
    if (comm.rank() == c.root) require_equal(at_root, whole, "reduce");
  });
}

RC_GTEST_PROP(Reference, AllToAll, ()) {
  Cut c = pick_cut(static_cast<int>(pick(1, 7)), 2);
  const DType dtype = pick_dtype();
  const Form form = pick_form();
  const auto ndim = static_cast<int64_t>(c.shape.size());
  const int64_t split_dim = (c.dim + ndim + pick(1, ndim - 1)) % ndim;
  const Sizes cuts = pick_sizes(c.ranks, 3);
  c.shape = with_extent(c.shape, split_dim, sum_of(cuts));
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const auto all = noises(dtype, c, [&](int r) { return c.box(r).extent; });
    const auto me = static_cast<size_t>(comm.rank());
    const Tensor x = noise(dtype, all[me].shape(), c.seed, comm.rank(), form);
    const auto [mine, sizes] = all_to_all(comm, x, split_dim, c.dim, cuts);
    require_equal(mine, slice(concatenation(all, c.dim), split_dim, offsets_of(cuts)[me], cuts[me]), "all_to_all");
    require(sizes == c.sizes, "sizes");
  });
}

RC_GTEST_PROP(Reference, AllToAllV, ()) {
  const Cut c = pick_cut();
  const DType dtype = pick_dtype();
  const Form form = pick_form();
  std::vector<Sizes> send;
  for (int r = 0; r < c.ranks; ++r) send.push_back(pick_sizes(c.ranks, 3));
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    const auto all =
        noises(dtype, c, [&](int r) { return with_extent(c.shape, c.dim, sum_of(send[static_cast<size_t>(r)])); });
    const Tensor x = noise(dtype, all[me].shape(), c.seed, comm.rank(), form);
    std::vector<Tensor> pieces;
    for (size_t r = 0; r < all.size(); ++r) {
      pieces.push_back(slice(all[r], c.dim, offsets_of(send[r])[me], send[r][me]));
    }
    const auto [came, sizes] = all_to_all_v(comm, x, send[me], {}, c.dim);
    require_equal(came, concatenation(pieces, c.dim), "all_to_all_v");
    for (size_t r = 0; r < all.size(); ++r) require(sizes[r] == send[r][me], "sizes");
  });
}

// Same bits whatever the way: f32 sums of non-integers, which every other order of summation would change.
RC_GTEST_PROP(Reference, SumsHaveTheSameBitsWhateverTheWay, ()) {
  const Cut c = pick_cut(static_cast<int>(pick(1, 7)), 1, *rc::gen::element<int64_t>(3, 12));
  const Reduction op = *rc::gen::element(ReduceOp::sum, ReduceOp::avg);
  property_on_ranks(c.ranks, [&](Comm& comm) {
    const Tensor x = noise(DType::f32, c.shape, c.seed, comm.rank());
    const Tensor expected = combination(noises(DType::f32, c, [&](int) { return c.shape; }), op);
    require_equal(all_reduce(comm, x, op), expected, "all_reduce");

    const Tensor in_place = x.clone();
    comm.reset_stats();
    all_reduce(comm, in_place, op, in_place);
    // Unless all of it travels with the announcement, peers read what others would be writing over.
    const size_t travels = comm.state().transport().inline_bytes(x, true);
    const int64_t rounds = comm.size() > 1 && x.bytes() <= static_cast<int64_t>(travels) ? 1 : 2;
    require(x.bytes() == 0 || comm.stats().moves == rounds, "in place takes two rounds");
    require_equal(in_place, expected, "all_reduce in place");

    const Tensor at_root = reduce(comm, x, c.root, op);
    require_equal(broadcast(comm, at_root, c.root), expected, "reduce, then broadcast");

    const Tensor own = reduce_scatter(comm, x, c.dim, c.sizes, op);
    require_equal(all_gather(comm, own, c.dim, c.sizes).tensor, expected, "reduce_scatter, then all_gather");

    // Among others that are large, a small one rides along.
    const auto list =
        run(comm, std::vector{AllReduce{.x = x, .op = op}, AllReduce{.x = Tensor::zeros(DType::f32, {9000})}});
    require_equal(list[0], expected, "all_reduce in a list");
  });
}

}  // namespace
}  // namespace tessera::testing_support
