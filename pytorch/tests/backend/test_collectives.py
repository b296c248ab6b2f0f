"""Every collective of c10d over tessera, beside the same one over Gloo in the same processes."""

import random
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
]  # fmt: skip
MOVED = DTYPES + [torch.bool, torch.complex64, torch.complex128, torch.int16, torch.uint16, torch.float8_e4m3fn]
SIZES = [1, 2, 3, 4]


def values(shape, dtype, rank, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    whole = torch.randint(0, 8, tuple(shape), generator=generator)
    return whole.to(dtype) if dtype != torch.bool else whole > 3


def equal(a, b):
    """Bits, but for sums of floats, which Gloo adds up in another order."""
    assert a.dtype == b.dtype and a.shape == b.shape
    a, b = a.clone(), b.clone()
    if a.dtype in (torch.uint16, torch.float8_e4m3fn):
        a, b = a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    torch.testing.assert_close(a, b)


class Both:
    """Runs a collective on tessera and on Gloo and holds the outputs against each other."""

    def __init__(self):
        self.gloo = dist.new_group(backend="gloo")

    def __call__(self, outputs, collective):
        ours = [t.clone() for t in outputs]
        theirs = [t.clone() for t in outputs]
        collective(ours, None)
        collective(theirs, self.gloo)
        for mine, reference in zip(ours, theirs, strict=True):
            equal(mine, reference)


def _broadcast(rank, size):
    both = Both()
    for dtype in DTYPES:
        for root in range(size):
            for shape in [(5, 3), (0, 4), (1,), (), (70_000,)]:
                both([values(shape, dtype, rank)], lambda t, g: dist.broadcast(t[0], root, group=g))


def _all_reduce(rank, size):
    both = Both()
    for dtype in DTYPES:
        for op in [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]:
            for shape in [(5, 3), (1,), (), (33_000,)]:
                t = (values(shape, torch.int64, rank) % 3).to(dtype)
                both([t], lambda t, g: dist.all_reduce(t[0], op, group=g))
    for op in [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]:
        both([values((7,), torch.int64, rank)], lambda t, g: dist.all_reduce(t[0], op, group=g))


def _averages(rank, size):
    for dtype in [torch.float64, torch.float32, torch.float16, torch.bfloat16]:
        t = torch.full((4, 2), float(rank), dtype=dtype)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        equal(t, torch.full((4, 2), (size - 1) / 2, dtype=dtype))
        t = torch.full((3,), float(rank), dtype=dtype)
        dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
        equal(t, torch.full((3,), size * (size - 1) / 4, dtype=dtype))
        out = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(out, torch.full((2 * size,), float(rank), dtype=dtype), dist.ReduceOp.AVG)
        equal(out, torch.full((2,), (size - 1) / 2, dtype=dtype))
    with pytest.raises(TypeError, match="avg"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.AVG)


def _reduce(rank, size):
    both = Both()
    for dtype in DTYPES:
        for root in range(size):
            t = values((6, 2), dtype, rank)
            ours, theirs = t.clone(), t.clone()
            dist.reduce(ours, root)
            dist.reduce(theirs, root, group=both.gloo)
            if rank == root:
                equal(ours, theirs)
            else:
                equal(ours, t)  # Gloo leaves a partial sum there


def _all_gather(rank, size):
    both = Both()
    for dtype in MOVED:
        for shape in [(5, 3), (0, 4), (), (30_000,)]:
            outs = [torch.zeros(shape, dtype=dtype) for _ in range(size)]
            if dtype in DTYPES:
                both(outs, lambda t, g: dist.all_gather(t, values(shape, dtype, rank), group=g))
            dist.all_gather(outs, values(shape, dtype, rank))
            for r, out in enumerate(outs):
                equal(out, values(shape, dtype, r))
    for seed in range(20):  # ragged in every dimension
        shapes = [[random.Random(seed * 10 + r).randrange(0, 60) for _ in range(2)] for r in range(size)]
        outs = [torch.zeros(shape) for shape in shapes]
        dist.all_gather(outs, values(shapes[rank], torch.float32, rank))
        for r, out in enumerate(outs):
            equal(out, values(shapes[r], torch.float32, r))
    t = torch.arange(12.0).reshape(3, 4) + rank  # outputs and input with gaps
    outs = [torch.zeros(3, 8)[:, ::2] for _ in range(size)]
    dist.all_gather(outs, t.t().contiguous().t())
    for r, out in enumerate(outs):
        equal(out, torch.arange(12.0).reshape(3, 4) + r)


def _into_tensor(rank, size):
    both = Both()
    for dtype in DTYPES:
        for n in [0, 1, 7, 20_000]:
            out = torch.zeros(size * n, dtype=dtype)
            both([out], lambda t, g: dist.all_gather_into_tensor(t[0], values((n,), dtype, rank), group=g))
            out = torch.zeros(n, dtype=dtype)
            both([out], lambda t, g: dist.reduce_scatter_tensor(t[0], values((size * n,), dtype, rank), group=g))
    stacked = torch.zeros(size, 3, 2)
    dist.all_gather_into_tensor(stacked, torch.full((3, 2), float(rank)))
    equal(stacked, torch.arange(float(size)).reshape(size, 1, 1).expand(size, 3, 2).contiguous())
    whole = torch.zeros(size, 5)  # in place, as FSDP does it
    whole[rank] = rank
    dist.all_gather_into_tensor(whole, whole[rank])
    equal(whole, torch.arange(float(size)).reshape(size, 1).expand(size, 5).contiguous())


def _coalesced(rank, size):
    with dist._coalescing_manager():
        ts = [torch.full((3 + i,), float(rank)) for i in range(4)]
        for t in ts:
            dist.all_reduce(t)
    for i, t in enumerate(ts):
        equal(t, torch.full((3 + i,), size * (size - 1) / 2))
    outs = [torch.zeros(size * (i + 1)) for i in range(3)]
    with dist._coalescing_manager(async_ops=True) as pending:
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((i + 1,), float(rank)))
    pending.wait()
    for i, out in enumerate(outs):
        equal(out, torch.arange(float(size)).repeat_interleave(i + 1))
    outs = [torch.zeros(i + 1) for i in range(3)]
    with dist._coalescing_manager():
        for i, out in enumerate(outs):
            dist.reduce_scatter_tensor(out, torch.ones(size * (i + 1)) * (rank + 1))
    for i, out in enumerate(outs):
        equal(out, torch.full((i + 1,), size * (size + 1) / 2))


def _reduce_scatter(rank, size):
    for dtype in DTYPES:
        for seed in range(4):
            sizes = [random.Random(seed * 10 + r).randrange(0, 2000) for r in range(size)]
            inputs = [values((n,), dtype, rank, seed) for n in sizes]
            out = torch.zeros(sizes[rank], dtype=dtype)
            dist.reduce_scatter(out, inputs)
            terms = [[values((n,), dtype, r, seed) for n in sizes][rank].double() for r in range(size)]
            equal(out, sum(terms).to(dtype))


def _all_to_all(rank, size):
    for dtype in MOVED:
        counts = [[random.Random(100 * a + b).randrange(0, 50) for b in range(size)] for a in range(size)]
        send = counts[rank]
        recv = [counts[a][rank] for a in range(size)]
        x = values((sum(send), 3), dtype, rank)
        out = torch.zeros(sum(recv), 3, dtype=dtype)
        dist.all_to_all_single(out, x, recv, send)
        pieces = [torch.split(values((sum(counts[a]), 3), dtype, a), counts[a])[rank] for a in range(size)]
        equal(out, torch.cat([p.view(torch.uint8) for p in pieces]).view(dtype))
        outs = [torch.zeros(n, 3, dtype=dtype) for n in recv]
        dist.all_to_all(outs, [p.clone() for p in torch.split(x, send)])
        for out, piece in zip(outs, pieces, strict=True):
            equal(out, piece)
    out = torch.zeros(2 * size)
    dist.all_to_all_single(out, torch.arange(2.0 * size) + 100 * rank)
    equal(out, torch.cat([torch.tensor([2.0 * rank, 2.0 * rank + 1]) + 100 * a for a in range(size)]))


def _gather_and_scatter(rank, size):
    both = Both()
    for dtype in DTYPES:
        for root in range(size):
            outs = [torch.zeros(4, 2, dtype=dtype) for _ in range(size)]
            x = values((4, 2), dtype, rank)
            both(outs, lambda t, g: dist.gather(x, t if rank == root else None, dst=root, group=g))
            parts = [values((4, 2), dtype, 10 + r) for r in range(size)] if rank == root else None
            both([torch.zeros(4, 2, dtype=dtype)], lambda t, g: dist.scatter(t[0], parts, src=root, group=g))
    sizes = [3 * r for r in range(size)]  # ragged
    outs = [torch.zeros(n) for n in sizes] if rank == 0 else None
    dist.gather(torch.full((sizes[rank],), float(rank)), outs, dst=0)
    for r, out in enumerate(outs or []):
        equal(out, torch.full((sizes[r],), float(r)))


def _objects(rank, size):
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * (rank * 1000)})
    assert [e["rank"] for e in everything] == list(range(size))
    said = [("hello", 5) if rank == 0 else None]
    dist.broadcast_object_list(said, src=0)
    assert said == [("hello", 5)]
    got = [None]
    dist.scatter_object_list(got, list(range(size)) if rank == 0 else None, src=0)
    assert got == [rank]
    collected = [None] * size if rank == 0 else None
    dist.gather_object(rank * 2, collected, dst=0)
    assert collected is None or collected == [2 * r for r in range(size)]


def _messages(rank, size):
    following, before = (rank + 1) % size, (rank - 1) % size
    sent = dist.isend(torch.full((70_000,), float(rank)), following)
    got = torch.zeros(70_000)
    dist.recv(got, before)
    sent.wait()
    equal(got, torch.full((70_000,), float(before)))
    if rank == 0:  # by tag, in another order than sent; and from whoever comes
        first, second = torch.zeros(2), torch.zeros(2)
        for r in range(1, size):
            dist.recv(second, r, tag=2)
            dist.recv(first, r, tag=1)
            assert first.tolist() == [r, 1] and second.tolist() == [r, 2]
        sources = {dist.recv(first) for _ in range(1, size)}
        assert sources == set(range(1, size))
    else:
        works = [dist.isend(torch.tensor([float(rank), tag]), 0, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
        dist.send(torch.tensor([float(rank), 0.0]), 0)
    dist.isend(torch.ones(3), following, tag=9)  # nobody keeps the Work
    dist.all_reduce(torch.ones(2))
    dist.recv(got[:3], before, tag=9)
    ops = [
        dist.P2POp(dist.isend, torch.full((5,), float(rank)), following),
        dist.P2POp(dist.irecv, got[:5], before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    equal(got[:5], torch.full((5,), float(before)))


def _futures(rank, size):
    tensors = [torch.full((1000,), float(rank)) for _ in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    doubled = works[-1].get_future().then(lambda f: f.value()[0] * 2).wait()
    equal(doubled, torch.full((1000,), float(size * (size - 1))))
    for work, t in zip(reversed(works), reversed(tensors), strict=True):
        assert work.wait() and work.is_completed()
        equal(t, torch.full((1000,), size * (size - 1) / 2))
    assert works[0].get_future().done()
    if size == 1:
        return
    got = torch.zeros(4)
    sent = dist.isend(torch.full((4,), float(rank)), (rank + 1) % size)
    equal(dist.irecv(got, (rank - 1) % size).get_future().wait()[0], torch.full((4,), float((rank - 1) % size)))
    sent.get_future().wait()


def _two_groups_in_any_order(rank, size):
    other = dist.new_group(list(range(size)))
    a, b = torch.ones(3), torch.ones(3)
    order = [(a, None), (b, other)] if rank % 2 == 0 else [(b, other), (a, None)]
    for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in order]:
        work.wait()
    equal(a, torch.full((3,), float(size)))
    equal(b, torch.full((3,), float(size)))


def _sub_groups(rank, size):
    halves = [dist.new_group([r for r in range(size) if r % 2 == h]) for h in range(2)] if size > 1 else []
    for h, half in enumerate(halves):
        if rank % 2 != h:
            continue
        t = torch.tensor([float(rank)])
        dist.all_reduce(t, group=half)
        assert t.item() == sum(r for r in range(size) if r % 2 == h)
        dist.barrier(group=half)
        dist.destroy_process_group(half)
    dist.barrier()


def _strange_tensors(rank, size):
    t = torch.zeros(4, 6)
    t.fill_(rank + 1)
    column = t[:, 1]
    dist.all_reduce(column)
    equal(column.clone(), torch.full((4,), size * (size + 1) / 2))
    assert t[0, 0] == rank + 1
    leaf = torch.ones(3, requires_grad=True)
    version = leaf._version
    with torch.no_grad():
        dist.broadcast(leaf, 0)
    assert leaf._version == version
    with pytest.raises(TypeError, match="negative"):
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        group.shard_dim_alltoall(torch._neg_view(torch.zeros(size, size)), 0, 1)
    with pytest.raises(TypeError, match="cannot be reduced"):
        dist.all_reduce(torch.zeros(2, dtype=torch.uint16))
    dist.barrier()


def _left_alone(rank, size):
    """Calls that are waited for at once; after these one that nobody waits for, and one that only its future has."""
    for _ in range(20):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    x = torch.ones(3)
    work, end = dist.all_reduce(x, async_op=True), time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.001)
    assert work.is_completed()
    equal(x, torch.full((3,), float(size)))
    for _ in range(20):
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).get_future().wait()
    equal(x, torch.full((3,), float(size)))


def _shared_memory(rank, size):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert group.supports_tensor_alloc(torch.device("cpu"))
    x = group.allocate_tensor(100_000, dtype=torch.float32, device=torch.device("cpu"))
    x.fill_(rank + 1)
    before = group.stats()
    dist.all_reduce(x)
    assert group.stats()["bytes_attached"] == before["bytes_attached"], "peers read it in place"
    equal(x, torch.full((100_000,), size * (size + 1) / 2))
    dist.destroy_process_group()
    assert x[-1] == size * (size + 1) / 2  # it outlives the group


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "fn",
    [
        _broadcast, _all_reduce, _averages, _reduce, _all_gather, _into_tensor, _coalesced, _reduce_scatter,
        _all_to_all, _gather_and_scatter, _objects, _messages, _futures, _two_groups_in_any_order, _sub_groups,
        _strange_tensors, _left_alone, _shared_memory,
    ],
    ids=lambda fn: fn.__name__.strip("_"),
)  # fmt: skip
def test_collective(fn, size):
    if fn is _messages and size == 1:
        pytest.skip("a message needs two ranks")
    run_ranks(size, fn)
