"""tessera.compat.dtensor on PyTorch's own meshes and specs, against figures of the original."""

import itertools
import json
import math
import os

import pytest
import tessera
import torch
import torch.distributed as dist
from tessera.compat import dtensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "redistribute_cost.json")


@pytest.fixture(scope="module", autouse=True)
def many_ranks():
    """Rank 0 of a group of 64 that moves nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    yield
    dist.destroy_process_group()


def spec(mesh, placements, shape, dtype):
    strides = torch.empty(shape, device="meta").stride()
    return DTensorSpec(mesh, tuple(placements), TensorMeta(torch.Size(shape), strides, dtype))


def placement(text):
    return {"R": Replicate, "P": Partial}[text[0]]() if text[0] in "RP" else Shard(int(text[1:]))


def test_redistribute_cost(monkeypatch):
    with open(GOLDEN) as file:
        cases = json.load(file)
    per_host = {}
    monkeypatch.setattr(dtensor, "_devices_per_host", lambda mesh: per_host["now"])
    for case in cases:
        mesh = DeviceMesh("cpu", torch.arange(math.prod(case["mesh"])).reshape(case["mesh"]))
        per_host["now"] = case["per_host"]
        dtensor.MeshTopoInfo.build_from_mesh.cache_clear()
        current, target = (
            spec(mesh, map(placement, case[end]), case["shape"], getattr(torch, case["dtype"]))
            for end in ("from", "to")
        )
        cost = dtensor.redistribute_cost(current, target)
        expected = case["seed_us"]
        assert cost == pytest.approx(expected, rel=1e-12), case


def test_a_rank_outside_pays_nothing():
    mesh = DeviceMesh("cpu", torch.arange(8, 16))
    assert mesh.get_coordinate() is None
    cut, whole = (spec(mesh, [place], (8, 8), torch.float32) for place in (Shard(0), Replicate()))
    assert dtensor.redistribute_cost(cut, whole) == 0.0


def test_costs_as_torch_has_them():
    from torch.distributed.tensor import _collective_utils as original

    mesh = init_device_mesh("cpu", (8, 8))
    assert dtensor.MeshTopoInfo.build_from_mesh(mesh).mesh_dim_latency == (
        original.MeshTopoInfo.build_from_mesh(mesh).mesh_dim_latency
    )
    topo = original.MeshTopoInfo.build_from_mesh(mesh)
    for axis in (0, 1):
        assert dtensor.allgather_cost(0.5, topo, axis) == pytest.approx(original.allgather_cost(0.5, topo, axis))
        assert dtensor.reduce_scatter_cost(0.5, topo, axis) == pytest.approx(
            original.reduce_scatter_cost(0.5, topo, axis)
        )
    x = spec(mesh, [Shard(0), Shard(1)], [64, 32], torch.bfloat16)
    assert dtensor.spec_to_bytes(x) == original.spec_to_bytes(x) == 4096


def test_plans_beside_those_of_torch():
    """Every move that DTensor has, on a mesh within a host and one that leaves it: its default route has the same price,
    its graph search none that is lower than the plan's. The sizes divide: PyTorch's prices do not know of uneven cuts."""
    from torch.distributed.tensor import _collective_utils as original
    from torch.distributed.tensor import _redistribute as routes

    for mesh_shape in [(4, 2), (8, 8)]:
        mesh = init_device_mesh("cpu", mesh_shape)
        topology = tessera.Topology.dtensor(
            tessera.plan(spec(mesh, [Shard(0)] * 2, [128, 64], torch.float32), "R,R").source.mesh,
            devices_per_host=dtensor._devices_per_host(mesh),
        )
        topo = original.MeshTopoInfo.build_from_mesh(mesh)
        choices = [Shard(0), Shard(1), Replicate(), Partial()]
        for source, target in itertools.product(itertools.product(choices, repeat=2), repeat=2):
            if any(t.is_partial() and not s.is_partial() for s, t in zip(source, target)):
                continue
            current, wanted = (spec(mesh, end, [128, 64], torch.float32) for end in (source, target))
            plan = tessera.plan(current, wanted, topology=topology)
            default = original.redistribute_cost(current, wanted)
            assert plan.dtensor_us() == pytest.approx(default, rel=1e-9), (source, target)
            held_gb = original.spec_to_bytes(current) / current.num_shards / 2**30
            least = 0.0
            for step in routes._gen_transform_infos_non_cached(current, wanted, True) if source != target else []:
                price, held_gb = original._compute_placement_transition_cost(
                    *step.src_dst_placements, topo, step.mesh_dim, held_gb
                )
                least += price
            assert plan.cost_us() <= min(default, least) * (1 + 1e-9), (source, target)


def test_padding():
    x = torch.ones(2, 3)
    assert dtensor.pad_tensor(x, 1, 0) is x and dtensor.unpad_tensor(x, 1, 0) is x
    assert dtensor.pad_tensor(x, 0, 2).tolist() == [[1] * 3] * 2 + [[0] * 3] * 2
    assert dtensor.unpad_tensor(dtensor.pad_tensor(x, -1, 4), -1, 4).equal(x)
    shards = [x]
    assert dtensor.fill_empty_tensor_to_shards(shards, 1, 2) is shards
    assert [tuple(shard.shape) for shard in shards] == [(2, 3), (2, 0), (2, 0)]


def test_nothing_for_meta_tensors_and_outside_of_the_mesh():
    mesh = init_device_mesh("cpu", (4,))
    elsewhere = DeviceMesh("cpu", torch.arange(4, 8))
    x = torch.empty(3, 5, device="meta")
    assert dtensor.mesh_broadcast(x, mesh) is None and dtensor.mesh_scatter(x, [x], mesh) is None
    assert dtensor.shard_dim_alltoall(x, 0, 1, mesh, 0).shape == (12, 2)
    real = torch.ones(3, 5)
    assert dtensor.mesh_broadcast(real, elsewhere) is None and dtensor.mesh_scatter(real, [], elsewhere) is None
    assert dtensor.shard_dim_alltoall(real, 0, 1, elsewhere, 0) is None
