"""DDP, FSDP2 and DTensor run unchanged on the backend, with Gloo's results."""

import itertools
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples" / "pytorch"))


def _ddp(rank, size):
    torch.manual_seed(7)
    layers = torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50), torch.nn.ReLU(), torch.nn.Linear(50, 3)
    model = torch.nn.Sequential(*layers)
    # Small buckets: several all-reduces are on their way during the backward.
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(5):
        data = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(8, 20, generator=data), torch.randint(0, 3, (8,), generator=data)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_trains_as_on_gloo(size):
    ours = run_ranks(size, _ddp)
    theirs = run_ranks(size, _ddp, backend="gloo")
    for mine, reference in zip(ours, theirs, strict=True):
        for values, expected in zip([mine[0], *mine[1]], [reference[0], *reference[1]], strict=True):
            torch.testing.assert_close(torch.tensor(values), torch.tensor(expected))
    assert ours[0][1] == ours[1][1]


def _fsdp2(rank, size):
    import fsdp2

    return fsdp2.train(steps=4)


@pytest.mark.parametrize("size", [2, 3])
def test_fsdp2_trains_as_on_gloo(size):
    ours = run_ranks(size, _fsdp2)
    theirs = run_ranks(size, _fsdp2, backend="gloo")
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


PLACEMENTS = [Shard(0), Shard(1), Replicate()]


def _pairs(rank, size, mesh_shape):
    mesh = init_device_mesh("cpu", mesh_shape)
    group = mesh.get_group(0)._get_backend(torch.device("cpu"))
    assert group.name() == "tessera"
    for shape in [(8, 12), (5, 7), (1, 3), (2, 1, 4), (size - 1, 9)]:
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        for source in itertools.product(PLACEMENTS, repeat=len(mesh_shape)):
            there = distribute_tensor(whole.clone().requires_grad_(), mesh, source)
            for target in itertools.product(PLACEMENTS, repeat=len(mesh_shape)):
                moved = there.redistribute(mesh, target)
                expected = distribute_tensor(whole, mesh, target)
                torch.testing.assert_close(moved.to_local(), expected.to_local(), rtol=0, atol=0)
                torch.testing.assert_close(moved.full_tensor(), whole, rtol=0, atol=0)
        for target in itertools.product(PLACEMENTS, repeat=len(mesh_shape)):  # pending sums
            term = DTensor.from_local(whole.clone(), mesh, [Partial()] * len(mesh_shape))
            torch.testing.assert_close(term.redistribute(mesh, target).full_tensor(), whole * size)


@pytest.mark.parametrize("mesh_shape", [(2,), (3,), (4,), (2, 2)])
def test_every_pair_of_placements(mesh_shape):
    run_ranks(torch.Size(mesh_shape).numel(), _pairs, mesh_shape)


def _gradient(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    x = distribute_tensor(torch.randn(6, 8), mesh, [Shard(0)]).requires_grad_()
    (x.redistribute(mesh, [Shard(1)]) ** 2).sum().backward()
    torch.testing.assert_close(x.grad.full_tensor(), 2 * x.full_tensor().detach())


def test_gradients_take_the_way_back():
    run_ranks(3, _gradient)


def _real_all_to_all(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    rows = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])
    group = mesh.get_group()._get_backend(torch.device("cpu"))
    before = group.stats()["bytes_received"]
    rows.redistribute(mesh, [Shard(1)])
    received = group.stats()["bytes_received"] - before
    everything = 64 * 64 * 4 * (size - 1) // size  # that is not here yet
    assert received == everything // size
    with CommDebugMode() as counted:  # who counts collectives sees PyTorch's own
        columns = rows.redistribute(mesh, [Shard(1)])
    assert counted.get_total_counts() == 1
    assert torch.equal(columns.full_tensor(), rows.full_tensor())
    lazy = DTensor.from_local(torch.full((2, 4), 1j * rank), mesh, [Shard(0)], run_check=False).conj()
    assert lazy.redistribute(mesh, [Shard(1)]).to_local()[2 * size - 1, 0] == -1j * (size - 1)
    # Only one rank's part says that it requires a gradient.
    part = distribute_tensor(torch.ones(8, 8, requires_grad=rank == 0), mesh, [Shard(0)])
    assert torch.equal((part @ part).full_tensor(), torch.full((8, 8), 8.0))


def test_dtensor_has_a_real_all_to_all():
    run_ranks(4, _real_all_to_all)


def _pending_sums(rank, size):
    """Added up from where they lie; who counts collectives sees PyTorch's own."""
    mesh = init_device_mesh("cpu", (size,))
    group = mesh.get_group()._get_backend(torch.device("cpu"))
    terms = torch.arange(12.0).reshape(3, 4).t()
    for op, right in (("sum", terms * sum(range(1, size + 1))), ("max", terms * size), ("avg", terms * (size + 1) / 2)):
        local = terms * (rank + 1)
        pending = DTensor.from_local(local, mesh, [Partial(op)], run_check=False)
        before = group.stats()["calls"]
        torch.testing.assert_close(pending.redistribute(mesh, [Replicate()]).to_local(), right)
        assert group.stats()["calls"] == before + 1
        assert torch.equal(local, terms * (rank + 1))
    with CommDebugMode() as counted:
        pending.redistribute(mesh, [Replicate()])
    assert counted.get_total_counts() == 1
    x = torch.ones(2, requires_grad=True)
    DTensor.from_local(x * 3, mesh, [Partial()], run_check=False).full_tensor().sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("size", [2, 3])
def test_pending_sums(size):
    run_ranks(size, _pending_sums)


def test_which_one_switch_turns_off():
    program = """
import tessera.backend
from torch.distributed.tensor import _collective_utils, placement_types
for holder, name in ((_collective_utils, "shard_dim_alltoall"), (placement_types, "shard_dim_alltoall"),
                     (placement_types.Partial, "_reduce_value")):
    assert not hasattr(getattr(holder, name), "__wrapped__")
"""
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TESSERA_DTENSOR": "0"}, check=True)


def _gloo_mesh(rank, size):
    """A mesh on another backend beside it is left to PyTorch."""
    world = dist.new_group(backend="gloo")
    mesh = DeviceMesh.from_group(world, "cpu")
    rows = distribute_tensor(torch.arange(30.0).reshape(5, 6), mesh, [Shard(0)])
    torch.testing.assert_close(rows.redistribute(mesh, [Shard(1)]).full_tensor(), torch.arange(30.0).reshape(5, 6))


def test_a_mesh_on_gloo_is_left_alone():
    run_ranks(2, _gloo_mesh)
