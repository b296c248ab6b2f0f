"""The collectives on one process: functions from the inputs of all ranks to the outputs of all ranks."""

import torch


def all_gather(xs, dim=0):
    return [torch.cat(xs, dim)] * len(xs)


def chunk(x, ranks, dim):
    """As torch.chunk, with the empty ones."""
    piece = -(-x.shape[dim] // ranks)
    sizes = [max(0, min(piece, x.shape[dim] - r * piece)) for r in range(ranks)]
    return list(x.split(sizes, dim))


def reduce_scatter(xs, dim=0, sizes=None, op="sum"):
    total = all_reduce(xs, op)[0]
    return list(total.split(sizes, dim)) if sizes else chunk(total, len(xs), dim)


def all_reduce(xs, op="sum"):
    stacked = torch.stack(xs)
    return [stacked.mean(0) if op == "avg" else stacked.sum(0)] * len(xs)


def all_to_all(xs, split_dim, concat_dim):
    return chunk(torch.cat(xs, concat_dim), len(xs), split_dim)


def all_to_all_v(xs, send, dim=0):
    pieces = [x.split(sizes, dim) for x, sizes in zip(xs, send)]
    return [torch.cat([piece[r] for piece in pieces], dim) for r in range(len(xs))]


def broadcast(xs, root):
    return [xs[root]] * len(xs)


def scatter(xs, root, dim, sizes):
    return list(xs[root].split(sizes, dim))


def gather(xs, root, dim):
    empty = xs[0].narrow(dim, 0, 0)
    return [torch.cat(xs, dim) if r == root else empty for r in range(len(xs))]


def reduce(xs, root, op="sum"):
    total = all_reduce(xs, op)[0]
    return [total if r == root else total[None][:0] for r in range(len(xs))]
