// The collectives on at::Tensor in C++: the border, the gradients, and redistribution.
#include <dlfcn.h>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <tessera/torch.hpp>

namespace tessera {
namespace {

at::Tensor rows(int64_t first, int64_t count) {
  return at::arange(first * 3, (first + count) * 3, at::kFloat).reshape({count, 3});
}

// Rank r has r rows of a tensor of 0, 1, 2, …
at::Tensor own_rows(const Comm& comm) { return rows(comm.rank() * (comm.rank() - 1) / 2, comm.rank()); }

TEST(Torch, NoCopyAtTheBorder) {
  const at::Tensor x = at::rand({4, 5}).t();
  const Tensor seen = from_torch(x);
  EXPECT_EQ(seen.data(), static_cast<const void*>(x.const_data_ptr()));
  EXPECT_EQ(seen.strides(), (Dims{1, 5}));
  const Tensor made = Tensor::full(DType::bf16, {2, 3}, 1.5f);
  const at::Tensor back = to_torch(made);
  EXPECT_EQ(back.const_data_ptr(), static_cast<const void*>(made.data()));
  EXPECT_EQ(back.scalar_type(), at::kBFloat16);
}

TEST(Torch, TheResultOutlivesTheRanks) {
  at::Tensor all;
  run(3, [&](Comm& comm) {
    const auto [gathered, sizes] = all_gather(comm, own_rows(comm));
    EXPECT_TRUE(sizes.equal(at::tensor({0, 1, 2}, at::kLong)));
    if (comm.rank() == 1) all = gathered;
  });
  EXPECT_TRUE(all.equal(rows(0, 3)));
}

TEST(Torch, GradientsAreThoseOfAllLosses) {
  run(4, [](Comm& comm) {
    const at::Tensor x = own_rows(comm).requires_grad_();
    const auto [all, sizes] = all_gather(comm, x);
    (all.square().sum() * (comm.rank() + 1)).backward();
    EXPECT_TRUE(x.grad().equal(x.detach() * 20)) << x.grad();  // 2 (1 + 2 + 3 + 4)
  });
}

TEST(Torch, ARankThatNeedsNoGradientTakesPart) {
  run(3, [](Comm& comm) {
    const at::Tensor x = own_rows(comm).requires_grad_(comm.rank() == 2);
    const auto [all, sizes] = all_gather(comm, x);
    EXPECT_TRUE(all.requires_grad());
    all.sum().backward();
    if (comm.rank() == 2) EXPECT_TRUE(x.grad().equal(at::full_like(x, 3)));
    else EXPECT_FALSE(x.grad().defined());
  });
}

TEST(Torch, ListsHaveOneAgreementAndAGradientEach) {
  run(3, [](Comm& comm) {
    const at::Tensor a = own_rows(comm).requires_grad_(), b = at::ones({2}) * comm.rank();
    comm.reset_stats();
    const auto gathered = all_gather(comm, {a, b});
    const auto sums = all_reduce(comm, std::vector{a.sum(), b});
    EXPECT_EQ(comm.stats().exchanges, 2);
    EXPECT_TRUE(gathered[0].tensor.detach().equal(rows(0, 3)));
    EXPECT_TRUE(gathered[1].sizes.equal(at::full({3}, 2, at::kLong)));
    EXPECT_FALSE(gathered[1].tensor.requires_grad());
    EXPECT_EQ(sums[0].item<float>(), 36);
    EXPECT_TRUE(sums[1].equal(at::full({2}, 3.0f)));
    (gathered[0].tensor.sum() + sums[0]).backward();
    EXPECT_TRUE(a.grad().equal(at::full_like(a, 6))) << a.grad();
  });
}

TEST(Torch, RedistributesWithGradients) {
  run(4, [](Comm& comm) {
    const Mesh mesh({{"x", 4}});
    const Plan way = plan({mesh, {Shard(0)}}, {mesh, {Replicate()}}, {6, 3}, DType::f32, Topology::dtensor(mesh));
    const at::Tensor whole = rows(0, 6);
    const at::Tensor x =
        whole.narrow(0, std::min(comm.rank() * 2, 6), comm.rank() < 3 ? 2 : 0).clone().requires_grad_();
    const at::Tensor moved = redistribute(comm, x, way);
    EXPECT_TRUE(moved.equal(whole));
    moved.square().sum().backward();  // what is replicated counts once
    EXPECT_TRUE(x.grad().equal(x.detach() * 2)) << x.grad();
  });
}

TEST(Torch, RedistributesBetweenLayoutsTwiceDifferentiable) {
  run(3, [](Comm& comm) {
    const Mesh mesh({{"x", 3}});
    const Layout from(mesh, {Shard(0, {1, 0, 4})}), to(mesh, {Shard(1)});
    const at::Tensor whole = rows(0, 5);
    const at::Tensor x = whole.narrow(0, comm.rank() == 0 ? 0 : 1, from.placements()[0].sizes[size_t(comm.rank())])
                             .clone()
                             .requires_grad_();
    const at::Tensor moved = redistribute(comm, x, from, to);
    EXPECT_TRUE(moved.equal(whole.narrow(1, comm.rank(), 1)));
    const auto gradient = ::torch::autograd::grad({moved.pow(3).sum()}, {x}, {}, std::nullopt, true)[0];
    gradient.square().sum().backward();  // of (3 x²)²
    EXPECT_TRUE(x.grad().allclose(x.detach().pow(3) * 36)) << x.grad();
    EXPECT_THROW(redistribute(comm, comm.rank() == 1 ? x.to(at::kUInt16) : x, from, to), DTypeError);
  });
}

// Ranks that have a part of the source only, of the target only, or of neither: all come to the gradient's move.
TEST(Torch, RedistributesBetweenMeshesWithGradients) {
  run(4, [](Comm& comm) {
    const Layout from(Mesh({{"x", 2}}, {0, 1}), {Shard(0)}), to(Mesh({{"y", 1}}, {2}), {Replicate()});
    const at::Tensor whole = rows(0, 4);
    const at::Tensor x = comm.rank() < 2 ? whole.narrow(0, 2 * comm.rank(), 2).clone().requires_grad_() : at::Tensor();
    const Plan way = plan(from, to, {4, 3}, DType::f32, Topology::dtensor(from.mesh(), to.mesh(), 8));
    const at::Tensor moved = redistribute(comm, x, way);
    EXPECT_EQ(moved.numel(), comm.rank() == 2 ? 12 : 0);
    moved.square().sum().backward();
    if (comm.rank() < 2) {
      EXPECT_TRUE(x.grad().equal(x.detach() * 2)) << x.grad();
    }
  });
}

// On the device of twin_device.cpp: results and gradients come back to where a rank's own tensor is.
TEST(Torch, TensorsOnAnotherDevice) {
  ASSERT_NE(dlopen(TESSERA_TWIN_DEVICE, RTLD_NOW), nullptr) << dlerror();
  const at::Device device(at::kPrivateUse1, 0);
  EXPECT_THROW(from_torch(at::ones({2}, device)), ArgumentTypeError);
  run(3, [&](Comm& comm) {
    const at::Tensor x = own_rows(comm).to(device).requires_grad_();
    const auto [all, sizes] = all_gather(comm, x);
    EXPECT_TRUE(all.device() == device && all.cpu().equal(rows(0, 3)));
    EXPECT_TRUE(sizes.device() == device && sizes.cpu().equal(at::tensor({0, 1, 2}, at::kLong)));
    all.square().sum().backward();
    EXPECT_TRUE(x.grad().device() == device && x.grad().cpu().equal(x.detach().cpu() * 6));
    EXPECT_TRUE(gather_sizes(comm, x).cpu().equal(sizes.cpu()));
    const auto lists = all_reduce(comm, std::vector{at::ones({2}, device), at::ones({2})});
    EXPECT_TRUE(lists[0].device() == device && lists[1].is_cpu() && lists[0].cpu().equal(lists[1]));
  });
  run(4, [&](Comm& comm) {
    const Layout from(Mesh({{"x", 2}}, {0, 1}), {Shard(0)}), to(Mesh({{"y", 1}}, {2}), {Replicate()});
    const bool given = comm.rank() < 2;
    const at::Tensor x = given ? rows(2 * comm.rank(), 2).to(device).requires_grad_() : at::Tensor();
    const at::Tensor moved = redistribute(comm, x, from, to);
    EXPECT_TRUE(moved.device() == (given ? device : at::Device(at::kCPU)));
    EXPECT_TRUE(comm.rank() != 2 || moved.equal(rows(0, 4)));
    moved.square().sum().backward();
    EXPECT_TRUE(!given || (x.grad().device() == device && x.grad().cpu().equal(x.detach().cpu() * 2)));
  });
}

TEST(Torch, AMoveWhoseGradientIsNotLinearSaysSoAtOnce) {
  run(2, [](Comm& comm) {
    const Mesh mesh({{"x", 2}});
    const Layout from(mesh, {Partial(ReduceOp::max)}), to(mesh, {Replicate()});
    const at::Tensor x = at::full({2}, float(comm.rank()));
    EXPECT_TRUE(redistribute(comm, x, from, to).equal(at::ones({2})));
    EXPECT_THROW(redistribute(comm, at::ones({2}).requires_grad_(), from, to), Error);
  });
}

TEST(Torch, ATensorThatCannotBeUsedIsToldToEveryRank) {
  run(2, [](Comm& comm) {
    const at::Tensor x = comm.rank() == 0 ? at::ones({2}) : at::ones({2}).to(at::kUInt16);
    EXPECT_THROW(all_gather(comm, x), DTypeError);
  });
}

TEST(Torch, ATensorThatIsNotThereIsToldToEveryRank) {
  run(2, [](Comm& comm) {
    const bool lacks = comm.rank() == 1;
    const at::Tensor x = lacks ? at::Tensor() : at::ones({2, 2}), sizes = at::tensor({1, 1}, at::kLong);
    EXPECT_THROW(all_gather(comm, x), ShapeError);
    EXPECT_THROW(all_gather_same(comm, x), Error);
    EXPECT_THROW(gather_sizes(comm, x), ShapeError);
    EXPECT_THROW(reduce_scatter(comm, x), ShapeError);
    EXPECT_THROW(all_reduce(comm, x), ShapeError);
    EXPECT_THROW(all_to_all(comm, x, 1, 0), ShapeError);
    EXPECT_THROW(all_to_all_v(comm, x, sizes), ShapeError);
    EXPECT_THROW(gather(comm, x), ShapeError);
    EXPECT_THROW(reduce(comm, x), ShapeError);
    EXPECT_THROW(broadcast(comm, x, 1), ShapeError);
    EXPECT_THROW(scatter(comm, x, 1), ShapeError);
    EXPECT_THROW(all_gather(comm, std::vector{x, x}), ShapeError);
    EXPECT_TRUE(broadcast(comm, x).equal(at::ones({2, 2})));
  });
}

TEST(Torch, WithoutDimensionsItIsOneRow) {
  run(3, [](Comm& comm) {
    const at::Tensor x = at::scalar_tensor(double(comm.rank()), at::kDouble).requires_grad_();
    const at::Tensor three = at::arange(3, at::kDouble), one = at::ones({3}, at::kLong);
    const auto [all, sizes] = all_gather(comm, x);
    EXPECT_TRUE(all.equal(three));
    EXPECT_TRUE(sizes.equal(one));
    all.square().sum().backward();
    EXPECT_EQ(x.grad().item<double>(), 6 * comm.rank());
    EXPECT_TRUE(gather_sizes(comm, x).equal(one));
    EXPECT_TRUE(all_gather(comm, {x, x})[1].tensor.equal(three));
    EXPECT_EQ(gather(comm, x, 2).tensor.numel(), comm.rank() == 2 ? 3 : 0);
    EXPECT_EQ(scatter(comm, x).tensor.numel(), comm.rank() == 0 ? 1 : 0);
  });
}

TEST(Torch, AllOfOneShapeAsParts) {
  run(3, [](Comm& comm) {
    const at::Tensor x = at::full({2, 2}, double(comm.rank()), at::kDouble).t().requires_grad_();
    const auto parts = all_gather_same(comm, x);
    ASSERT_EQ(parts.size(), 3u);
    for (int r = 0; r < 3; ++r) EXPECT_TRUE(parts[size_t(r)].equal(at::full({2, 2}, double(r), at::kDouble)));
    (parts[1] * (comm.rank() + 1) + parts[2]).sum().backward();
    const std::vector<double> gradients{0, 24, 12};
    EXPECT_EQ(x.grad().sum().item<double>(), gradients[size_t(comm.rank())]);
    EXPECT_EQ(all_gather_same(comm, at::scalar_tensor(1.0))[2].dim(), 0);
    EXPECT_THROW(all_gather_same(comm, at::ones({2 + comm.rank()})), MismatchError);
  });
}

TEST(Torch, OfMetaTensorsTheShapeIsWorkedOut) {
  run(3, [](Comm& comm) {
    const int64_t me = comm.rank();
    const bool first = me == 0;
    const auto meta = [](std::vector<int64_t> shape) {
      return at::empty(shape, at::device(at::kMeta).dtype(at::kHalf));
    };
    const auto expect = [](const at::Tensor& x, std::vector<int64_t> shape) {
      EXPECT_TRUE(x.is_meta());
      EXPECT_EQ(x.scalar_type(), at::kHalf);
      EXPECT_EQ(x.sizes().vec(), shape);
    };
    const at::Tensor x = meta({4, 5}), sizes = at::tensor({3, 0, 1}, at::kLong);
    const std::vector<int64_t> own{3, 0, 1}, chunk{2, 2, 0}, columns{2, 2, 1};
    const auto mine = [me](const std::vector<int64_t>& list) { return list[static_cast<size_t>(me)]; };
    comm.reset_stats();
    expect(all_gather(comm, meta({mine(own), 5}), -2, sizes).tensor, {4, 5});
    EXPECT_EQ(all_gather(comm, x, 0, sizes).sizes.sizes().vec(), std::vector<int64_t>{3});
    expect(reduce_scatter(comm, x), {mine(chunk), 5});
    expect(reduce_scatter(comm, x, 0, sizes), {mine(own), 5});
    expect(all_reduce(comm, x), {4, 5});
    expect(all_to_all_v(comm, x, sizes, at::tensor({2, 0, 7}, at::kLong)).tensor, {9, 5});
    expect(broadcast(comm, x), {4, 5});
    expect(reduce(comm, x), first ? std::vector<int64_t>{4, 5} : std::vector<int64_t>{0, 4, 5});
    if (first) expect(scatter(comm, x, 0, 1).tensor, {4, mine(columns)});
    if (!first) expect(gather(comm, x, 0, 1).tensor, {4, 0});
    expect(split(comm, x, 0, sizes), {mine(own), 5});
    const Mesh mesh({{"x", 3}});
    const Plan way = plan({mesh, {Shard(0)}}, {mesh, {Shard(1)}}, {4, 5}, DType::f16, Topology::dtensor(mesh));
    expect(redistribute(comm, meta({mine(chunk), 5}), way), {4, mine(columns)});
    const at::Tensor wanted = meta({4, 5}).requires_grad_();
    EXPECT_TRUE(reduce_scatter(comm, wanted).requires_grad());
    EXPECT_EQ(comm.stats().calls, 0);
    EXPECT_THROW(all_gather(comm, x), ShapeError);  // who knows what the others have
    EXPECT_THROW(reduce_scatter(comm, x, 0, at::tensor({4, 0}, at::kLong)), ShapeError);
    EXPECT_THROW(all_gather(comm, x, 2, sizes), ShapeError);
  });
}

}  // namespace
}  // namespace tessera
