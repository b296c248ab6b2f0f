"""What is asked of tensors on a device that is not the CPU: TESSERA_TEST_DEVICE, or the one in that library."""

import os
import socket
import threading
import types

import pytest
import reference
import tessera
import tessera.compat.mirasol
import tessera.compat.st_moe
import torch
import torch.distributed as dist
import torch.multiprocessing
from test_operations import cases, check_values_and_gradients
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

DEVICE = os.environ["TESSERA_TEST_DEVICE"]
if os.path.exists(DEVICE):
    torch.ops.load_library(DEVICE)
    DEVICE = "twin"
    torch.utils.rename_privateuse1_backend(DEVICE)
    module = types.ModuleType(f"torch.{DEVICE}")
    module.is_available, module.device_count = lambda: True, lambda: 1
    module.current_device, module.set_device = lambda: 0, lambda _: None
    module._is_in_bad_fork, module.is_initialized = lambda: False, lambda: True
    module._lazy_init, module.get_amp_supported_dtype = lambda: None, lambda: [torch.float16]
    module.get_rng_state, module.set_rng_state = lambda *_: torch.empty(0), lambda *_: None
    torch._register_device_module(DEVICE, module)


def there(x):
    assert x.device.type == DEVICE
    return x.detach().cpu()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", list(cases(2)))
def test_values_and_gradients(name, ranks):
    check_values_and_gradients(name, ranks, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8])
def test_every_kind_of_element_and_of_view(dtype):
    def rank_main(comm):
        whole = torch.arange(24).reshape(2, 3, 4).add(comm.rank).remainder(3).to(dtype)
        for view in (lambda x: x, lambda x: x.transpose(0, 2)[1:], lambda x: x[0, 0].expand(3, 4), lambda x: x[0, 0, 0]):
            gathered, sizes = tessera.all_gather(view(whole.to(DEVICE)))
            expected, counts = tessera.all_gather(view(whole))
            assert torch.equal(there(gathered), expected) and torch.equal(there(sizes), counts)
        conjugate = tessera.all_reduce(whole.to(DEVICE).conj())
        assert torch.equal(there(conjugate), tessera.all_reduce(whole.conj()))

    tessera.run(3, rank_main)


def test_sizes_are_there_too_and_taken_from_anywhere():
    def rank_main(comm):
        x = torch.ones(comm.rank, 2, device=DEVICE)
        assert there(tessera.gather_sizes(x)).tolist() == [0, 1, 2]
        for sizes in ([0, 1, 2], torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2], device=DEVICE)):
            gathered, given = tessera.all_gather(x, 0, sizes)
            assert there(gathered).shape == (3, 2) and there(given).tolist() == [0, 1, 2]
        moved, came = tessera.all_to_all_v(torch.ones(3, device=DEVICE), [1, 1, 1])
        assert there(moved).shape == (3,) and there(came).tolist() == [1, 1, 1]

    tessera.run(3, rank_main)


def test_each_rank_has_its_results_where_its_own_tensor_is():
    def rank_main(comm):
        device = DEVICE if comm.rank == 1 else "cpu"
        x = torch.full((comm.rank + 1,), float(comm.rank), device=device, requires_grad=True)
        gathered, _ = tessera.all_gather(x)
        (gathered * (comm.rank + 1)).sum().backward()
        assert gathered.device.type == x.grad.device.type == device
        assert gathered.tolist() == [0, 1, 1] and x.grad.unique().tolist() == [3]
        both = tessera.all_reduce([x[:1], torch.ones(2)])
        assert [each.device.type for each in both] == [device, "cpu"]
        (whole, sizes), _ = tessera.all_gather([x.detach(), torch.ones(1)])
        assert whole.device.type == sizes.device.type == device

    def with_root(comm):
        x = torch.arange(6.0, device=DEVICE) if comm.rank == 0 else None
        whole, (part, _) = tessera.broadcast(x), tessera.scatter(x)
        assert whole.device.type == part.device.type == (DEVICE if comm.rank == 0 else "cpu")
        assert whole.tolist() == [0, 1, 2, 3, 4, 5] and part.tolist() == [[0, 1, 2], [3, 4, 5]][comm.rank]
        like = torch.empty(6, device=DEVICE)
        assert there(tessera.broadcast(like if x is None else x)).tolist() == [0, 1, 2, 3, 4, 5]

    def with_lists(comm):
        x = torch.full((2,), float(comm.rank), device=DEVICE, requires_grad=True)
        a, b = tessera.all_reduce([x, x * 2])
        (rows, _), _ = tessera.all_gather([x, x])
        (a.sum() + b.sum() + rows.sum()).backward()
        assert there(a).tolist() == [1, 1] and there(rows).tolist() == [0, 0, 1, 1] and there(x.grad).tolist() == [8, 8]

    for check in (rank_main, with_root, with_lists):
        tessera.run(2, check)


def test_gradients_on_both_sides_come_in_one_order():
    def rank_main(comm):
        far, near = torch.ones(3, device=DEVICE, requires_grad=True), torch.ones(3, requires_grad=True)
        total = 0
        for _ in range(5):
            total = total + tessera.all_gather(far)[0].sum().cpu() + tessera.all_gather(near)[0].sum()
        total.backward()
        assert there(far.grad).tolist() == near.grad.tolist() == [10, 10, 10]

    tessera.run(2, rank_main)


def test_redistribution():
    from_layout = tessera.Layout("x=3", "S0[2,0,3]")

    def rank_main(comm):
        whole = torch.arange(20.0).reshape(5, 4)
        rows = whole.split([2, 0, 3])[comm.rank].to(DEVICE).requires_grad_()
        mine = tessera.ShardedTensor.from_local(rows, from_layout)
        columns = mine.redistribute("S1")
        assert torch.equal(there(columns.local), reference.chunk(whole, 3, 1)[comm.rank])
        assert torch.equal(there(mine.full_tensor()), whole)
        columns.local.square().sum().backward()
        assert torch.equal(there(rows.grad), 2 * rows.detach().cpu())
        plan = tessera.plan(from_layout, "At(1)", [5, 4], torch.float32)
        moved = there(tessera.redistribute(rows.detach(), plan))
        assert torch.equal(moved, whole) if comm.rank == 1 else moved.shape == (0,)

    tessera.run(3, rank_main)


def test_messages():
    def rank_main(comm):
        if comm.rank == 0:
            tessera.send(torch.arange(4, device=DEVICE).flip(0), 1)
            tessera.send(torch.arange(4), 1)
        else:
            assert tessera.recv(0)[0].tolist() == [3, 2, 1, 0]
            out = torch.zeros(4, dtype=torch.int64, device=DEVICE)
            assert tessera.recv(0, out=out)[0] is out and out.tolist() == [0, 1, 2, 3]

    tessera.run(2, rank_main)


def test_drop_ins():
    def rank_main(comm):
        x = torch.full((comm.rank + 1, 2), float(comm.rank), device=DEVICE, requires_grad=True)
        st_moe, mirasol = tessera.compat.st_moe, tessera.compat.mirasol
        sizes = st_moe.gather_sizes(x, dim=0)
        assert there(sizes).tolist() == [1, 2] and there(st_moe.has_only_one_value(sizes)).item() is False
        gathered, found = st_moe.AllGather(dim=0)(x)
        assert there(found).tolist() == [1, 2] and there(gathered)[:, 0].tolist() == [0, 1, 1]
        (gathered * (comm.rank + 1)).sum().backward()
        assert there(x.grad).unique().tolist() == [comm.rank + 1]  # the slice, as the copied file has it
        gathered, given = mirasol.all_gather(x, 0, sizes)
        assert given is sizes and there(gathered).shape == (3, 2)
        same = st_moe.all_gather_same_dim(x.detach()[:1])
        assert [there(each)[0, 0].item() for each in same] == [0, 1]
        own, rows = st_moe.split_by_rank(torch.stack(same))
        assert there(own)[0, 0].item() == comm.rank and there(rows).tolist() == [1, 1]

    with pytest.warns(UserWarning, match="leaves out"):
        tessera.run(2, rank_main)


def test_what_cannot_move_is_told_to_every_rank():
    def rank_main(comm):
        wrong = comm.rank == 1
        x = torch.ones(2, device=DEVICE)
        with pytest.raises(tessera.DTypeError, match="rank  1"):
            tessera.all_gather(x.to(torch.uint16) if wrong else x)
        with pytest.raises(tessera.ShapeError, match="sizes"):
            tessera.all_gather(x, 0, [2, 5])
        with pytest.raises(tessera.MismatchError, match="Only dim 0 may differ"):
            tessera.all_gather(x.unsqueeze(comm.rank))
        with pytest.raises(tessera.ArgumentError, match="op"):
            tessera.all_reduce(x, "zzz" if wrong else "sum")
        assert there(tessera.all_reduce(x)).tolist() == [2, 2]

    tessera.run(2, rank_main)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def member(rank, ranks, port, backend):
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for rows in (1, 4000):  # within a record, and read out of the other's memory
        x = torch.full((rows * rank, 33), float(rank), device=DEVICE, requires_grad=True)
        gathered, sizes = tessera.all_gather(x)
        assert there(sizes).tolist() == [rows * r for r in range(ranks)]
        (gathered * (rank + 1)).sum().backward()
        assert all(part.eq(r).all() for r, part in enumerate(there(gathered).split(sizes.tolist())))
        assert there(x.grad).eq(sum(range(1, ranks + 1))).all()
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["gloo", "tessera"] + (["nccl"] if DEVICE == "cuda" else []))
def test_process_groups(backend):
    torch.multiprocessing.spawn(member, (2, free_port(), backend), nprocs=2)


# Compiled code, and what traces -----------------------------------------------------------------------------------------


def step(x):
    gathered, sizes = tessera.all_gather(x * 2)
    return gathered.square().sum() + sizes.sum(), tessera.reduce_scatter(gathered, 0, sizes)


@pytest.mark.parametrize("compiler", ["aot_eager"] + (["inductor"] if DEVICE == "cuda" else []))
def test_compiled(compiler):
    def rank_main(comm):
        results = []
        for fn in (compiled, step):  # compiled first: nobody has called anything on this thread yet
            for n in (1, 2, 3):
                x = torch.full((comm.rank + n, 3), comm.rank + 1.0, device=DEVICE, requires_grad=True)
                loss, part = fn(x)
                (loss + part.sum()).backward()
                results.append([there(loss), there(part), there(x.grad)])
        torch.testing.assert_close(results[:3], results[3:])

    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    for _ in range(2):  # the second time it is there already
        tessera.run(2, rank_main, timeout=60)


def test_sizes_from_the_host_where_shapes_are_worked_out():
    one_at_a_time = threading.Lock()

    calls = (
        lambda x: tessera.all_gather(x, 0, [4, 4])[0],
        lambda x: tessera.all_gather(x, 0, torch.tensor([4, 4]))[0],
        lambda x: tessera.reduce_scatter(x, 0, [1, 3]),
        lambda x: tessera.all_to_all_v(x, [2, 2], torch.tensor([2, 2]))[0],
        lambda x: tessera.scatter(x, 0, 0, [3, 1])[0],
        lambda x: tessera.split(x, 0, torch.tensor([3, 1])),
        lambda x: tessera.compat.st_moe.all_gather_variable_dim(x, 0, torch.tensor([4, 4]))[0],
    )

    def rank_main(comm):
        x = torch.arange(8.0).reshape(4, 2).to(DEVICE)
        with one_at_a_time:  # make_fx() is for one thread, and for none that compiles beside it
            traced = [make_fx(call, tracing_mode="fake")(x) for call in calls]
        comm.barrier()
        for call, graph in zip(calls, traced):
            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            expected = there(call(x))
            assert torch.equal(there(graph(x)), expected) and torch.equal(there(compiled(x)), expected)

    tessera.run(2, rank_main, timeout=60)


# Gradients among others -------------------------------------------------------------------------------------------------


class SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return tessera.all_reduce(grad)


def test_calls_that_a_users_own_backward_makes():
    def rank_main(comm):
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        (SumOfGradients.apply(x) * (comm.rank + 1)).sum().backward()
        assert there(x.grad).tolist() == [3, 3]
        x.grad = None
        x.register_hook(tessera.all_reduce)
        (x * (comm.rank + 1)).sum().backward()
        assert there(x.grad).tolist() == [3, 3]

    tessera.run(2, rank_main, timeout=60)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    def rank_main(comm):
        x = torch.ones(comm.rank + 1, 2, device=DEVICE, requires_grad=True)
        gather = lambda t: tessera.all_gather(t * 2)[0]  # noqa: E731
        gathered = checkpoint(gather, x, use_reentrant=reentrant)
        (gathered * (comm.rank + 1)).sum().backward()
        assert there(x.grad).unique().tolist() == [6]

    tessera.run(2, rank_main, timeout=60)


def test_dtensors():
    torch.multiprocessing.spawn(dtensor_member, (2, free_port()), nprocs=2)


def dtensor_member(rank, ranks, port):
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

    there_too = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(
        f"cpu:gloo,{DEVICE}:{there_too}", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    meshes = {device: init_device_mesh(device, (ranks,)) for device in (DEVICE, "cpu")}
    whole = torch.arange(35.0).reshape(5, 7)

    def rows(device):
        mine = reference.chunk(whole, ranks, 0)[rank].to(device).requires_grad_()
        shape, stride = whole.shape, whole.stride()
        return mine, DTensor.from_local(mine, meshes[device], [Shard(0)], run_check=False, shape=shape, stride=stride)

    mine, x = rows(DEVICE)
    columns = tessera.redistribute(x, [Shard(1)])
    assert torch.equal(there(columns.to_local()), reference.chunk(whole, ranks, 1)[rank])
    columns.to_local().square().sum().backward()
    assert torch.equal(there(mine.grad), 2 * mine.detach().cpu())
    assert torch.equal(there(tessera.redistribute(x, [Replicate()]).to_local()), whole)
    for _ in range(20):  # beside the same on the CPU: in one order on all ranks
        (far, a), (near, b) = rows(DEVICE), rows("cpu")
        a, b = (tessera.redistribute(each, [Shard(1)]).to_local().sum() for each in (a, b))
        (5 * a.cpu() + 3 * b).backward()
        assert there(far.grad).eq(5).all() and near.grad.eq(3).all()
    dist.destroy_process_group()
