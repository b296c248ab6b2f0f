"""Ranks that die, disagree or do not come, as Python sees them; and what stays behind: nothing."""

import gc
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks, start_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial

import tessera


def caught(fn):
    """The exception's type and text."""
    try:
        fn()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def _killed(rank, size, asynchronous):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()

    def reduce():
        work = dist.all_reduce(torch.ones(100_000), async_op=asynchronous)
        if asynchronous:
            work.wait()

    error = caught(reduce)
    return error, time.monotonic() - start


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_killed_rank_is_named(asynchronous):
    reports = run_ranks(3, _killed, asynchronous, may_die=[1])
    for rank in (0, 2):
        (kind, text), seconds = reports[rank]
        assert kind == "PeerLostError" and "rank 1 left" in text and "its process is gone" in text, text
        assert seconds < 30


def _lines(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    x = torch.ones(2 + rank)
    calls = [
        lambda: dist.all_reduce(x),
        lambda: dist.all_reduce(x, async_op=True).wait(),
        lambda: dist.all_gather_into_tensor(x, x),  # deprecated, and wrapped
        lambda: dist.all_reduce(x) if rank == 0 else dist.barrier(),
        lambda: dist.broadcast_object_list([0], 0) if rank == 0 else dist.all_gather([x + 1, x + 2], x),
        lambda: dist.send(x, 1) if rank == 0 else dist.recv(x, 0),
        lambda: DTensor.from_local(x, mesh, [Partial()], run_check=False).full_tensor(),
    ]
    for call in calls:
        kind, text = caught(call)
        assert text.count(f"test_failures.py:{call.__code__.co_firstlineno}") == size, (kind, text)
    _, text = caught(lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16) if rank == 1 else torch.ones(2)))
    assert text.count("test_failures.py:") == 1 and "rank  1" in text, text


def test_errors_name_the_lines_of_the_user():
    run_ranks(2, _lines)


def _late(rank, size):
    if rank == 2:
        time.sleep(3)
        return ("", "")
    return caught(dist.barrier)


def test_a_barrier_names_who_is_missing():
    reports = run_ranks(3, _late, timeout_s=1.0)
    for rank in (0, 1):
        kind, text = reports[rank]
        assert kind == "TimeoutError" and "rank 2 did not come within 1 s" in text, text


def _missing_at_start(rank, size, folder):
    if rank == 1:
        return ("", "")
    return caught(lambda: start_group(rank, size, os.path.join(folder, "meeting"), timeout_s=1.0))


def test_who_does_not_come_to_the_start_is_named(tmp_path):
    reports = run_ranks(3, _missing_at_start, str(tmp_path), backend=None)
    for rank in (0, 2):
        kind, text = reports[rank]
        assert kind == "TimeoutError" and "rank 1 of 3 did not come" in text, text


def _disagree(rank, size):
    errors = [
        caught(lambda: dist.all_reduce(torch.ones(3 + (rank == 1)))),
        caught(lambda: dist.broadcast(torch.ones(2, dtype=torch.float64 if rank == 1 else torch.float32), 0)),
        caught(lambda: dist.all_reduce(torch.ones(2)) if rank != 1 else dist.barrier()),
        # Wrong on one rank alone: all hear of it.
        caught(lambda: dist.all_gather([torch.zeros(2)] * (size - (rank == 1)), torch.zeros(2))),
        caught(lambda: dist.all_to_all_single(torch.zeros(size), torch.zeros(size + (rank == 1)))),
    ]
    t = torch.ones(2)
    dist.all_reduce(t)  # the group lives on
    assert t.tolist() == [size, size]
    return errors


def test_ranks_that_disagree_all_hear_it_and_go_on():
    reports = run_ranks(3, _disagree)
    assert reports[0] == reports[1] == reports[2]
    shape, dtype, operation, count, uneven = reports[0]
    assert shape[0] == "MismatchError" and "the ranks do not agree" in shape[1] and "[4]" in shape[1], shape
    assert dtype[0] == "DTypeError" and "rank 1 gave float64" in dtype[1], dtype
    assert operation[0] == "MismatchError" and "barrier" in operation[1], operation
    assert count[0] == "ShapeError" and "2 tensors for 3 ranks" in count[1], count
    assert uneven[0] == "ShapeError" and "4 rows" in uneven[1], uneven


def _kinds(rank, size):
    x = torch.ones(2 + rank)
    with pytest.raises(tessera.MismatchError) as mismatch:
        dist.all_reduce(x)
    with pytest.raises(tessera.ShapeError) as shape:
        dist.all_gather([x], x)
    with pytest.raises(tessera.DTypeError) as dtype:
        dist.all_reduce(torch.ones(2, dtype=torch.uint16))
    work = dist.all_gather([x], x, async_op=True)
    for _ in range(2):  # it may be asked more than once
        with pytest.raises(tessera.ShapeError):
            work.wait()
    with pytest.raises(tessera.ShapeError):
        work.get_future().wait()
    late = []
    if rank == 0:
        with pytest.raises(tessera.TimeoutError, match="not done after 100 ms") as limited:
            dist.irecv(x, 1).wait(timedelta(milliseconds=100))
        with pytest.raises(tessera.TimeoutError, match="call destroy_process_group") as late:
            dist.barrier()
        assert "shrink" not in str(late.value)
        with pytest.raises(tessera.AbortedError, match="call destroy_process_group") as dead:
            dist.barrier()
        late = [(limited, TimeoutError), (late, TimeoutError), (dead, RuntimeError)]
    else:
        time.sleep(2)
    for raised, kind in [(mismatch, ValueError), (shape, ValueError), (dtype, TypeError), *late]:
        assert isinstance(raised.value, kind) and isinstance(raised.value, dist.DistBackendError), raised.value


def test_errors_are_those_of_the_package_and_of_torch():
    run_ranks(2, _kinds, timeout_s=1.0)


def usage():
    gc.collect()
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(maps.readlines()), resident


def _reduce_by_c10d(size):
    t = torch.ones(1000)
    dist.all_reduce(t, async_op=True).wait()
    assert t[0] == size


def _gather_and_back(size):
    x = torch.ones(1000, requires_grad=True)
    gathered, _ = tessera.all_gather(x)
    gathered.sum().backward()
    assert x.grad[0] == size


def _again_and_again(rank, size, folder, backend, use, times):
    def once(i):
        start_group(rank, size, os.path.join(folder, f"store{i}"), backend)
        use(size)
        dist.destroy_process_group()

    for i in range(10):
        once(i)
    before = usage()
    for i in range(10, times):
        once(i)
    return before, usage()


@pytest.mark.parametrize(
    "backend, use, times", [("tessera", _reduce_by_c10d, 1000), ("gloo", _gather_and_back, 300)], ids=["c10d", "gloo"]
)
def test_groups_start_and_stop_without_a_leak(tmp_path, backend, use, times):
    for before, after in run_ranks(2, _again_and_again, str(tmp_path), backend, use, times, backend=None, limit_s=600):
        assert after[:2] == before[:2], "descriptors, threads"
        assert after[2] <= before[2] + 10, "mappings"
        assert after[3] <= before[3] + 20_000, "KiB of memory"


def _group_after_group(rank, size):
    """One store for all, as torchrun's agent has it: names of groups come again."""
    before = usage()
    for i in range(100):
        group = dist.new_group(list(range(size)))
        t = torch.ones(10)
        dist.all_reduce(t, group=group)
        dist.destroy_process_group(group)
        del group
    return before, usage()


def test_new_groups_come_and_go_without_a_leak():
    for before, after in run_ranks(2, _group_after_group):
        assert after[0] <= before[0] + 2 and after[1] <= before[1] + 1, (before, after)


def _groups_of_others(rank, size, folder, backend):
    """The names of groups come again, with other members."""
    for i, members in enumerate([(0, 1), (1, 2), (0, 2), (0, 1)]):
        start_group(rank, size, os.path.join(folder, f"store{i}"), backend)
        group = dist.new_group(list(members))
        if rank in members:
            gathered, _ = tessera.all_gather(torch.full((1,), float(rank)), group=group)
            assert gathered.tolist() == list(members)
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["tessera", "gloo"])
def test_groups_of_one_name_and_other_members_meet(tmp_path, backend):
    run_ranks(3, _groups_of_others, str(tmp_path), backend, backend=None)


TORCHRUN_PROGRAM = """
import os
import torch
import torch.distributed as dist

import tessera
from torch.distributed.tensor import _collective_utils, placement_types

assert placement_types.shard_dim_alltoall is _collective_utils.shard_dim_alltoall
assert hasattr(placement_types.shard_dim_alltoall, "__wrapped__")  # though DTensor was imported later
for i in range(3):  # the agent's store keeps what was said the first time
    dist.init_process_group("tessera")
    t = torch.ones(4) * (dist.get_rank() + i)
    dist.all_reduce(t)
    assert t.tolist() == [1.0 + 2 * i] * 4, t
    dist.destroy_process_group()
os.environ["TESSERA_HOSTS"] = "2"
dist.init_process_group("tessera")
x = torch.ones(30_000)
dist.all_reduce(x)
assert tessera.all_reduce(x, group=dist.new_group(backend="gloo"))[0] == 4
print("fine", flush=True)  # and nobody destroys the groups
"""


def test_torchrun_and_again_with_the_same_store(tmp_path):
    """At last as on two hosts, and without destroying the groups: what a start of torchrun takes is paid once."""
    program = tmp_path / "program.py"
    program.write_text(TORCHRUN_PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stderr


def shared_memory():
    """(descriptors, mappings) of this process that are of tessera's memory, which has no name in any file system."""
    gc.collect()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    with open("/proc/self/maps") as maps:
        return sum("memfd:tessera" in path for path in opened), sum("memfd:tessera" in line for line in maps)


def _killed_with_memory(rank, size, folder):
    before = shared_memory()
    start_group(rank, size, os.path.join(folder, "store"))
    dist.all_reduce(torch.ones(1_000_000))
    within = shared_memory()
    _killed(rank, size, False)
    dist.destroy_process_group()
    return before, within, shared_memory()


def test_nothing_stays_behind_of_a_killed_rank(tmp_path):
    before = set(os.listdir("/dev/shm"))
    reports = run_ranks(3, _killed_with_memory, str(tmp_path), backend=None, may_die=[1])
    for at_first, within, at_last in (reports[0], reports[2]):
        assert at_first == at_last == (0, 0) and within[1] > 0, (at_first, within, at_last)
    # Python's own semaphores come and go.
    left = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")} - before
    assert not left


FORKING_PROGRAM = """
import os, sys
import torch
import torch.distributed as dist

import tessera

rank = int(sys.argv[1])
dist.init_process_group("tessera", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
dist.all_reduce(torch.ones(3), async_op=True).wait()
sent, x = dist.isend(torch.ones(2), 1 - rank), torch.zeros(2)
if os.fork() == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except tessera.Error as error:
        assert "before a fork" in str(error)
        if rank == 0:
            dist.destroy_process_group()
        del sent
        sys.exit(7)  # which ends the group's objects, without the parent's threads
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
dist.recv(x, 1 - rank)
sent.wait()
dist.barrier()
assert x.tolist() == [1, 1]
dist.destroy_process_group()
"""


def test_a_forked_child_ends_and_the_parent_goes_on(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FORKING_PROGRAM]
    ranks = [subprocess.Popen([*command, str(r), str(tmp_path / "store")], stderr=subprocess.PIPE) for r in range(2)]
    for process in ranks:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
