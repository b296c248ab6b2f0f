// Conformance: the collectives with a root that only move.
#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class RootConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, RootConformance, everywhere(), name_of);

TEST_P(RootConformance, Gather) {
  on_ranks([](Comm& comm) {
    int root = 0;
    for (const Case& c : cases(comm.size())) {
      root = (root + 1) % comm.size();
      SCOPED_TRACE(fmt::format("{}, root {}", c.text(), root));
      const bool is_root = comm.rank() == root;
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Tensor x = part(c.dtype, cut(shape, c.dim, c.sizes, comm.rank()), c.in);
      const Tensor out = is_root ? out_for(c, shape) : Tensor();
      const auto [all, sizes] = gather(comm, x, {.root = root, .dim = c.dim, .out = out});
      ASSERT_EQ(sizes, c.sizes);
      ASSERT_EQ(all.defined(), is_root);
      if (!is_root) continue;
      ASSERT_TRUE(is_part(all, c.dtype, Box::whole(shape)));
      ASSERT_TRUE(is_at(all, out));
    }
  });
}

TEST_P(RootConformance, Scatter) {
  on_ranks([](Comm& comm) {
    int root = 0;
    for (const Case& c : cases(comm.size())) {
      root = (root + 1) % comm.size();
      SCOPED_TRACE(fmt::format("{}, root {}", c.text(), root));
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Box own = cut(shape, c.dim, c.sizes, comm.rank());
      const Tensor x = comm.rank() == root ? part(c.dtype, Box::whole(shape), c.in) : Tensor();
      const Tensor out = out_for(c, own.extent);
      // Only the root must know the sizes; others may say them too.
      const Sizes given = comm.rank() == root || c.out == Form::gapped ? c.sizes : Sizes{};
      const auto [mine, sizes] = scatter(comm, x, {.root = root, .dim = c.dim, .sizes = given, .out = out});
      ASSERT_TRUE(is_part(mine, c.dtype, own));
      ASSERT_TRUE(is_at(mine, out));
      ASSERT_EQ(sizes, c.sizes);
    }
  });
}

// Fewer rows than ranks too: the last ones get none.
TEST_P(RootConformance, ScatterCutsAsTorchChunkWhereNoSizesAreGiven) {
  on_ranks([](Comm& comm) {
    for (const int64_t extent : {0, 1, 3, 7, 10}) {
      const int64_t chunk = (extent + comm.size() - 1) / comm.size();
      Sizes expected;
      for (int64_t r = 0, left = extent; r < comm.size(); ++r) {
        expected.push_back(std::min(chunk, left));
        left -= expected.back();
      }
      for (int root = 0; root < comm.size(); ++root) {
        const Dims shape = {3, extent};
        const Tensor x = comm.rank() == root ? part(DType::c64, Box::whole(shape)) : Tensor();
        const auto [mine, sizes] = scatter(comm, x, root, -1);
        ASSERT_EQ(sizes, expected);
        ASSERT_TRUE(is_part(mine, DType::c64, cut(shape, 1, expected, comm.rank())));
      }
    }
  });
}

TEST_P(RootConformance, GatherAndScatterInPlaceOnTheRoot) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : size_patterns(comm.size())) {
      for (int root = 0; root < comm.size(); ++root) {
        const Dims shape = with_extent(kShape, 1, sum_of(sizes));
        const Box own = cut(shape, 1, sizes, comm.rank());
        const bool is_root = comm.rank() == root;
        const Tensor whole = is_root ? new_tensor(DType::i32, shape, Form::narrowed) : Tensor();
        const Tensor x = is_root ? whole.box(own) : new_tensor(DType::i32, own.extent, Form::gapped);
        fill_part(x, own.offset);
        gather(comm, x, {.root = root, .dim = 1, .out = whole});
        if (is_root) {
          ASSERT_TRUE(is_part(whole, DType::i32, Box::whole(shape)));
        }
        comm.reset_stats();
        const Tensor out = is_root ? whole.box(own) : new_tensor(DType::i32, own.extent, Form::transposed);
        scatter(comm, whole, {.root = root, .dim = 1, .sizes = sizes, .out = out});
        ASSERT_TRUE(is_part(out, DType::i32, own));
        if (is_root) {
          ASSERT_EQ(comm.stats().copies, 0);
        }
      }
    }
  });
}

TEST_P(RootConformance, Broadcast) {
  on_ranks([](Comm& comm) {
    size_t i = 0;
    for (const Dims& shape : {Dims{}, Dims{1}, Dims{0}, Dims{3, 0, 2}, Dims{5}, Dims{2, 3, 4}}) {
      for (const DType dtype : kDTypes) {
        const int root = static_cast<int>(i % static_cast<size_t>(comm.size()));
        const Form in = kForms[i % 6], form = kForms[i / 6 % 6];
        SCOPED_TRACE(fmt::format("{} {} in form {} out form {} root {}", dtype, shape, static_cast<int>(in),
                                 static_cast<int>(form), root));
        const bool is_root = comm.rank() == root;
        const Box whole = Box::whole(shape);
        const Tensor x = is_root ? part(dtype, whole, in) : Tensor();
        const Tensor out = i % 4 == 0 ? Tensor() : new_tensor(dtype, shape, form);
        const Tensor all = broadcast(comm, x, root, out);
        ASSERT_TRUE(is_part(all, dtype, whole));
        ASSERT_TRUE(is_at(all, is_root && !out.defined() ? x : out));
        // The everyday form: one tensor on every rank, which the root's values come to.
        const Tensor own = is_root ? x : new_tensor(dtype, shape, form);
        broadcast(comm, own, root, own);
        ASSERT_TRUE(is_part(own, dtype, whole));
        ++i;
      }
    }
  });
}

TEST_P(RootConformance, BroadcastOnlyLooksAtTheXOfOthers) {
  on_ranks([](Comm& comm) {
    const Dims shape = {4};
    const Tensor mine = part(DType::i64, Box::whole(shape), Form::plain, static_cast<uint64_t>(comm.rank()));
    const Tensor all = broadcast(comm, mine, comm.size() - 1);
    EXPECT_TRUE(is_part(all, DType::i64, Box::whole(shape), static_cast<uint64_t>(comm.size() - 1)));
    EXPECT_TRUE(is_part(mine, DType::i64, Box::whole(shape), static_cast<uint64_t>(comm.rank())));
  });
}

}  // namespace
}  // namespace tessera::testing_support
