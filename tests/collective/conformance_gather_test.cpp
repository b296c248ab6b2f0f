// Conformance: what is only moved, without a sum. Each rank fills its part of a global tensor and gets another part.
#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class GatherConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, GatherConformance, everywhere(), name_of);

TEST_P(GatherConformance, AllGather) {
  on_ranks([](Comm& comm) {
    for (const Case& c : cases(comm.size())) {
      SCOPED_TRACE(c.text());
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Tensor x = part(c.dtype, cut(shape, c.dim, c.sizes, comm.rank()), c.in);
      const Tensor out = out_for(c, shape);
      const Sizes given = c.out == Form::plain ? c.sizes : Sizes{};
      const auto [all, sizes] = all_gather(comm, x, {.dim = c.dim, .sizes = given, .out = out});
      ASSERT_TRUE(is_part(all, c.dtype, Box::whole(shape)));
      ASSERT_TRUE(is_at(all, out));
      ASSERT_EQ(sizes, c.sizes);
    }
  });
}

TEST_P(GatherConformance, AllGatherInPlace) {
  on_ranks([](Comm& comm) {
    for (const Case& c : cases(comm.size())) {
      SCOPED_TRACE(c.text());
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Box own = cut(shape, c.dim, c.sizes, comm.rank());
      const Tensor out = new_tensor(c.dtype, shape, c.in);
      const Tensor x = out.box(own);
      fill_part(x, own.offset);
      const Tensor all = all_gather(comm, x, {.dim = c.dim, .out = out}).tensor;
      ASSERT_TRUE(is_part(all, c.dtype, Box::whole(shape)));
      ASSERT_TRUE(is_at(all, out));
    }
  });
}

TEST_P(GatherConformance, AllGatherOfExpandedTensors) {
  on_ranks([](Comm& comm) {
    const Sizes sizes = size_patterns(comm.size())[1];
    for (const DType dtype : kDTypes) {
      for (const int64_t dim : {0, 1, 2}) {
        // The global tensor is one row repeated along dim 1, which no rank has in memory more than once.
        const Dims shape = with_extent(kShape, dim, sum_of(sizes));
        Box own = cut(shape, dim, sizes, comm.rank());
        const Dims wide = own.extent;
        own.offset[1] = 0;
        own.extent[1] = 1;
        const Tensor all = all_gather(comm, part(dtype, own).expand(wide), dim).tensor;
        ASSERT_TRUE(elements_are(all, dtype, Box::whole(shape),
                                 []<class T>(std::type_identity<T>, Dims at) {
                                   at[1] = 0;
                                   return value_from<T>(hash_of(at, 0));
                                 }))
            << name(dtype) << " dim " << dim;
      }
    }
  });
}

TEST_P(GatherConformance, AllGatherScales) {
  on_ranks([](Comm& comm) {
    const Sizes sizes = size_patterns(comm.size())[1];
    const Dims shape = with_extent(kShape, 1, sum_of(sizes));
    const Tensor x = part(DType::f32, cut(shape, 1, sizes, comm.rank()));
    const Tensor all = all_gather(comm, x, {.dim = 1, .scale = 0.25}).tensor;
    EXPECT_TRUE(elements_are(all, DType::f32, Box::whole(shape), []<class T>(std::type_identity<T>, const Dims& at) {
      return cast_to<T>(cast_to<Accumulator<T>>(value_from<T>(hash_of(at, 0))) * cast_to<Accumulator<T>>(0.25));
    }));
  });
}

TEST_P(GatherConformance, AllGatherParts) {
  on_ranks([](Comm& comm) {
    for (const Case& c : cases(comm.size())) {
      SCOPED_TRACE(c.text());
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const auto box = [&](int rank) { return cut(shape, c.dim, c.sizes, rank); };
      std::vector<Tensor> outs;
      for (int r = 0; c.out && r < comm.size(); ++r) outs.push_back(out_for(c, box(r).extent));
      const auto [parts, sizes] =
          all_gather_parts(comm, part(c.dtype, box(comm.rank()), c.in), {.dim = c.dim, .outs = outs});
      ASSERT_EQ(sizes, c.sizes);
      ASSERT_EQ(parts.size(), c.sizes.size());
      for (int r = 0; r < comm.size(); ++r) {
        const auto i = static_cast<size_t>(r);
        ASSERT_TRUE(is_part(parts[i], c.dtype, box(r))) << "part " << r;
        ASSERT_TRUE(outs.empty() || is_at(parts[i], outs[i])) << "part " << r;
      }
    }
  });
}

TEST_P(GatherConformance, AllGatherPartsInPlace) {
  on_ranks([](Comm& comm) {
    const Sizes sizes = size_patterns(comm.size())[1];
    const Dims shape = with_extent(kShape, 0, sum_of(sizes));
    std::vector<Tensor> outs;
    for (int r = 0; r < comm.size(); ++r) {
      outs.push_back(new_tensor(DType::i16, cut(shape, 0, sizes, r).extent, Form::plain));
    }
    const Tensor x = outs[static_cast<size_t>(comm.rank())];
    fill_part(x, cut(shape, 0, sizes, comm.rank()).offset);
    const std::vector<Tensor> parts = all_gather_parts(comm, x, {.dim = 0, .outs = outs}).parts;
    for (int r = 0; r < comm.size(); ++r) {
      EXPECT_TRUE(is_part(parts[static_cast<size_t>(r)], DType::i16, cut(shape, 0, sizes, r))) << "part " << r;
    }
  });
}

TEST_P(GatherConformance, AllGatherSame) {
  on_ranks([](Comm& comm) {
    size_t i = 0;
    for (const Dims& shape : {Dims{}, Dims{1}, Dims{5}, Dims{0, 3}, Dims{2, 3, 4}}) {
      for (const DType dtype : kDTypes) {
        const Form in = kForms[i % 6], form = kForms[i / 6 % 6];
        SCOPED_TRACE(
            fmt::format("{} {} in form {} out form {}", dtype, shape, static_cast<int>(in), static_cast<int>(form)));
        // Rank r's tensor is row r of the global one.
        Dims whole = shape;
        whole.insert(0, comm.size());
        const auto row = [&](int rank) { return cut(whole, 0, Sizes(static_cast<size_t>(comm.size()), 1), rank); };
        const Tensor out = i % 3 == 0 ? Tensor() : new_tensor(dtype, whole, form);
        const auto parts = all_gather_same(comm, part(dtype, row(comm.rank()), in).select(0, 0), out);
        ASSERT_EQ(parts.size(), static_cast<size_t>(comm.size()));
        for (int r = 0; r < comm.size(); ++r) {
          const Tensor& got = parts[static_cast<size_t>(r)];
          ASSERT_EQ(got.shape(), shape);
          ASSERT_TRUE(is_part(got.unsqueeze(0), dtype, row(r))) << "part " << r;
        }
        if (out.defined()) {
          ASSERT_TRUE(is_part(out, dtype, Box::whole(whole)));
        }
        ++i;
      }
    }
  });
}

TEST_P(GatherConformance, AllGatherSameInPlace) {
  on_ranks([](Comm& comm) {
    for (const Dims& shape : {Dims{}, Dims{1}, Dims{5}, Dims{2, 3}}) {
      for (const Form form : kForms) {
        SCOPED_TRACE(fmt::format("{} form {}", shape, static_cast<int>(form)));
        Dims whole = shape;
        whole.insert(0, comm.size());
        const Box row = cut(whole, 0, Sizes(static_cast<size_t>(comm.size()), 1), comm.rank());
        const Tensor out = new_tensor(DType::f32, whole, form);
        fill_part(out.box(row), row.offset);
        all_gather_same(comm, out.select(0, comm.rank()), out);
        ASSERT_TRUE(is_part(out, DType::f32, Box::whole(whole)));
      }
    }
  });
}

TEST_P(GatherConformance, GatherSizes) {
  on_ranks([](Comm& comm) {
    for (const Sizes& sizes : size_patterns(comm.size())) {
      for (int64_t dim = -3; dim < 3; ++dim) {
        const int64_t own = sizes[static_cast<size_t>(comm.rank())];
        EXPECT_EQ(gather_sizes(comm, Tensor::empty(DType::i8, with_extent(kShape, dim, own)), dim), sizes);
      }
    }
    EXPECT_EQ(comm.stats().bytes_received, 0);
  });
}

TEST_P(GatherConformance, SplitIsTheCutOfAReplica) {
  on_ranks([](Comm& comm) {
    for (const Case& c : cases(comm.size())) {
      SCOPED_TRACE(c.text());
      const Dims shape = with_extent(kShape, c.dim, sum_of(c.sizes));
      const Tensor whole = part(c.dtype, Box::whole(shape), c.in);
      const Tensor own = split(comm, whole, c.dim, c.sizes);
      ASSERT_TRUE(is_part(own, c.dtype, cut(shape, c.dim, c.sizes, comm.rank())));
      ASSERT_EQ(own.owner(), whole.owner()) << "a view, not a copy";
      // And back.
      ASSERT_TRUE(is_part(all_gather(comm, own, c.dim, c.sizes).tensor, c.dtype, Box::whole(shape)));
    }
  });
}

TEST_P(GatherConformance, SplitByRankTakesAListOrAStack) {
  on_ranks([](Comm& comm) {
    const auto n = static_cast<size_t>(comm.size());
    for (const Sizes& sizes : size_patterns(comm.size())) {
      const Dims shape = {sum_of(sizes), 3};
      std::vector<Tensor> parts;
      for (int r = 0; r < comm.size(); ++r) parts.push_back(part(DType::f16, cut(shape, 0, sizes, r)));
      const auto [own, all_sizes] = split_by_rank(comm, parts);
      EXPECT_TRUE(is_part(own, DType::f16, cut(shape, 0, sizes, comm.rank())));
      EXPECT_EQ(all_sizes, sizes);
    }
    const Dims shape = {comm.size(), 4, 3};
    const auto [own, sizes] = split_by_rank(comm, part(DType::f16, Box::whole(shape)));
    EXPECT_TRUE(is_part(own.unsqueeze(0), DType::f16, cut(shape, 0, Sizes(n, 1), comm.rank())));
    EXPECT_EQ(sizes, Sizes(n, 4));
    EXPECT_EQ(comm.stats().exchanges, 0) << "it is local";
  });
}

}  // namespace
}  // namespace tessera::testing_support
