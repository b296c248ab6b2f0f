// Conformance: reductions, held against their definition bit for bit.
#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

Reduction reduction_for(size_t i, DType dtype) {
  const size_t count = std::size(kReduceOps);
  while (!reducible(kReduceOps[i % count], dtype)) ++i;
  return {kReduceOps[i % count], kReduceOps[i % count] == ReduceOp::premul_sum ? 0.3 : 1.0};
}

std::string text_of(Reduction reduction) { return std::string(name(reduction.op)); }

class ReduceConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, ReduceConformance, everywhere(), name_of);

TEST_P(ReduceConformance, ReduceScatter) {
  on_ranks([](Comm& comm) {
    size_t i = 0;
    for (const Case& c : cases(comm.size())) {
      const Reduction op = reduction_for(i++, c.dtype);
      SCOPED_TRACE(c.text() + ", " + text_of(op));
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Box own = cut(shape, c.dim, c.sizes, comm.rank());
      const Tensor out = out_for(c, own.extent);
      const Tensor x = term(c.dtype, Box::whole(shape), comm.rank(), c.in);
      const Tensor mine = reduce_scatter(comm, x, {.dim = c.dim, .sizes = c.sizes, .op = op, .out = out});
      ASSERT_TRUE(is_combined(mine, c.dtype, own, comm.size(), op));
      ASSERT_TRUE(is_at(mine, out));
    }
  });
}

TEST_P(ReduceConformance, ReduceScatterInPlace) {
  on_ranks([](Comm& comm) {
    for (const Case& c : cases(comm.size())) {
      SCOPED_TRACE(c.text());
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Box own = cut(shape, c.dim, c.sizes, comm.rank());
      const Tensor x = term(c.dtype, Box::whole(shape), comm.rank(), c.in);
      reduce_scatter(comm, x, {.dim = c.dim, .sizes = c.sizes, .out = x.box(own)});
      ASSERT_TRUE(is_combined(x.box(own), c.dtype, own, comm.size(), ReduceOp::sum));
    }
  });
}

TEST_P(ReduceConformance, ReduceScatterCutsAsTorchChunkWhereNoSizesAreGiven) {
  on_ranks([](Comm& comm) {
    for (const int64_t extent : {0, 1, 3, 7, 10}) {
      const int64_t chunk = (extent + comm.size() - 1) / comm.size();
      const int64_t begin = std::min(extent, comm.rank() * chunk), end = std::min(extent, begin + chunk);
      const Dims shape = {3, extent};
      const Tensor mine = reduce_scatter(comm, term(DType::f32, Box::whole(shape), comm.rank()), -1);
      ASSERT_TRUE(is_combined(mine, DType::f32, {{0, begin}, {3, end - begin}}, comm.size(), ReduceOp::sum));
    }
  });
}

// Shapes with too little for everyone in any dimension, nothing at all, one element; and more than one round's worth.
const std::vector<Dims> kReducedShapes = {{},     {1},       {0},      {3, 0, 2},    {2, 2},
                                          {1, 3}, {2, 3, 4}, {5, 600}, {2, 3, 1000}, {3000, 2}};

TEST_P(ReduceConformance, AllReduce) {
  on_ranks([](Comm& comm) {
    size_t i = 0;
    for (const Dims& shape : kReducedShapes) {
      const bool large = volume(shape) > 100;
      for (const DType dtype : kDTypes) {
        if (large && i % 3 != 0 && dtype != DType::f16 && dtype != DType::f32) {
          ++i;
          continue;
        }
        const Reduction op = reduction_for(i / 14 + i, dtype);
        const Form in = kForms[i % 6], form = kForms[i / 6 % 6];
        SCOPED_TRACE(fmt::format("{} {} in form {} out form {} {}", dtype, shape, static_cast<int>(in),
                                 static_cast<int>(form), text_of(op)));
        const Box whole = Box::whole(shape);
        const Tensor x = term(dtype, whole, comm.rank(), in);
        const Tensor out = i % 4 == 0 ? Tensor() : new_tensor(dtype, shape, form);
        const Tensor all = all_reduce(comm, x, op, out);
        ASSERT_TRUE(is_combined(all, dtype, whole, comm.size(), op));
        ASSERT_TRUE(is_at(all, out));
        all_reduce(comm, x, op, x);
        ASSERT_TRUE(is_combined(x, dtype, whole, comm.size(), op)) << "in place";
        ++i;
      }
    }
  });
}

TEST_P(ReduceConformance, AllReduceWithEveryOperationAndDType) {
  on_ranks([](Comm& comm) {
    for (const ReduceOp op : kReduceOps) {
      for (const DType dtype : kDTypes) {
        if (!reducible(op, dtype)) continue;
        const Reduction reduction{op, op == ReduceOp::premul_sum ? 0.3 : 1.0};
        const Box whole = Box::whole({5, 7});
        const Tensor all = all_reduce(comm, term(dtype, whole, comm.rank()), reduction);
        ASSERT_TRUE(is_combined(all, dtype, whole, comm.size(), reduction)) << name(dtype) << " " << name(op);
      }
    }
  });
}

// One rank alone in place changes how all of them go about it.
TEST_P(ReduceConformance, AllReduceInPlaceOnOneRankOnly) {
  on_ranks([](Comm& comm) {
    for (const Dims& shape : kReducedShapes) {
      const Box whole = Box::whole(shape);
      const Tensor x = term(DType::f32, whole, comm.rank());
      const Tensor all = all_reduce(comm, x, ReduceOp::sum, comm.rank() == comm.size() - 1 ? x : Tensor());
      ASSERT_TRUE(is_combined(all, DType::f32, whole, comm.size(), ReduceOp::sum)) << fmt::format("{}", shape);
    }
  });
}

TEST_P(ReduceConformance, ReduceOfExpandedTensors) {
  on_ranks([](Comm& comm) {
    const Dims shape = {3, 4, 2}, thin = {3, 1, 2};
    for (const DType dtype : kDTypes) {
      const Tensor x = term(dtype, Box::whole(thin), comm.rank()).expand(shape);
      const Tensor all = all_reduce(comm, x);
      const Tensor expected = all_reduce(comm, x.clone());
      ASSERT_TRUE(is_combined(all.narrow(1, 0, 1), dtype, Box::whole(thin), comm.size(), ReduceOp::sum));
      ASSERT_TRUE(all.equals(expected)) << name(dtype);
    }
  });
}

TEST_P(ReduceConformance, ReduceToTheRoot) {
  on_ranks([](Comm& comm) {
    size_t i = 0;
    for (const Dims& shape : kReducedShapes) {
      for (const DType dtype : kDTypes) {
        if (volume(shape) > 100 && i % 5 != 0) {
          ++i;
          continue;
        }
        const int root = static_cast<int>(i % static_cast<size_t>(comm.size()));
        const Reduction op = reduction_for(i / 14 + i, dtype);
        const Form in = kForms[i % 6], form = kForms[i / 6 % 6];
        SCOPED_TRACE(fmt::format("{} {} in form {} out form {} {} root {}", dtype, shape, static_cast<int>(in),
                                 static_cast<int>(form), text_of(op), root));
        const bool is_root = comm.rank() == root;
        const Box whole = Box::whole(shape);
        const Tensor x = term(dtype, whole, comm.rank(), in);
        const Tensor out = is_root && i % 4 != 0 ? new_tensor(dtype, shape, form) : Tensor();
        const Tensor all = reduce(comm, x, root, op, out);
        ASSERT_EQ(all.defined(), is_root);
        if (is_root) {
          ASSERT_TRUE(is_combined(all, dtype, whole, comm.size(), op));
          ASSERT_TRUE(is_at(all, out));
        }
        reduce(comm, x, root, op, is_root ? x : Tensor());
        if (is_root) {
          ASSERT_TRUE(is_combined(x, dtype, whole, comm.size(), op)) << "in place";
        }
        ++i;
      }
    }
  });
}

}  // namespace
}  // namespace tessera::testing_support
