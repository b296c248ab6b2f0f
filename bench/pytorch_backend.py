"""torch.distributed over tessera beside Gloo, in the same processes, in interleaved rounds.

    python bench/pytorch_backend.py [--ranks 2] [--rounds 15] [--only TEXT]

Each case runs on both backends in every round, in turns; a round's time is the slowest rank's. Printed: the median
over the rounds of each, the best round, and two ratios: the median of the rounds', and that of the best. DTensor is
PyTorch's own code on both sides, but for two functions that tessera replaces: see docs/pytorch-backend.md.
"""

import argparse
import logging
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from turns import in_turns, print_head, print_row

import tessera.backend  # noqa: F401  registers the backend

SMALL, LARGE = 1024, 32 << 20  # bytes of the whole tensor


def dtensor_case(source, target, total):
    def make(group, size, rank):
        mesh = DeviceMesh.from_group(group, "cpu")
        side = 16 if total == SMALL else 2048
        whole = torch.rand(side, total // 4 // side)
        if isinstance(source, Partial):
            local = whole
        else:
            local = whole.chunk(size, source.dim)[rank].contiguous()
        there = DTensor.from_local(local, mesh, [source], run_check=False)

        def call():
            moved = there.redistribute(mesh, [target]).to_local()
            return moved.wait() if hasattr(moved, "wait") else moved

        return call

    return make


def all_reduce_case(total):
    def make(group, size, rank):
        x = torch.ones(total // 4)
        return lambda: dist.all_reduce(x, group=group)

    return make


def all_gather_case(total):
    def make(group, size, rank):
        x, out = torch.ones(total // 4 // size), torch.empty(total // 4 // size * size)
        return lambda: dist.all_gather_single(out, x, group=group)

    return make


def all_to_all_case(total):
    def make(group, size, rank):
        x = torch.ones(total // 4 // size * size)
        out = torch.empty_like(x)
        return lambda: dist.all_to_all_single(out, x, group=group)

    return make


def cases():
    for total in (SMALL, LARGE):
        label = "1 KiB" if total == SMALL else "32 MiB"
        yield f"DTensor S0 → S1, {label}", dtensor_case(Shard(0), Shard(1), total), total
        yield f"DTensor S0 → R, {label}", dtensor_case(Shard(0), Replicate(), total), total
        yield f"DTensor P → S0, {label}", dtensor_case(Partial(), Shard(0), total), total
        yield f"DTensor P → R, {label}", dtensor_case(Partial(), Replicate(), total), total
        yield f"all_reduce, {label}", all_reduce_case(total), total
        yield f"all_gather_single, {label}", all_gather_case(total), total
        yield f"all_to_all_single, {label}", all_to_all_case(total), total


def be_rank(rank, size, store_file, rounds, only):
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # of the fallback over Gloo
    dist.init_process_group("tessera", store=dist.FileStore(store_file, size), rank=rank, world_size=size)
    groups = {"tessera": dist.new_group(backend="tessera"), "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print_head(size, rounds, "tessera", "gloo")
    for name, make, total in cases():
        if only not in name:
            continue
        calls = {backend: make(group, size, rank) for backend, group in groups.items()}
        times = in_turns(calls, rounds, dict.fromkeys(calls, 100 if total == SMALL else 1))
        if rank == 0:
            print_row(name, times["tessera"], times["gloo"])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="the cases with this in their name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(be_rank, (options.ranks, folder + "/store", options.rounds, options.only), options.ranks)
