// redistribute(): what it moves, into which memory, with which bits, what it refuses, and its gradients. every_pair_test.cpp
// has every pair of layouts.
#include <tessera/redistribute.hpp>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "plan/element_at.hpp"
#include "support/failures.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

// Checked by each rank by itself, so that it runs on processes too.
class Moving : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, Moving, everywhere(), name_of);

void expect_part(const Tensor& part, const Layout& layout, const Dims& shape, int rank, double factor = 1) {
  const auto box = layout.box(shape, rank);
  ASSERT_EQ(part.defined(), box.has_value());
  if (!box) return;
  const Tensor expected = Tensor::generate(
      part.dtype(), box->extent, [&](auto at) { return factor * element_at(at); }, box->offset);
  ASSERT_TRUE(part.equals(expected)) << fmt::format("{} instead of {}", part, expected);
}

Tensor whole_part(const Layout& layout, const Dims& shape, int rank, DType dtype) {
  const auto box = layout.box(shape, rank);
  if (!box) return {};
  return Tensor::generate(dtype, box->extent, element_at, box->offset);
}

TEST_P(Moving, BetweenLayouts) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh({{"x", n}});
    const Dims shape = {41, 67};
    Sizes ragged(static_cast<size_t>(n), 0);
    ragged.front() = 20;
    ragged.back() += 21;
    const std::vector<Layout> layouts = {
        {mesh, {Replicate()}}, {mesh, {Shard(0)}}, {mesh, {Shard(1)}}, {mesh, {Shard(0, ragged)}}, {mesh, {At(n - 1)}}};
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const Tensor x = whole_part(from, shape, comm.rank(), DType::i32);
        SCOPED_TRACE(fmt::format("{} to {}", from, to));
        expect_part(redistribute(comm, x, from, to), to, shape, comm.rank());
      }
      const Layout pending(mesh, {Partial()});
      const Layout to = layouts[1];
      const Tensor term = Tensor::generate(DType::i32, shape, element_at);
      expect_part(redistribute(comm, term, pending, to), to, shape, comm.rank(), n);
    }
  });
}

// Part of the ranks give to other ones, and some of them to themselves: a trainer and a server.
TEST_P(Moving, BetweenMeshes) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    if (n < 3) return;
    std::vector<int> first, second;
    for (int r = 0; r < n - 1; ++r) first.push_back(r);
    for (int r = n - 1; r > 0; --r) second.push_back(r);
    const Mesh trainer({{"fsdp", n - 1}}, first), server({{"tp", n - 1}}, second);
    const Dims shape = {53, 34};
    const Layout from(trainer, {Shard(0)}), to(server, {Shard(1)}), all(server, {Replicate()});
    const Tensor x = whole_part(from, shape, comm.rank(), DType::f32);
    for (int again = 0; again < 3; ++again) {
      expect_part(redistribute(comm, x, from, to), to, shape, comm.rank());
      expect_part(redistribute(comm, x, from, all), all, shape, comm.rank());
    }
    const Plan there = plan(from, to, shape, DType::f32, Topology::dtensor(trainer, server, 8));
    const Tensor y = redistribute(comm, x, there);
    expect_part(redistribute(comm, y, there.adjoint()), from, shape, comm.rank());
  });
}

TEST_P(Moving, ByItselfAndIntoGivenMemory) {
  on_ranks([](Comm& comm) {
    const Mesh mesh({{"x", comm.size()}});
    const Dims shape = {9, 10};
    const Layout rows(mesh, {Shard(0)}), columns(mesh, {Shard(1)});
    const Plan forth = plan(rows, columns, shape, DType::f32, Topology::dtensor(mesh));
    const Tensor x = whole_part(rows, shape, comm.rank(), DType::f32);
    const Tensor out = Tensor::zeros(DType::f32, columns.box(shape, comm.rank())->extent);
    auto work = start_redistribute(comm, x, forth);
    const Tensor direct = redistribute(comm, x, forth, out);
    EXPECT_EQ(direct.data(), out.data());
    expect_part(out, columns, shape, comm.rank());
    expect_part(work.get(), columns, shape, comm.rank());
  });
}

// Dimensions counted from both ends, and layouts that differ.
TEST_P(Moving, FindsOutTheShape) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh({{"x", n}, {"y", 1}});
    const Dims shape = {5, 3 * n + 1};
    const Layout from(mesh, {Shard(-1), Shard(1)}), to(mesh, {Replicate(), Shard(0)});
    const Tensor x = whole_part(from.resolved(shape), shape, comm.rank(), DType::f32);
    expect_part(redistribute(comm, x, from, to), to, shape, comm.rank());
    if (n == 1) return;
    const Layout other(mesh, {Shard(0), Replicate()});
    const auto thrown = test::thrown_by([&] { redistribute(comm, x, comm.rank() == 0 ? other : from, to); });
    EXPECT_EQ(thrown.type, "MismatchError") << thrown;
  });
}

// What becomes a term lies among the identity, also where the caller's memory is x itself.
TEST_P(Moving, TermsIntoGivenMemory) {
  on_ranks([](Comm& comm) {
    const Mesh mesh({{"x", comm.size()}});
    const Layout all(mesh, {Replicate()}), pending(mesh, {Partial()});
    const Plan forth = plan(all, pending, {300}, DType::f32, Topology::dtensor(mesh));
    const Tensor x = Tensor::generate(DType::f32, {300}, element_at);
    for (const Tensor& out : {Tensor::full(DType::f32, {300}, 7.0f), x}) {
      const Tensor term = redistribute(comm, x, forth, out);
      EXPECT_EQ(term.data(), out.data());
      expect_part(redistribute(comm, term, pending, all), all, {300}, comm.rank());
      x.fill(element_at);
    }
  });
}

TEST_P(Moving, EachByteOnce) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh({{"x", n}});
    const Dims shape = {512 * n, 256 * n};  // large enough that all-to-all is the best plan
    const Layout rows(mesh, {Shard(0)}), columns(mesh, {Shard(1)});
    const Plan forth = plan(rows, columns, shape, DType::f32, Topology::dtensor(mesh));
    const Tensor x = whole_part(rows, shape, comm.rank(), DType::f32);
    comm.reset_stats();
    redistribute(comm, x, forth);
    const Stats stats = comm.stats();
    const int64_t part = x.bytes() / n;
    EXPECT_EQ(stats.bytes_received, (n - 1) * part);
    EXPECT_EQ(stats.bytes_copied, n == 1 ? 0 : n * part);
    EXPECT_EQ(stats.exchanges, 1);
  });
}

// In two halves: the sums of a rank are written where they stay.
TEST_P(Moving, AnAllReduceWritesEachByteOnce) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    if (n == 1) return;
    const Mesh mesh({{"x", n}});
    const Layout all(mesh, {Replicate()});
    const Dims shape = {4, 256 * n + 1};  // cut along the second dimension where there are more ranks
    const Plan forth = plan({mesh, {Partial()}}, all, shape, DType::f32, Topology::dtensor(mesh));
    const Tensor x = Tensor::generate(DType::f32, shape, element_at), given = Tensor::zeros(DType::f32, shape);
    for (const Tensor& out : {Tensor(), given}) {
      comm.reset_stats();
      const Tensor sum = redistribute(comm, x, forth, out);
      EXPECT_EQ(comm.stats().bytes_copied, x.bytes());
      expect_part(sum, all, shape, comm.rank(), n);
      EXPECT_TRUE(!out.defined() || sum.data() == out.data());
    }
  });
}

// What is received in an all_reduce of these is no more than twice the part, whatever else cuts the tensor, and whichever
// dimensions are shorter than there are ranks.
TEST(AllReducesInHalves, OfAnyParts) {
  struct Sum {
    const char *mesh, *from, *to;
    Dims shape;
  };
  const Sum sums[] = {
      {"a=2,b=2,c=2", "S0@b,a,P", "S0@b,a,R", {64, 4096}},
      {"a=2,b=2,c=2", "P,S0@c,b", "R,S0@c,b", {64, 4096}},
      {"a=2,b=2,c=2", "S0[10,20,30,4]@b,a,P", "S0[10,20,30,4]@b,a,R", {64, 4096}},
      {"a=2,c=4", "At(1),P", "At(1),R", {512, 512}},
      {"a=2,c=4", "S0[0,512],P", "S0[0,512],R", {512, 512}},
      {"a=2,c=4", "S0,P", "S0,R", {262144, 3}},
      {"a=8", "P", "R", {7, 7, 7, 7, 7, 7}},
      {"a=1,c=4", "S0,P", "S0,R", {262144}},  // one rank cuts nothing
      {"a=1,c=4", "S0[262144],P", "S0[262144],R", {262144}},
      {"a=2,c=4", "S0,P", "S0,R", {262144}},  // each part is cut on
      {"a=2,c=4", "S0,P", "S0,R", {100003}},
      {"a=4,c=2", "P,S0", "R,S0", {100003}},
      {"a=2,b=2,c=2", "P,S0,P", "R,S0,R", {100003}},
  };
  for (const Sum& sum : sums) {
    const Mesh mesh = Mesh::parse(sum.mesh);
    const Layout from = Layout::parse(mesh, sum.from), to = Layout::parse(mesh, sum.to);
    const Plan forth = plan(from, to, sum.shape, DType::f32, Topology::dtensor(mesh));
    ASSERT_EQ(forth.steps().size(), 1u) << forth.explain();
    ASSERT_EQ(forth.steps()[0].kind, StepKind::all_reduce) << forth.explain();
    run(static_cast<int>(mesh.size()), [&](Comm& comm) {
      const auto part = from.resolved(sum.shape).box(sum.shape, comm.rank());
      const Tensor x = part ? Tensor::full(DType::f32, part->extent, comm.rank() + 1) : Tensor();
      comm.reset_stats();
      const Tensor result = redistribute(comm, x, forth);
      const int64_t whole = part ? part->elements() * 4 : 0;
      EXPECT_LE(comm.stats().bytes_received, 2 * whole) << sum.from << " on " << sum.mesh;
      ASSERT_EQ(result.defined(), part.has_value());
      if (!part) return;
      // Terms are those of the ranks along the axis of the sum.
      double expected = 0;
      const auto here = *mesh.coordinate(comm.rank());
      for (int r = 0; r < static_cast<int>(mesh.size()); ++r) {
        const auto there = *mesh.coordinate(r);
        bool is_term = true;
        for (size_t a = 0; a < mesh.ndim(); ++a) {
          is_term = is_term && (from.placements()[a].kind == Placement::Kind::partial || there[a] == here[a]);
        }
        if (is_term) expected += r + 1;
      }
      EXPECT_TRUE(result.shape() == part->extent);
      const Tensor elements = result.clone();
      for (const float value : elements.span<float>()) ASSERT_EQ(value, expected);
    });
  }
}

TEST_P(Moving, WrongPartsAndPlansAreToldToAll) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    if (n == 1) return;
    const Mesh mesh({{"x", n}});
    const Dims shape = {4 * n, 6};
    const Layout rows(mesh, {Shard(0)}), columns(mesh, {Shard(1)});
    const Topology topology = Topology::dtensor(mesh);
    const Plan forth = plan(rows, columns, shape, DType::f32, topology);
    const bool odd = comm.rank() == n - 1;
    auto thrown = test::thrown_by([&] { redistribute(comm, Tensor::zeros(DType::f32, {odd ? 3 : 4, 6}), forth); });
    EXPECT_EQ(thrown.type, "ShapeError") << thrown;
    EXPECT_NE(thrown.text.find(
                  fmt::format("rank  {}: redistribute: x is [3, 6], but this rank's part of S0 is [4, 6]", n - 1)),
              std::string::npos)
        << thrown;
    thrown = test::thrown_by([&] { redistribute(comm, Tensor::zeros(odd ? DType::i32 : DType::f32, {4, 6}), forth); });
    EXPECT_EQ(thrown.type, "DTypeError") << thrown;
    const Plan other = plan(rows, {mesh, {Replicate()}}, shape, DType::f32, topology);
    thrown = test::thrown_by([&] { redistribute(comm, Tensor::zeros(DType::f32, {4, 6}), odd ? other : forth); });
    EXPECT_EQ(thrown.type, "MismatchError") << thrown;
    EXPECT_NE(thrown.text.find("S0 to S1 on x="), std::string::npos) << thrown;
    EXPECT_NE(thrown.text.find("S0 to R on x="), std::string::npos) << thrown;
    expect_part(redistribute(comm, whole_part(rows, shape, comm.rank(), DType::f32), forth), columns, shape,
                comm.rank());
  });
}

TEST(Redistribute, ARankThatTheCommunicatorHasNot) {
  run(2, [](Comm& comm) {
    const Mesh mesh({{"x", 3}});
    const Plan forth = plan({mesh, {Shard(0)}}, {mesh, {Shard(1)}}, {6, 6}, DType::f32, Topology::dtensor(mesh));
    const auto thrown = test::thrown_by([&] { redistribute(comm, Tensor::zeros(DType::f32, {2, 6}), forth); });
    EXPECT_EQ(thrown.type, "ShapeError");
    EXPECT_NE(thrown.text.find("the mesh has rank 2, the communicator only 2 ranks"), std::string::npos) << thrown;
  });
}

// Also where on some rank nothing would move.
TEST(Redistribute, PlansThatMoveNothingAreAgreedOnToo) {
  const Mesh mesh({{"x", 2}}), other({{"x", 2}}, {0, 3});
  const auto way = [](const Mesh& on, const char* from, const char* to) {
    return plan(Layout::parse(on, from), Layout::parse(on, to), {4}, DType::f32, Topology::dtensor(on));
  };
  const Tensor half = Tensor::zeros(DType::f32, {2}), whole = Tensor::zeros(DType::f32, {4});
  struct Ways {
    Plan first, second;
    Tensor x, y;
    const char *type, *text;
  };
  for (const Ways& w :
       {Ways{way(mesh, "S0", "R"), way(mesh, "S0", "S0"), half, half, "MismatchError", "S0 to R on x=2"},
        Ways{way(mesh, "R", "P"), way(mesh, "R", "S0"), whole, whole, "MismatchError", "R to P(sum)"},
        Ways{way(mesh, "R", "S0"), way(mesh, "R", "S0"), whole, {}, "ShapeError", "x is undefined"},
        Ways{way(mesh, "R", "P"), way(mesh, "R", "P"), whole, half, "ShapeError", "x is [2]"},
        Ways{way(other, "R", "S0"), way(other, "R", "S0"), whole, {}, "ShapeError", "rank 3"}}) {
    run(2, [&](Comm& comm) {
      const auto thrown = test::thrown_by(
          [&] { redistribute(comm, comm.rank() == 0 ? w.x : w.y, comm.rank() == 0 ? w.first : w.second); });
      EXPECT_EQ(thrown.type, w.type) << thrown;
      EXPECT_TRUE(test::contains(thrown.text, w.text)) << thrown;
      test::expect_alive(comm);
    });
  }
  run(2, [&](Comm& comm) {
    const Layout all = Layout::parse(mesh, "R"), cut = Layout::parse(mesh, "S0");
    const auto thrown = test::thrown_by([&] { redistribute(comm, comm.rank() == 0 ? Tensor() : half, cut, all); });
    EXPECT_EQ(thrown.type, "ShapeError");
    EXPECT_TRUE(test::contains(thrown.text, "rank 0 gave no x, but has a part of S0")) << thrown;
  });
}

// A value that becomes a term, and the sum of that with nothing else, has the same bits: 0 + -0.0 would not.
TEST_P(Moving, TheSignOfZeroIsKept) {
  on_ranks([](Comm& comm) {
    const Mesh mesh({{"x", comm.size()}});
    const Dims shape = {5, 3};
    const Topology topology = Topology::dtensor(mesh);
    const Layout whole(mesh, {Replicate()}), rows(mesh, {Shard(0)}), pending(mesh, {Partial()});
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
      for (const Layout& layout : {whole, rows}) {
        const Box box = *layout.box(shape, comm.rank());
        const Tensor x = Tensor::generate(
            dtype, box.extent, [](auto at) { return at[1] == 0   ? -0.0
                                                    : at[1] == 1 ? 0.0
                                                                 : 1.0; }, box.offset);
        const Tensor term = redistribute(comm, x, plan(layout, pending, shape, dtype, topology));
        const Tensor back = redistribute(comm, term, plan(pending, layout, shape, dtype, topology));
        EXPECT_TRUE(back.equals(x)) << fmt::format("{} {}: {}", dtype, layout, back);
      }
    }
    const Tensor x = Tensor::full(DType::c64, shape, std::complex<float>(-0.0f, -0.0f));
    const Tensor term = redistribute(comm, x, plan(whole, pending, shape, DType::c64, topology));
    EXPECT_TRUE(redistribute(comm, term, plan(pending, whole, shape, DType::c64, topology)).equals(x));
  });
}

// What a call keeps of an earlier one from its line: other plans come in between, of one step, of several and of none that
// moves, some of them new each time, and values and memory are others.
TEST_P(Moving, CallsLikeEarlierOnes) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh({{"x", n}, {"y", 1}});
    const auto way = [&](const char* from, const char* to) {
      return plan_uncached(Layout::parse(mesh, from), Layout::parse(mesh, to), {12, 10}, DType::i32,
                           Topology::dtensor(mesh));
    };
    const std::vector<Plan> kept = {way("S0,R", "S1,R"), way("R,R", "S0,R"), way("P,R", "R,S1"), way("S1,R", "R,R")};
    std::vector<Tensor> results;
    for (int round = 0; round < 30; ++round) {
      std::vector<Plan> plans = kept;
      plans.push_back(round % 2 == 0 ? way("R,R", "S1,R") : way("R,R", "S0,R"));
      plans.push_back(round % 2 == 0 ? way("S0,R", "R,R") : way("S0,R", "At(0),R"));
      for (int repeated = 0; repeated < 3; ++repeated) {
        for (const Plan& plan : plans) {
          const auto box = plan.from().box(plan.shape(), comm.rank());
          const double factor = round + 1 + repeated;
          const Tensor x = Tensor::generate(
              DType::i32, box->extent, [&](auto at) { return factor * element_at(at); }, box->offset);
          results.push_back(redistribute(comm, x, plan));
          expect_part(results.back(), plan.to(), plan.shape(), comm.rank(),
                      plan.from().pending() ? factor * n : factor);
        }
      }
      if (round % 5 == 0) results.clear();
    }
  });
}

// What is reduced into its own input, of any size.
// New elements in every call, of tensors that travel within the records and of such as do not; at times one rank alone does
// not repeat what it said before, so that the others' short form must do for its long one.
TEST_P(Moving, NewElementsInCallsLikeEarlierOnes) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const Mesh mesh({{"x", n}});
    Topology topology = Topology::dtensor(mesh);
    topology.exchange_base_us = topology.base_us;       // so that it is an exchange and no gather
    for (const int64_t rows : {7, 60, 84, 128, 300}) {  // on two ranks 0.1, 7, 14, 33 and 177 KiB each
      const Dims shape = {rows, rows + 2};
      const Layout from(mesh, {Shard(0)}), to(mesh, {Shard(1)});
      const Plan there = plan(from, to, shape, DType::f32, topology),
                 back = plan(to, from, shape, DType::f32, topology);
      Tensor kept, kept_was;
      for (int call = 0; call < 12; ++call) {
        const auto element = [&](auto at) { return 1000.0 * call + element_at(at); };
        const auto part_of = [&](const Layout& layout) {
          const auto box = layout.box(shape, comm.rank());
          return Tensor::generate(DType::f32, box->extent, element, box->offset);
        };
        const Tensor expected = part_of(to), source = part_of(from);
        const Tensor x = call % 2 == 0 ? comm.allocate(DType::f32, source.shape()) : source;
        if (call % 2 == 0) x.copy_from(source);
        const bool given = call > 6 && comm.rank() == call % n;
        const Tensor y = redistribute(comm, x, there, given ? Tensor::zeros(DType::f32, expected.shape()) : Tensor());
        ASSERT_TRUE(y.equals(expected)) << fmt::format("{} rows, call {}: {}", rows, call, y);
        ASSERT_TRUE(call == 0 || kept.equals(kept_was)) << "a result that is held was written to";
        kept = y;
        kept_was = expected;
        ASSERT_TRUE(redistribute(comm, y, back).equals(source));
      }
    }
  });
}

TEST_P(Moving, SumsInPlace) {
  on_ranks([](Comm& comm) {
    const Mesh mesh({{"x", comm.size()}});
    for (const int64_t size : {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{16384}}) {
      const Plan forth = plan({mesh, {Partial()}}, {mesh, {Replicate()}}, {size}, DType::f64, Topology::dtensor(mesh));
      const Tensor x =
          Tensor::generate(DType::f64, {size}, [&](auto at) { return element_at(at) * (comm.rank() + 1); });
      const Tensor sum = redistribute(comm, x, forth, x);
      EXPECT_EQ(sum.data(), x.data());
      const auto n = static_cast<double>(comm.size() * (comm.size() + 1) / 2);
      EXPECT_TRUE(sum.equals(Tensor::generate(DType::f64, {size}, [&](auto at) { return element_at(at) * n; })));
    }
  });
}

// On threads all ranks take from one pool: together no more than each may have.
TEST(Redistribute, TakesNoMoreMemoryThanItsPlanSays) {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const Dims shape = {256, 512};
  for (const auto& [before, after] : {std::pair{"P,R", "R,R"},
                                      {"P,P", "R,R"},
                                      {"S0,S1", "R,R"},
                                      {"S0,S1", "S1,S0"},
                                      {"S0,R", "P,R"},
                                      {"S0,S1", "P,P"},
                                      {"P,S0", "S1,R"},
                                      {"S0,R", "R,S1"}}) {
    const Layout from = Layout::parse(mesh, before), to = Layout::parse(mesh, after);
    const auto way = [&](int64_t most) {
      return plan(from, to, shape, DType::f32, Topology::dtensor(mesh), {.max_bytes = most});
    };
    const int64_t least = way(PlanOptions{}.max_bytes).peak_bytes();
    for (const bool given : {false, true}) {
      int64_t used = 0;
      run(4, [&](Comm& comm) {
        const Plan forth = way(least);
        if (comm.rank() == 0) pool::trim();
        comm.barrier();
        const Tensor x = Tensor::zeros(DType::f32, from.box(shape, comm.rank())->extent);
        const Tensor out = given ? Tensor::zeros(DType::f32, to.box(shape, comm.rank())->extent) : Tensor();
        redistribute(comm, x, forth, out);
        comm.barrier();
        if (comm.rank() == 0) used = pool::usage().peak_bytes;
        comm.barrier();
      });
      // Blocks are a little larger than what is asked for.
      EXPECT_LE(used, 4 * (least + least / 8 + 4096)) << before << " to " << after << (given ? ", out given" : "");
    }
  }
}

// One tree, whatever the route: last axis first.
TEST(Redistribute, SumsHaveTheBitsOfOneTree) {
  const Mesh mesh({{"a", 2}, {"b", 3}});
  const Dims shape = {64, 96};
  const auto term = [](int rank, std::span<const int64_t> at) {
    return 1.0f / static_cast<float>(1 + rank * 7 + at[0] * 13 + at[1]);
  };
  const Tensor expected = Tensor::generate(DType::f32, shape, [&](auto at) {
    const auto row = [&](int a) { return (term(3 * a, at) + term(3 * a + 1, at)) + term(3 * a + 2, at); };
    return row(0) + row(1);
  });
  run(6, [&](Comm& comm) {
    const Tensor x = Tensor::generate(DType::f32, shape, [&](auto at) { return term(comm.rank(), at); });
    const Layout from(mesh, {Partial(), Partial()});
    for (const Layout& to : {Layout(mesh, {Replicate(), Replicate()}), Layout(mesh, {Shard(0), Shard(1)}),
                             Layout(mesh, {Shard(0), Replicate()}), Layout(mesh, {Replicate(), Shard(0)})}) {
      const Plan forth = plan(from, to, shape, DType::f32, Topology::dtensor(mesh));
      const Tensor part = redistribute(comm, x, forth);
      EXPECT_TRUE(part.equals(expected.box(*to.box(shape, comm.rank())))) << forth.explain();
    }
  });
}

TEST(Redistribute, AveragesAndTheirGradients) {
  const Mesh mesh({{"x", 4}});
  run(4, [&](Comm& comm) {
    const Layout mean(mesh, {Partial(ReduceOp::avg)}), all(mesh, {Replicate()});
    const Plan forth = plan(mean, all, {3}, DType::f64, Topology::dtensor(mesh));
    const Tensor x = Tensor::full(DType::f64, {3}, static_cast<double>(comm.rank()));
    EXPECT_EQ(redistribute(comm, x, forth).at<double>(1), 1.5);
    const Tensor ones = Tensor::full(DType::f64, {3}, 1.0);
    // Of the sum over ranks of what each computes from the mean: each of the four terms counts 4 × 1/4.
    EXPECT_EQ(redistribute(comm, ones, forth.adjoint(Convention::local)).at<double>(1), 1.0);
    EXPECT_EQ(redistribute(comm, ones, forth.adjoint(Convention::global)).at<double>(1), 0.25);
  });
}

// With 3 ranks, gather then sum: the local gradient is 3, the global one 1.
TEST(Redistribute, LocalAndGlobalGradientsOfAGather) {
  const Mesh mesh({{"x", 3}});
  run(3, [&](Comm& comm) {
    const Plan forth = plan({mesh, {Shard(0)}}, {mesh, {Replicate()}}, {6}, DType::f32, Topology::dtensor(mesh));
    const Tensor ones = Tensor::full(DType::f32, {6}, 1.0f);
    EXPECT_EQ(redistribute(comm, ones, forth.adjoint(Convention::local)).at<float>(0), 3.0f);
    EXPECT_EQ(redistribute(comm, ones, forth.adjoint(Convention::global)).at<float>(0), 1.0f);
  });
}

}  // namespace
}  // namespace tessera::testing_support
