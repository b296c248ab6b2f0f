"""One rank of the player `gloo`: what code on PyTorch does that has no ragged collectives.

    python gloo_player.py NAME SOCKET RANK RANKS STORE

A ragged gather is the one that is copied from repository to repository: exchange the sizes, pad to the longest, gather,
concatenate, and select what is no padding. The protocol and the values are those of case.hpp and play.hpp.
"""

import os
import re
import socket
import sys
import time

MISSING = 3  # the exit code that says: not there, which is no failure

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
except ImportError:
    print(f"no torch: {sys.executable} cannot import it", file=sys.stderr)
    sys.exit(MISSING)
if not dist.is_available() or not dist.is_gloo_available():
    print("no torch: this one was built without Gloo", file=sys.stderr)
    sys.exit(MISSING)


def gather_ragged(x, dim, ranks):
    size = torch.tensor(x.shape[dim])
    sizes = [torch.empty_like(size) for _ in range(ranks)]
    dist.all_gather(sizes, size)
    sizes = torch.stack(sizes)
    longest = int(sizes.max())
    before_last = (0, 0) * (x.ndim - 1 - dim)
    padded = F.pad(x, (*before_last, 0, longest - x.shape[dim]))
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded)
    kept = (torch.arange(longest)[None, :] < sizes[:, None]).flatten()
    return torch.cat(parts, dim).index_select(dim, kept.nonzero().flatten())


def exchange_rows(x, rows):
    sends = torch.tensor(rows)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    out = torch.empty((int(receives.sum()), x.shape[1]))
    dist.all_to_all_single(out, x, receives.tolist(), rows)
    return out


class Redistribution:
    """Rows to columns, as DTensor does it."""

    def __init__(self, ranks, shape):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        self.mesh, self.shape, self.tensor, self.shard = init_device_mesh("cpu", (ranks,)), shape, DTensor, Shard

    def __call__(self, x):
        rows = self.tensor.from_local(
            x, self.mesh, [self.shard(0)], run_check=False, shape=self.shape, stride=(self.shape[1], 1)
        )
        out = rows.redistribute(self.mesh, [self.shard(1)]).to_local()
        return out.wait() if hasattr(out, "wait") else out


class Case:
    def __init__(self, words, rank):
        self.op, self.rank = words["op"], rank
        self.dim, self.across, self.sets = int(words["dim"]), int(words["across"]), int(words["sets"])
        self.rewrite, self.read = int(words["rewrite"]) != 0, int(words["read"]) != 0
        self.extents = [int(e) for e in words["extents"].split(",")]
        self.ranks, self.total = len(self.extents), sum(self.extents)
        counts = [int(c) for c in words["counts"].split(",") if c]
        self.counts = [counts[r * self.ranks : (r + 1) * self.ranks] for r in range(self.ranks)] if counts else []
        self.reduces = self.op in ("reduce_scatter", "all_reduce")
        if self.op == "redistribute":
            self.redistribute = Redistribution(self.ranks, torch.Size((self.total, self.across)))
        self.inputs = [self.input(s) for s in range(self.sets)]
        self.outputs = [None] * self.sets

    def box(self, start, extent, set_):
        """`extent` of the cut dimension of the global matrix, from `start` on."""
        across, along = torch.arange(self.across), torch.arange(start, start + extent)
        rows, columns = (along, across) if self.dim == 0 else (across, along)
        mixed = rows[:, None] * 2654435761 + columns[None, :] * 2246822507 + set_ * 668265263
        return ((mixed & 0xFFFFFFFF) >> 16).float()

    def cut(self, rank, set_):
        return self.box(sum(self.extents[:rank]), self.extents[rank], set_)

    def input(self, set_):
        if self.reduces:
            return self.box(0, self.total, set_) + (self.rank + 1)
        if self.op == "broadcast":
            return self.box(0, self.total if self.rank == 0 else 0, set_)
        return self.cut(self.rank, set_)

    def expected(self, set_):
        n = self.ranks
        if self.op == "reduce_scatter":
            return self.cut(self.rank, set_) * n + n * (n + 1) / 2
        if self.op == "all_reduce":
            return self.box(0, self.total, set_) * n + n * (n + 1) / 2
        if self.op == "all_to_all":
            pieces = [self.cut(r, set_).split(self.counts[r])[self.rank] for r in range(n)]
            return torch.cat(pieces)
        if self.op == "redistribute":
            chunk = -(-self.across // n)
            return self.box(0, self.total, set_)[:, self.rank * chunk : (self.rank + 1) * chunk]
        return self.box(0, self.total, set_)

    def call(self, number):
        set_ = number % self.sets
        x = self.inputs[set_]
        if self.rewrite:
            x.view(-1)[::16].mul_(1)  # a float of each line of the cache, as the others do
        self.outputs[set_] = None
        if self.op == "all_gather":
            out = gather_ragged(x, self.dim, self.ranks)
        elif self.op == "all_to_all":
            out = exchange_rows(x, self.counts[self.rank])
        elif self.op == "redistribute":
            out = self.redistribute(x)
        elif self.op == "broadcast":
            out = x if self.rank == 0 else torch.empty((self.total, self.across))
            dist.broadcast(out, 0)
        else:
            out = x.clone()  # torch reduces in place
            dist.all_reduce(out)
            if self.op == "reduce_scatter":
                out = out.split(self.extents)[self.rank]
        if self.read:
            out.reshape(-1)[::16].sum()
        self.outputs[set_] = out

    def poison(self):
        for out in self.outputs:
            if out is not None and not (self.op == "broadcast" and self.rank == 0):
                out.fill_(float("nan"))

    def wrong(self, numbers):
        return sum(int((self.outputs[s] != self.expected(s)).sum()) for s in {n % self.sets for n in numbers})


def turn(case, first, samples, inner, check):
    """The times of the samples in ns a call, and how many elements are wrong."""
    if check:
        case.poison()
    number, times = first, []
    for _ in range(samples + 1):
        dist.barrier()
        start = time.perf_counter_ns()
        for _ in range(inner):
            case.call(number)
            number += 1
        times.append((time.perf_counter_ns() - start) / inner)
    wrong = case.wrong(range(max(first, number - case.sets), number)) if check else 0
    return number, times[1:], wrong


def cores_first():
    """The CPUs that this process may use: one of each core first, as play.hpp has them."""
    first, second, cores = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as siblings:
                core = int(re.match(r"\d+", siblings.read()).group())
        except (OSError, AttributeError):
            core = cpu
        (second if core in cores else first).append(cpu)
        cores.add(core)
    return first + second


def take_core(rank, ranks):
    """Rank r on the r-th core, as every player does; Gloo's own threads, which are there by now, stay free."""
    cpus = cores_first()
    if len(cpus) >= ranks:
        os.sched_setaffinity(0, {cpus[rank]})


def play(lines, send, rank):
    case, number = None, 0
    for line in lines:
        verb, *rest = line.split()
        words = dict(word.split("=", 1) for word in rest)
        if verb == "quit":
            return
        if verb == "case":
            case = None  # the old buffers go before new ones come
            case, number = Case(words, rank), 0
            send("ready")
        if verb == "turn":
            samples, inner, check = (int(words[key]) for key in ("samples", "inner", "check"))
            number, times, wrong = turn(case, number, samples, inner, check)
            send(f"done wrong={wrong} ns=" + ",".join(f"{t:.1f}" for t in times))


def main():
    name, path, rank, ranks, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    take_core(rank, ranks)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rw")

        def send(line):
            stream.write(line + "\n")
            stream.flush()

        send(f"hello {name} {rank} {ranks}")
        try:
            with torch.no_grad():
                play(iter(stream.readline, ""), send, rank)
        except Exception as error:
            send("failed " + " ".join(str(error).split()))
            raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
