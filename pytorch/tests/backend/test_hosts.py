"""Ranks on several hosts, pretended on this one: shared memory within each, and Gloo between them."""

import os
import signal
import threading
import time

import pytest
import test_collectives as collectives
import test_failures as failures
import test_training as training
import torch
import torch.distributed as dist
from ranks import run_ranks, start_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tessera

CPU = torch.device("cpu")


def _all_of(rank, size, fns):
    for fn in fns:
        fn(rank, size)


def _hosts_seen(rank, size, hosts):
    """Otherwise these tests would show nothing."""
    group = dist.group.WORLD._get_backend(CPU)
    before = group.stats()
    x = torch.full((5000,), float(rank))
    dist.all_gather([torch.zeros(5000) for _ in range(size)], x)
    after = group.stats()
    between = after["bytes_between_hosts"] - before["bytes_between_hosts"]
    within = after["bytes_within_host"] - before["bytes_within_host"]
    assert (between > 0) == (hosts > 1), (before, after)
    assert (within > 0) == (1 < hosts < size), (before, after)


VALUES = [
    collectives._broadcast, collectives._all_reduce, collectives._averages, collectives._reduce,
    collectives._all_gather, collectives._into_tensor, collectives._coalesced, collectives._reduce_scatter,
    collectives._all_to_all, collectives._gather_and_scatter, collectives._objects, collectives._strange_tensors,
]  # fmt: skip
ORDER = [
    collectives._messages, collectives._futures, collectives._two_groups_in_any_order, collectives._sub_groups,
]  # fmt: skip


@pytest.mark.parametrize("size, hosts", [(2, 2), (3, 2), (4, 2), (4, 4)])
def test_every_collective_is_that_of_gloo(size, hosts):
    run_ranks(size, _all_of, [*VALUES, *ORDER], hosts=hosts)


@pytest.mark.parametrize("size, hosts", [(1, 2), (2, 2), (4, 2), (3, 3), (7, 3)])
def test_both_ways_are_taken(size, hosts):
    run_ranks(size, _hosts_seen, min(size, hosts), hosts=hosts)


def _ragged_and_gradients(rank, size):
    """tessera's own calls on a group of another backend."""
    for rows in (1, 3000):
        x = torch.full((rows * rank, 33), float(rank), requires_grad=True)
        gathered, sizes = tessera.all_gather(x)
        assert sizes.tolist() == [rows * r for r in range(size)]
        assert all(part.eq(r).all() for r, part in enumerate(gathered.split(sizes.tolist())))
        (gathered * (rank + 1)).sum().backward()
        assert x.grad.eq(size * (size + 1) // 2).all()
        columns, _ = tessera.all_gather(torch.full((5, rank), float(rank)), dim=1)
        assert columns.shape == (5, size * (size - 1) // 2)
        part = tessera.reduce_scatter(torch.arange(float(size * rows)) * (rank + 1))
        expected = torch.arange(float(size * rows)).chunk(size)[rank] * (size * (size + 1) // 2)
        torch.testing.assert_close(part, expected)
    with pytest.raises(tessera.MismatchError, match="dim 1 is 4, rank 0 has 3"):
        tessera.all_gather(torch.zeros(2, 3 + (rank == size - 1)))
    some = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        assert tessera.all_reduce(torch.tensor(rank), group=some).item() == size - 1
    assert tessera.all_reduce(torch.tensor(1)).item() == size


@pytest.mark.parametrize("size, hosts", [(2, 2), (4, 2), (7, 4)])
def test_tesseras_calls_on_a_gloo_group(size, hosts):
    run_ranks(size, _ragged_and_gradients, backend="gloo", hosts=hosts)


def _bytes(rank, size):
    group = dist.group.WORLD._get_backend(CPU)
    counts = []

    def count(call):
        before = group.stats()["bytes_between_hosts"]
        call()
        counts.append(group.stats()["bytes_between_hosts"] - before)

    rows = [10_000 * (r + 1) for r in range(size)]
    mine = torch.full((rows[rank],), float(rank))
    count(lambda: dist.all_gather([torch.zeros(n) for n in rows], mine))
    count(lambda: dist.broadcast(torch.zeros(40_000), size - 1))
    count(lambda: dist.reduce_scatter_tensor(torch.zeros(10_000), torch.ones(10_000 * size)))
    return counts


def test_each_byte_comes_once_to_a_host():
    counts = torch.tensor(run_ranks(4, _bytes, hosts=2))
    first, second = counts[:2].sum(0).tolist(), counts[2:].sum(0).tolist()
    assert first == [4 * 70_000, 4 * 40_000, 4 * 2 * 2 * 10_000]
    assert second == [4 * 30_000, 0, 4 * 2 * 2 * 10_000]


def test_ddp_trains_as_on_gloo():
    ours, theirs = run_ranks(4, training._ddp, hosts=2), run_ranks(4, training._ddp, backend="gloo")
    # Numbers of Python are compared as doubles where nobody says; these are sums of floats, in two orders.
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_every_pair_of_placements():
    run_ranks(4, training._pairs, (2, 2), hosts=2)


def _killed(rank, size, dead):
    dist.barrier()
    if rank == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    error = failures.caught(lambda: dist.all_reduce(torch.ones(100_000)))
    return error, time.monotonic() - start


@pytest.mark.parametrize("size, hosts, dead", [(2, 2, 1), (4, 2, 0), (4, 2, 3), (3, 3, 1)])
def test_a_killed_rank_is_named(size, hosts, dead):
    reports = run_ranks(size, _killed, dead, may_die=[dead], hosts=hosts)
    for rank in set(range(size)) - {dead}:
        (kind, text), seconds = reports[rank]
        assert kind == "PeerLostError" and f"rank {dead} left" in text, text
        assert seconds < 30


def test_a_barrier_names_who_is_missing():
    reports = run_ranks(3, failures._late, timeout_s=1.0, hosts=2)
    for rank in (0, 1):
        kind, text = reports[rank]
        assert kind == "TimeoutError" and "rank 2 did not come within 1 s" in text, text


def test_ranks_that_disagree_all_hear_it_and_go_on():
    reports = run_ranks(3, failures._disagree, hosts=2)
    assert reports[0] == reports[1] == reports[2]
    assert reports[0] == run_ranks(3, failures._disagree)[0]  # as on one host


def test_who_does_not_come_to_the_start_is_named(tmp_path):
    reports = run_ranks(3, failures._missing_at_start, str(tmp_path), backend=None, hosts=3)
    for rank in (0, 2):
        kind, text = reports[rank]
        assert kind == "TimeoutError" and "rank 1 of 3 did not come" in text, text


def _again_and_again(rank, size, folder):
    def once(i):
        start_group(rank, size, os.path.join(folder, f"store{i}"))
        t = torch.ones(50_000)
        dist.all_reduce(t, async_op=True).wait()
        assert t[0] == size
        other = dist.new_group(list(range(size)))
        dist.all_reduce(t, group=other)
        dist.destroy_process_group()

    for i in range(3):
        once(i)
    before = failures.usage()
    for i in range(3, 13):
        once(i)
    return before, failures.usage()


def test_groups_start_and_stop_without_a_leak(tmp_path):
    left = set(os.listdir("/dev/shm"))
    for before, after in run_ranks(2, _again_and_again, str(tmp_path), backend=None, hosts=2):
        assert after[:2] == before[:2], "descriptors, threads"
        assert after[3] <= before[3] + 20_000, "KiB of memory"
    assert not [name for name in set(os.listdir("/dev/shm")) - left if "tessera" in name]


def _interrupted(rank, size):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.barrier()
    if rank != 0:
        time.sleep(2)
        return failures.caught(lambda: dist.all_reduce(torch.ones(1)))[0]
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(torch.ones(1))
    return "KeyboardInterrupt"


def test_ctrl_c_ends_a_wait():
    assert run_ranks(2, _interrupted, hosts=2) == ["KeyboardInterrupt", "AbortedError"]


def _redistributed(rank, size):
    """Over a mesh of some ranks, which no process group has."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    if rank < 4:
        x = torch.arange(71 * 90.0).reshape(71, 90)
        parts = distribute_tensor(x, mesh, [Shard(0), Shard(1)]).requires_grad_()
        moved = tessera.redistribute(parts, [Shard(1), Replicate()])
        (moved * moved).sum().backward()
        ragged = tessera.redistribute(parts, "S0[11,60],R")
        assert torch.equal(ragged.full_tensor(), x)
        assert ragged.comm.stats()["bytes_between_hosts"] > 0
        assert torch.equal(moved.full_tensor(), x)
        assert torch.equal(parts.grad.full_tensor(), 2 * x)
    dist.barrier()


@pytest.mark.parametrize("backend", ["tessera", "gloo"])
def test_redistribute(backend):
    run_ranks(5, _redistributed, backend=backend, hosts=2)
