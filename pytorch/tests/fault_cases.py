"""Faults of the files that are copied from project to project, each as a case that both those files and tessera run.

    fault_cases.py OUT [CASE…]

runs them on Gloo groups, each rank in a process of its own (forked: torch is imported once), and saves what came of
them: {(who, case): [an outcome for each rank]}. An outcome is what the case returned, an exception's text, or how the
process ended. Nothing here fails; test_faults.py says what is right.
"""

import datetime
import os
import signal
import sys
import tempfile
import time

import seeds_on_gloo
import tessera
import torch
import torch.distributed as dist
from tessera.compat import dtensor, mirasol, musiclm, spear_tts, st_moe
from torch.distributed.device_mesh import init_device_mesh

SECONDS = 3  # that a rank waits for the others
PACKAGES = {"mirasol": mirasol, "musiclm": musiclm, "spear_tts": spear_tts, "st_moe": st_moe}


class Copied:
    """Each file by its path, with the names supplied that it lacks."""

    module = staticmethod(seeds_on_gloo.load)

    @staticmethod
    def as_shipped(package):
        return seeds_on_gloo.load(package, supply=False)

    @staticmethod
    def gather(x, sizes=None):
        return seeds_on_gloo.load("st_moe").AllGather()(x, sizes)

    @staticmethod
    def gather_with_sum(x):
        return seeds_on_gloo.load("musiclm").AllGather(0, all_reduce_grads=True)(x)[0]

    @staticmethod
    def shard_dim_alltoall(*arguments):
        from torch.distributed.tensor import _collective_utils

        return _collective_utils.shard_dim_alltoall(*arguments)


class Tessera:
    module = as_shipped = staticmethod(PACKAGES.get)
    gather = staticmethod(lambda x, sizes=None: tessera.all_gather(x, 0, sizes))
    gather_with_sum = staticmethod(lambda x: tessera.all_gather(x)[0])
    shard_dim_alltoall = staticmethod(dtensor.shard_dim_alltoall)


def as_shipped(who, rank):
    outcomes = {}
    for package in PACKAGES:
        try:
            gathered, _ = who.as_shipped(package).all_gather_variable_dim(torch.ones(rank + 1, 2))
            outcomes[package] = gathered.shape[0]
        except NameError as error:
            outcomes[package] = f"NameError: {error}"
    return outcomes


def lost_gradient(who, rank):
    """Two ranks' losses, each of all gathered rows; the weights' gradients added up. With it, that of one process."""
    inputs = [torch.arange(8.0).reshape(2, 4) / 8, torch.ones(3, 4)]
    weight = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()

    def loss(gathered, of_rank):
        return ((of_rank + 1) * gathered.square()).sum() if of_rank == 0 else gathered.exp().sum()

    loss(who.gather(inputs[rank] @ weight)[0], rank).backward()
    found = weight.grad.clone()
    dist.all_reduce(found)
    weight.grad = None
    whole = torch.cat(inputs) @ weight
    (loss(whole, 0) + loss(whole, 1)).backward()
    return ((found - weight.grad).norm() / weight.grad.norm()).item()


def expanded_gradient(who, rank):
    """The gradient of a sum is one number with strides of zero."""
    x = torch.ones(2000 * (rank + 1), 16, requires_grad=True)
    who.gather_with_sum(x).sum().backward()
    found = x.grad.unique().tolist()
    kept = [torch.full((size,), 1.0) for size in range(1000)]  # what lies in the heap around it
    del kept
    return found


def sibling(who, rank):
    b = torch.ones(3, 2, requires_grad=True)
    tripled = b * 3
    x = torch.ones(rank + 1, 2, requires_grad=True)
    (who.gather_with_sum(x) + tripled).backward(torch.ones(3, 2))
    return b.grad.unique().tolist()


def layouts(who, rank):
    """The same gradient on both ranks, but laid out by rows on one and by columns on the other."""
    x = torch.ones(rank + 1, 2, requires_grad=True)
    grad = torch.arange(6.0).reshape(3, 2)
    gathered = who.gather_with_sum(x)
    gathered.backward(grad if rank == 0 else grad.t().contiguous().t())
    return x.grad.tolist()


def double_backward(who, rank):
    x = torch.arange(1.0, rank + 2).requires_grad_()
    (grad,) = torch.autograd.grad(who.gather_with_sum(x).pow(3).sum(), x, create_graph=True)
    grad.sum().backward()
    return x.grad.tolist()


def one_needs_none(who, rank):
    x = torch.ones(2, requires_grad=rank == 0)
    gathered = who.gather_with_sum(x)
    if gathered.requires_grad:
        gathered.backward(torch.ones(4))
    return x.grad.tolist() if rank == 0 else None


def made_before(who):
    made = who.module("musiclm").AllGather(0)
    caching = who.module("mirasol")
    caching.get_is_distributed()

    def case(who, rank):
        rows = made(torch.ones(rank + 1, 2))[0].shape[0]
        return rows, caching.get_is_distributed()

    return case


def wrong_sizes(who, rank):
    x = torch.full((rank + 1, 1), rank + 1.0)  # 1 and 2 rows
    outcomes = []
    for sizes in ([2, 1], [3, 2]):
        try:
            outcomes.append(who.gather(x, torch.tensor(sizes))[0].flatten().tolist())
        except ValueError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


def other_dtype(who, rank):
    """As many bytes on both ranks."""
    x = torch.ones(2, 4) if rank == 0 else torch.ones(2, 2, dtype=torch.float64)
    return who.gather(x)[0].tolist()


def other_shape(who, rank):
    """As many rows, and bytes, of one dtype on both ranks."""
    x = torch.arange(16.0).reshape((2, 2, 4) if rank == 0 else (2, 4, 2))
    return list(who.gather(x)[0].shape)


def scalar(who, rank):
    return who.gather(torch.tensor(float(rank)))[0].tolist()


def all_to_all(who, rank):
    """From rows to columns, both ragged: 4 ranks, 5 columns."""
    mesh = init_device_mesh("cpu", (4,))
    rows = [2, 1, 0, 2]
    whole = torch.arange(25.0).reshape(5, 5)
    mine = whole.split(rows)[rank].contiguous()
    meta = who.shard_dim_alltoall(torch.empty(2, 5, device="meta"), 0, 1, mesh, 0)
    return type(meta).__name__, who.shard_dim_alltoall(mine, 0, 1, mesh, 0).tolist()


# name: (the case, ranks); those that have something to do before there is a group are marked
CASES = {
    "as_shipped": (as_shipped, 2),
    "lost_gradient": (lost_gradient, 2),
    "expanded_gradient": (expanded_gradient, 2),
    "sibling": (sibling, 2),
    "layouts": (layouts, 2),
    "double_backward": (double_backward, 2),
    "one_needs_none": (one_needs_none, 2),
    "made_before": (made_before, 2),
    "wrong_sizes": (wrong_sizes, 2),
    "other_dtype": (other_dtype, 2),
    "other_shape": (other_shape, 2),
    "scalar": (scalar, 2),
    "all_to_all": (all_to_all, 4),
}
BEFORE = {made_before}


def be_rank(who, case, rank, ranks, folder):
    """In a forked child: never returns."""
    torch.set_num_threads(1)
    sys.stderr.flush()
    os.dup2(os.open(os.path.join(folder, f"log{rank}"), os.O_WRONLY | os.O_CREAT), 2)
    if case in BEFORE:
        case = case(who)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    dist.barrier()  # a case that needs nobody may be over before the other rank is connected
    try:
        outcome = case(who, rank)
    except Exception as error:  # noqa: BLE001 - which one it is, is the outcome
        outcome = f"{type(error).__name__}: {error}"
    torch.save(outcome, os.path.join(folder, f"outcome{rank}"))
    os._exit(0)


def run(who, case, ranks, seconds=20):
    """What came of it on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                be_rank(who, case, rank, ranks, folder)
            children.append(child)
        ends = [wait(child, time.monotonic() + seconds) for child in children]
        saved = [os.path.join(folder, f"outcome{rank}") for rank in range(ranks)]
        return [torch.load(path) if os.path.exists(path) else end for path, end in zip(saved, ends)]


def wait(child, end):
    """How it ended; it is ended when its time is over."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "did not end"
        time.sleep(0.01)


if __name__ == "__main__":
    chosen = sys.argv[2:] or CASES
    torch.save(
        {(who.__name__, name): run(who, *CASES[name]) for name in chosen for who in (Copied, Tessera)}, sys.argv[1]
    )
