"""What the benchmarks of the PyTorch package have in common: calls of all ranks, timed in turns."""

import statistics
import time

import torch
import torch.distributed as dist


def timed(call, repeats):
    """Seconds that one takes, on the slowest rank."""
    dist.barrier()
    call()  # brings the ranks closer together than a barrier over sockets does
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    slowest = torch.tensor([(time.perf_counter() - start) / repeats])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def in_turns(calls, rounds, repeats):
    """By name, the µs that each call took in each round. Every round begins with another of them."""
    names = list(calls)
    times = {name: [] for name in names}
    for i in range(rounds + 1):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            took = timed(calls[name], repeats[name])
            if i > 0:  # the first round warms up
                times[name].append(took * 1e6)
    return times


def print_head(size, rounds, ours, theirs):
    print(f"{size} ranks, {rounds} rounds; µs: median (best)")
    print(f"{'':34}{ours:>20}{theirs:>22}{'ratio (of the best)':>22}", flush=True)


def print_row(label, ours, theirs):
    """The median and the best round of two lists of times, the median of the rounds' ratios, and that of the best."""
    ratio = statistics.median(t / o for o, t in zip(ours, theirs, strict=True))
    cells = [f"{statistics.median(times):.0f} ({min(times):.0f})" for times in (ours, theirs)]
    print(f"{label:34}{cells[0]:>20}{cells[1]:>22}{f'{ratio:.1f} ({min(theirs) / min(ours):.1f})':>22}", flush=True)
