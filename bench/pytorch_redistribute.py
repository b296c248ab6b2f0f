"""tessera.redistribute() beside DTensor.redistribute() on the same DTensors, in interleaved rounds.

    python bench/pytorch_redistribute.py [--ranks 2] [--rounds 15]

The process group is Gloo's: DTensor moves over it, tessera's ranks meet through it and share memory. Each case runs
both ways in every round, in turns; a round's time is the slowest rank's. Printed: the median over the rounds of each,
the best round, and two ratios: the median of the rounds', and that of the best. "backward" is forward and backward together.
"""

import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from turns import in_turns, print_head, print_row

import tessera

SMALL, LARGE = 1024, 32 << 20  # bytes of the whole tensor
MOVES = [(Shard(0), Shard(1)), (Shard(0), Replicate()), (Partial(), Shard(0)), (Partial(), Replicate())]
SHORT = {Shard(0): "S0", Shard(1): "S1", Replicate(): "R", Partial(): "P"}


def theirs(x, placements):
    return x.redistribute(placements=placements)


def cases():
    for total, label in ((SMALL, "1 KiB"), (LARGE, "32 MiB")):
        for uneven in (False, True):
            for source, target in MOVES:
                name = f"{SHORT[source]} → {SHORT[target]}, {label}{', uneven' if uneven else ''}"
                yield name, total, uneven, source, target, False
        yield f"S0 → S1, backward, {label}", total, False, Shard(0), Shard(1), True


def make(mesh, total, uneven, source, target, backward):
    rows = (16 if total == SMALL else 2048) + uneven
    whole = torch.rand(rows, total // 4 // rows)
    local = whole
    if source.is_shard():
        chunks = whole.chunk(mesh.size(), source.dim)
        local = chunks[mesh.get_rank()].contiguous()
    x = DTensor.from_local(local, mesh, [source], run_check=False, shape=whole.shape, stride=whole.stride())
    x = x.detach().requires_grad_(backward)

    def run(move):
        moved = move(x, [target])
        if backward:
            torch.autograd.grad(moved, x, moved.detach())
        else:
            done = moved.to_local()
            if hasattr(done, "wait"):
                done.wait()

    return run


def be_rank(rank, size, store_file, rounds):
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # of the fallback over Gloo
    dist.init_process_group("gloo", store=dist.FileStore(store_file, size), rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    if rank == 0:
        print_head(size, rounds, "tessera", "DTensor, Gloo")
    for name, total, *case in cases():
        run = make(mesh, total, *case)
        calls = {"tessera": lambda run=run: run(tessera.redistribute), "DTensor": lambda run=run: run(theirs)}
        times = in_turns(calls, rounds, dict.fromkeys(calls, 20 if total == SMALL else 1))
        if rank == 0:
            print_row(name, times["tessera"], times["DTensor"])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(be_rank, (options.ranks, folder + "/store", options.rounds), options.ranks)
