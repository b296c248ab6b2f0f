"""redistribute() of DTensors, beside DTensor.redistribute() on Gloo."""

import itertools
import os
import sys

import pytest
import tessera
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "backend"))
from ranks import run_ranks  # noqa: E402 - its folder comes first

PLACEMENTS = [Shard(0), Shard(1), Replicate(), Partial()]
SHAPES = [(8, 12), (5, 7), (1, 3), (3, 2, 5)]


def _terms(whole, mesh, placements):
    """A DTensor of that value: where it is pending, each rank has another term."""
    replicated = [Replicate() if p.is_partial() else p for p in placements]
    local = distribute_tensor(whole, mesh, replicated).to_local()
    for axis, placement in enumerate(placements):
        if placement.is_partial():
            n, i = mesh.size(axis), mesh.get_local_rank(axis)
            local = local * (2 * (i + 1) / (n * (n + 1)))
    strides = whole.stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=strides)


def _pairs(rank, size, mesh_shape):
    mesh = init_device_mesh("cpu", mesh_shape)
    axes = len(mesh_shape)
    for shape in SHAPES if axes == 1 else [(5, 7)]:
        whole = torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64).reshape(shape)
        weight = distribute_tensor(torch.cos(whole), mesh, [Replicate()] * axes)
        for source in itertools.product(PLACEMENTS, repeat=axes):
            for target in itertools.product(PLACEMENTS, repeat=axes):
                if any(t.is_partial() and not s.is_partial() for s, t in zip(source, target)):
                    continue  # which DTensor refuses
                gradients = []
                for move in (tessera.redistribute, lambda x, placements: x.redistribute(placements=placements)):
                    x = _terms(whole, mesh, source).detach().requires_grad_()
                    moved = move(x, target)
                    assert moved.placements == target and moved.shape == whole.shape
                    loss = (moved * weight).sum()
                    (gradient,) = torch.autograd.grad(loss, x)
                    gradients.append((moved.detach(), gradient))
                (ours, our_gradient), (theirs, their_gradient) = gradients
                torch.testing.assert_close(ours.to_local(), theirs.to_local())
                assert our_gradient.placements == their_gradient.placements
                torch.testing.assert_close(our_gradient.to_local(), their_gradient.to_local())


@pytest.mark.parametrize("mesh_shape", [(2,), (4,), (2, 2)])
def test_every_pair_of_placements_as_dtensor_has_it(mesh_shape):
    """On Gloo's group: values, gradients and their placements."""
    run_ranks(torch.Size(mesh_shape).numel(), _pairs, mesh_shape, backend="gloo")


def _other_reductions(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    for op in ("avg", "max", "min", "product"):
        for target in (Replicate(), Shard(0)):
            results = []
            for move in (tessera.redistribute, lambda x, placements: x.redistribute(placements=placements)):
                local = torch.arange(6.0).reshape(2, 3) + rank + 1
                x = DTensor.from_local(local, mesh, [Partial(op)], run_check=False).requires_grad_()
                moved = move(x, [target])
                moved.sum().backward()
                results.append((moved.to_local().detach(), x.grad.to_local()))
            torch.testing.assert_close(results[0], results[1])


def test_other_reductions_as_dtensor_has_them():
    run_ranks(2, _other_reductions, backend="gloo")


def _twice(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(5, 7)
    x = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
    y = tessera.redistribute(x, [Shard(1)])
    (gradient,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (gradient * gradient).sum().backward()  # of (3 x²)²: 36 x³
    torch.testing.assert_close(x.grad.full_tensor(), 36 * whole**3)


def test_gradients_of_gradients():
    run_ranks(3, _twice)


def _fsdp_and_tp(rank, size, sizes):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    width, hidden = sizes
    plain = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, width))
    whole = {name: p.detach().clone() for name, p in plain.named_parameters()}
    model = parallelize_module(plain, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    strided = 0
    for name, parameter in model.named_parameters():
        strided += "_StridedShard" in repr(parameter.placements)
        targets = [[Replicate(), Replicate()], [Shard(0), Shard(0)], [Replicate(), Shard(0)]]
        if parameter.ndim == 2:
            targets.append([Shard(1), Shard(0)])
        for target in targets:
            moved = tessera.redistribute(parameter, target)
            expected = distribute_tensor(whole[name], mesh, target)
            assert torch.equal(moved.to_local(), expected.to_local()), (name, target)
            back = tessera.redistribute(moved, parameter.placements)  # _StridedShard is written, too
            assert back.placements == parameter.placements
            assert torch.equal(back.to_local(), parameter.to_local()), (name, target)
            weight = distribute_tensor(torch.sin(whole[name]), mesh, [Replicate(), Replicate()])
            (gradient,) = torch.autograd.grad((moved * weight).sum(), parameter)
            assert gradient.placements == parameter.placements
            there = tessera.ShardedTensor.from_dtensor(gradient.detach())
            torch.testing.assert_close(there.full_tensor(), torch.sin(whole[name]))
            assert there.to_dtensor().placements == parameter.placements
    return strided


@pytest.mark.parametrize("sizes", [(8, 12), (7, 10), (5, 3)])
def test_every_parameter_of_an_fsdp2_and_tp_model(sizes):
    assert all(strided > 0 for strided in run_ranks(4, _fsdp_and_tp, sizes))


def _meshes(rank, size):
    """A submesh calls by itself, a mesh of some ranks too, and from one mesh to another all ranks call."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "R"))  # a name that reads as a placement
    whole = torch.arange(35.0).reshape(5, 7) + 100 * (rank // 2)
    x = distribute_tensor(whole, mesh["R"], [Shard(0)])
    if rank < 2:  # the other row of the mesh does not call
        assert torch.equal(tessera.redistribute(x, [Replicate()]).to_local(), whole)
    whole = torch.arange(35.0).reshape(5, 7)
    trainer, server = DeviceMesh("cpu", [0, 1, 2]), DeviceMesh("cpu", [3, 1])
    x = distribute_tensor(whole, trainer, [Shard(0)]).requires_grad_()
    moved = tessera.redistribute(x, [Shard(1)], device_mesh=server)
    column = {3: whole[:, :4], 1: whole[:, 4:]}.get(rank)
    assert moved.device_mesh == server
    assert column is None and moved.to_local().numel() == 0 or torch.equal(moved.to_local(), column)
    (gradient,) = torch.autograd.grad(moved, x, moved.detach())
    assert gradient.device_mesh == trainer and torch.equal(gradient.to_local(), x.to_local())
    outside = tessera.redistribute(x, [Replicate()])
    assert rank == 3 or torch.equal(outside.to_local(), whole)
    turned = tessera.redistribute(x, [Shard(0)], device_mesh=DeviceMesh("cpu", [2, 1, 0]))  # rank 3 is in neither
    part = {2: whole[:2], 1: whole[2:4], 0: whole[4:]}.get(rank)
    assert part is None or torch.equal(turned.to_local(), part)


def test_meshes_of_some_ranks():
    run_ranks(4, _meshes, backend="gloo")


def _lies(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    lie = DTensor.from_local(torch.ones(3 + rank, 2), mesh, [Shard(0)], run_check=False)
    with pytest.raises(tessera.MismatchError, match=r"S0 to R on .* of \[6, 2\]"):
        tessera.redistribute(lie, [Replicate()])
    with pytest.raises(tessera.ShapeError, match=r"rank 1 one of \[8, 2\]"):
        tessera.ShardedTensor.from_dtensor(lie)
    ragged = tessera.ShardedTensor.from_local(lie.to_local(), tessera.Layout(f"x={size}", "S0[3,4]"))
    with pytest.raises(tessera.ShapeError, match="only torch.chunk's"):
        ragged.to_dtensor(mesh)
    even = ragged.redistribute("S0").to_dtensor(mesh)
    assert even.placements == (Shard(0),) and even.shape == (7, 2)
    x = distribute_tensor(torch.arange(14.0).reshape(7, 2), mesh, [Shard(0)]).requires_grad_()
    moved = tessera.redistribute(x, "S0[1,6]")
    assert isinstance(moved, tessera.ShardedTensor) and moved.local.shape == (1 + 5 * rank, 2)
    (moved.local * moved.local).sum().backward()
    torch.testing.assert_close(x.grad.to_local(), 2 * x.to_local())
    with pytest.raises(ValueError, match="comes from no DTensor"):
        ragged.to_dtensor()
    for placements, text in (([Shard(0), Shard(1)], "2 placements"), ([Shard(2)], "dim")):
        with pytest.raises(tessera.ShapeError, match=text):
            tessera.redistribute(x, placements if rank == 0 else [Shard(1)])  # every rank is told
    with pytest.raises(tessera.MismatchError, match="rank 0 needs a gradient of its DTensor, rank 1 does not"):
        tessera.redistribute(x if rank == 0 else x.detach(), [Shard(1)])
    assert torch.equal(tessera.redistribute(x, [Shard(-1)]).full_tensor(), x.full_tensor())
    plan = tessera.plan(x, [Shard(1)])
    assert str(plan.target) == "S1" and plan.shape == (7, 2)
    assert str(tessera.plan(x, "S0[1,6]").target) == "S0[1,6]"


def test_a_dtensor_never_lies():
    run_ranks(2, _lies, backend="gloo")


def _other_meshes(rank, size):
    """Rank 0 has its place in all of them."""
    for group in (None, tessera._group.comm().split(0)):
        layout = tessera.Layout("a=2,b=2", "S0,S1")
        x = tessera.ShardedTensor.from_local(torch.full((1, 1), float(rank)), layout, group=group)
        for other in ([[0, 2], [1, 3]], [[0, 1, 2, 3]], [0, 1, 2, 3], [[0, 1], [3, 2]]):
            with pytest.raises(tessera.ShapeError, match="has its parts on") as caught:
                x.to_dtensor(DeviceMesh("cpu", other))
            texts = [None] * size
            dist.all_gather_object(texts, str(caught.value))
            assert texts == [str(caught.value)] * size
        same = x.to_dtensor(DeviceMesh("cpu", [[0, 1], [2, 3]]))
        assert same.full_tensor().tolist() == [[0, 1], [2, 3]]


def test_a_mesh_in_another_order_is_told_to_every_rank():
    run_ranks(4, _other_meshes, backend="gloo")


def _wrong_arguments(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])

    def told(kind, words, right, wrong):
        with pytest.raises(kind, match=words) as caught:
            (wrong if rank == 1 else right)()
        assert isinstance(caught.value, dist.DistError) and "rank  1" in str(caught.value)
        assert "test_redistribute_dtensor.py:" in str(caught.value)

    for fn in (tessera.all_gather, tessera.all_reduce, tessera.reduce_scatter, lambda x: tessera.all_gather([x, x])):
        told(TypeError, r"to_local\(\)", lambda fn=fn: fn(torch.ones(2, 4)), lambda fn=fn: fn(x))

    def move(*args, **named):
        return lambda: tessera.redistribute(x, *args, **named)

    for target in (None, 5, 1.0):
        told(TypeError, "target is", move([Replicate()]), move(target))
    told(TypeError, "device_mesh is", move([Replicate()]), move([Replicate()], device_mesh=5))
    told(ValueError, "global", move([Replicate()]), move([Replicate()], convention="local"))
    for target in ([None], ["S0"], [0], [[Shard(0)]], [Shard(0), "R"]):
        told(TypeError, r"target\[\d\] is .* give a placement", move([Replicate()]), move(target))
    for target in ([], [Shard(7)], [Shard(-3)], [Replicate(), Replicate()]):
        told(ValueError, None, move([Replicate()]), move(target))
    told(ValueError, None, move("R"), move("S7"))
    moved = tessera.redistribute(x, [Replicate()])
    assert torch.equal(moved.to_local(), torch.ones(4, 4))


def test_what_one_rank_gives_wrong_is_told_to_all():
    run_ranks(2, _wrong_arguments, backend="gloo", timeout_s=30.0)


def _wrong_on_one_of_two_meshes(rank, size):
    """All that move between them are told, not those of the first alone."""
    x = distribute_tensor(torch.ones(4, 4), DeviceMesh("cpu", [0, 1]), [Shard(0)])
    server = DeviceMesh("cpu", [2, 1])
    for wrong, words in (({"target": [0]}, "target"), ({"convention": "local"}, "global")):
        named = {"target": [Shard(1)], "device_mesh": server, **(wrong if rank == 1 else {})}
        with pytest.raises(tessera.Error, match=words) as caught:
            tessera.redistribute(x, **named)
        assert "rank  1" in str(caught.value)
    assert tessera.redistribute(x, [Shard(1)], device_mesh=server).device_mesh == server


def test_what_is_wrong_is_told_to_both_meshes():
    run_ranks(3, _wrong_on_one_of_two_meshes, backend="gloo", timeout_s=30.0)


def _in_between(rank, size):
    """What DTensor has not waited for yet."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(15.0).reshape(5, 3)
    x = distribute_tensor(whole, mesh, [Shard(0)])
    pending = x.redistribute(placements=[Replicate()], async_op=True)
    assert torch.equal(tessera.redistribute(pending, [Shard(1)]).full_tensor(), whole)


def test_unfinished():
    run_ranks(2, _in_between, backend="gloo")


def _compiled(rank, size):
    """In one graph, with the values and gradients of eager code."""
    mesh = DeviceMesh("cpu", [0, 1])
    server = DeviceMesh("cpu", [1, 0])
    whole = torch.arange(15.0).reshape(5, 3)
    moves = [(Shard(0), Replicate(), None), (Shard(0), Shard(-1), None), (Partial(), Shard(0), None)]
    moves += [(Partial("avg"), Replicate(), None), (Shard(0), Shard(0), None), (Shard(0), Shard(1), server)]
    for (source, target, other), backend in zip(moves, ["eager", "aot_eager", "aot_eager"] * 2):

        def step(x):
            moved = tessera.redistribute(x * 2, [target], device_mesh=other)
            local = moved.to_local()
            return moved.detach(), (local * torch.cos(local.detach())).sum()

        results = []
        for run in (step, torch.compile(step, fullgraph=True, backend=backend)):
            x = _terms(whole, mesh, [source]).detach().requires_grad_()
            moved, loss = run(x)
            (gradient,) = torch.autograd.grad(loss, x)
            results.append((moved, gradient))
        (eager, eager_gradient), (fast, fast_gradient) = results
        assert fast.placements == eager.placements and fast.device_mesh == eager.device_mesh
        assert fast_gradient.placements == eager_gradient.placements
        torch.testing.assert_close(fast.to_local(), eager.to_local())
        torch.testing.assert_close(fast_gradient.to_local(), eager_gradient.to_local())


def test_compiled_in_one_graph():
    run_ranks(2, _compiled, backend="gloo")


def _again(rank, size, folder):
    """A group that is destroyed and made again has another communicator."""
    for turn in range(2):
        if turn == 1:
            dist.destroy_process_group()
            store = dist.FileStore(os.path.join(folder, "again"), size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        mesh = init_device_mesh("cpu", (size,))
        x = distribute_tensor(torch.arange(6.0).reshape(3, 2), mesh, [Shard(0)])
        assert torch.equal(tessera.redistribute(x, [Replicate()]).to_local(), torch.arange(6.0).reshape(3, 2))


def test_a_group_made_again(tmp_path):
    run_ranks(2, _again, str(tmp_path), backend="gloo")
