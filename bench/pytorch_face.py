"""tessera.all_gather beside the files that are copied from project to project, on Gloo, in the same processes.

    python bench/pytorch_face.py [--ranks 2 4] [--sizes "1 KiB" skew] [--rounds 15] [--seconds 0.1] [--device cuda]

Those files are musiclm-pytorch's (`pip install --no-deps musiclm-pytorch einops`). Both sides gather pieces of
different sizes, 0.5 to 1.5 times the mean given; "skew" is 64 MiB on rank 0 and 1 KiB elsewhere. Both have the group
that the user has, a Gloo group, and tessera also one of its own backend. The backward is that of a loss to which
every rank contributes: all_reduce_grads=True there, grad="sum" here. "autograd alone" is the same forward and
backward with a multiplication in place of the gather: what PyTorch takes for itself on either side.

Every round times each of them in turn, on inputs in rotation; a round's time is the slowest rank's. Printed are the
best rounds, in µs, and by how much tessera is faster. The last lines are one rank alone, where nothing is waited for:
all that Python and PyTorch add to the call in C++ is in them, and what a multiplication takes in place of the gather.
"""

import argparse
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from turns import in_turns, timed

import tessera

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../pytorch/tests"))
import seeds_on_gloo  # noqa: E402

ROW = 64  # floats, 256 bytes
KIB, MIB = 1024, 1 << 20
SIZES = {"1 KiB": KIB, "64 KiB": 64 * KIB, "1 MiB": MIB, "32 MiB": 32 * MIB, "skew": None}
COPIES = {"1 KiB": 16, "64 KiB": 16, "1 MiB": 8}  # of the input, taken in turns; else 2


def rows_of(mean, rank, size):
    if mean is None:
        return (64 * MIB if rank == 0 else KIB) // (4 * ROW)
    factor = 1 if size == 1 else 0.5 + rank / (size - 1)
    return round(mean * factor) // (4 * ROW)


def backward(gathered, grad, x):
    gathered.backward(grad)
    x.grad = None


def players():
    """{name: function(x) -> gathered}; the first is what the others are compared with."""
    on_gloo, own = dist.group.WORLD, dist.new_group(backend="tessera")
    copied = seeds_on_gloo.load("musiclm").AllGather(0, all_reduce_grads=True)
    return {
        "copied file": lambda x: copied(x)[0],
        "tessera, Gloo group": lambda x: tessera.all_gather(x, group=on_gloo)[0],
        "tessera, its own": lambda x: tessera.all_gather(x, group=own)[0],
    }


def finished(step):
    """A GPU goes on working when a call has returned."""

    def whole():
        step()
        torch.cuda.synchronize()

    return whole


def steps(gathers, label, rank, size, with_backward, device):
    """{name: function() of one call}"""
    mean, copies = SIZES[label], COPIES.get(label, 2)
    inputs = [torch.rand(rows_of(mean, rank, size), ROW, device=device) for _ in range(copies)]
    for x in inputs:
        x.requires_grad_(with_backward)
    turn = [0]

    def next_input():
        turn[0] = (turn[0] + 1) % copies
        return inputs[turn[0]]

    if not with_backward:
        return {name: lambda gather=gather: gather(next_input()) for name, gather in gathers.items()}
    grad = torch.rand(sum(rows_of(mean, r, size) for r in range(size)), ROW, device=device)
    whole = torch.rand_like(grad, requires_grad=True)

    def step(gather):
        x = next_input()
        backward(gather(x), grad, x)

    made = {name: lambda gather=gather: step(gather) for name, gather in gathers.items()}
    made["autograd alone"] = lambda: backward(whole * 2, grad, whole)
    return made


def repeats_of(step, seconds):
    """As many as take that long; the same on all ranks. Warms up, too."""
    timed(step, 1)
    once = timed(step, 3)
    return max(1, min(2000, int(seconds / once)))


def compare(calls, rounds, seconds):
    """The best round of each, in µs."""
    repeats = {name: repeats_of(step, seconds) for name, step in calls.items()}
    return {name: min(times) for name, times in in_turns(calls, rounds, repeats).items()}


def print_row(label, best):
    theirs = best["copied file"]
    cells = [f"{theirs:>12.1f}"]
    for name, ours in best.items():
        if name.startswith("tessera"):
            cells.append(f"{ours:>12.1f} {theirs / ours:>6.1f}x")
        elif name == "autograd alone":
            cells.append(f"{ours:>15.1f}")
    print(f"{label:26}" + "  ".join(cells), flush=True)


def be_rank(rank, size, store_file, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store_file, size), rank=rank, world_size=size)
    gathers = players()
    if rank == 0:
        print(f"{size} processes, tensors on {options.device}, best of {options.rounds} rounds, µs")
        print(f"{'':26}{'copied file':>12}  {'Gloo group':>20}  {'own group':>20}  {'autograd alone':>15}", flush=True)
    for with_backward in (False, True):
        for label in options.sizes:
            calls = steps(gathers, label, rank, size, with_backward, options.device)
            if options.device != "cpu":
                calls = {name: finished(step) for name, step in calls.items()}
            best = compare(calls, options.rounds, options.seconds)
            if rank == 0:
                print_row(("forward + backward, " if with_backward else "forward, ") + label, best)
    dist.destroy_process_group()


def alone(rounds):
    torch.set_num_threads(1)
    plain, x = (torch.rand(KIB // (4 * ROW), ROW, requires_grad=needs) for needs in (False, True))
    grad = torch.ones_like(plain)
    calls = {
        "forward": lambda: tessera.all_gather(plain),
        "forward of a tensor that needs a gradient": lambda: tessera.all_gather(x),
        "forward + backward": lambda: backward(tessera.all_gather(x)[0], grad, x),
        "forward + backward, a multiplication in place of the gather": lambda: backward(x * 2, grad, x),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for what, call in calls.items():
            start = time.perf_counter()
            for _ in range(2000):
                call()
            best[what] = min(best[what], (time.perf_counter() - start) / 2000)
    for what, seconds in best.items():
        print(f"one rank, 1 KiB, {what}: {seconds * 1e6:.1f} µs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=list(SIZES), metavar="SIZE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="that one of them takes in a round, about")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the tensors are")
    chosen = parser.parse_args()
    for count in chosen.ranks:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(be_rank, (count, folder + "/store", chosen), count)
    alone(chosen.rounds)
