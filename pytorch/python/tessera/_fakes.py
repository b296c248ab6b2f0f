"""What the operators' results look like, for torch.compile. A size that only a call finds out is a new one."""

import functools

import torch
from torch.library import get_ctx, register_fake

from ._core import Layout
from ._torch import rank_and_size


def _found(known):
    return get_ctx().new_dynamic_size() if known is None else known


def _resized(x, extents):
    shape = list(x.shape)
    for dim, extent in extents.items():
        shape[dim] = extent
    return x.new_empty(shape)


def _sizes(x, comm):
    return x.new_empty(rank_and_size(comm)[1], dtype=torch.int64)


def _piece(extent, pieces, which):
    """How much of a dimension torch.chunk gives one of the pieces."""
    piece = (extent + pieces - 1) // pieces
    return torch.sym_max(0, torch.sym_min(piece, extent - which * piece))


def _chunk(extent, comm):
    """The same for this rank."""
    rank, size = rank_and_size(comm)
    return _piece(extent, size, rank)


def _cut(x, dim, sizes, own, comm):
    if own is None and sizes is None:
        return _chunk(x.shape[dim], comm)
    return _found(own)


@register_fake("tessera::all_gather")
def _(x, dim, sizes, total, grad, scale, comm):
    return _resized(x, {dim: _found(total)}), _sizes(x, comm)


@register_fake("tessera::gather_sizes")
def _(x, dim, comm):
    return _sizes(x, comm)


@register_fake("tessera::reduce_scatter")
def _(x, dim, sizes, own, op, factor, comm):
    return _resized(x, {dim: _cut(x, dim, sizes, own, comm)})


@register_fake("tessera::all_reduce")
def _(x, op, factor, comm):
    return x.new_empty(x.shape)


@register_fake("tessera::all_to_all")
def _(x, split_dim, concat_dim, sizes, own, total, comm):
    return _resized(x, {split_dim: _cut(x, split_dim, sizes, own, comm), concat_dim: _found(total)}), _sizes(x, comm)


@register_fake("tessera::all_to_all_v")
def _(x, send_sizes, recv_sizes, dim, total, comm):
    return _resized(x, {dim: _found(total)}), _sizes(x, comm)


@register_fake("tessera::broadcast")
def _(x, given, root, shape, scale, comm):
    if shape is None and not given:
        raise ValueError("broadcast: to be compiled, give a tensor of the result's shape and dtype on every rank")
    return x.new_empty(x.shape if shape is None else shape)


@register_fake("tessera::scatter")
def _(x, root, dim, sizes, shape, comm):
    if shape is not None:
        return x.new_empty(shape), _sizes(x, comm)
    if rank_and_size(comm)[0] != root:
        raise ValueError("scatter: to be compiled, only the root may call it without the shape of its part")
    return _resized(x, {dim: _cut(x, dim, sizes, None, comm)}), _sizes(x, comm)


@register_fake("tessera::gather")
def _(x, root, dim, sizes, total, comm):
    extent = _found(total) if rank_and_size(comm)[0] == root else 0
    return _resized(x, {dim: extent}), _sizes(x, comm)


@register_fake("tessera::reduce")
def _(x, root, op, factor, comm):
    return x.new_empty(x.shape if rank_and_size(comm)[0] == root else [0, *x.shape])


@register_fake("tessera::split")
def _(x, dim, sizes, own, comm):
    return _resized(x, {dim: _found(own)})


@register_fake("tessera::embed")
def _(x, dim, sizes, total, comm):
    return _resized(x, {dim: _found(total)})


@functools.lru_cache(maxsize=4096)
def _cuts(target, rank):
    """A rank's cuts in a layout: (dim, [(pieces, which), …], size where it is ragged). None: it has no part."""
    placements, _, mesh = target.partition(" on ")
    layout = Layout(mesh, placements)
    at = layout.mesh.coordinate(rank)
    if at is None or not all(p in ("", f"At({i})") for p, i in zip(_ats(layout), at)):
        return None
    cuts = []
    for dim, axes, sizes in layout.cuts:
        steps = [(layout.mesh.axes[axis][1], at[axis]) for axis in axes]
        which = functools.reduce(lambda index, step: index * step[0] + step[1], steps, 0)
        cuts.append((dim, steps, sizes[which] if sizes else None))
    return cuts


def _ats(layout):
    return [p if p.startswith("At(") else "" for p in layout.placements]


@register_fake("tessera::redistribute")
def _(x, shape, source, target, plan, scale, convention, comm):
    cuts = _cuts(target, rank_and_size(comm)[0])
    if cuts is None:
        return x.new_empty([0])
    extents = list(shape)
    for dim, steps, size in cuts:
        for pieces, which in steps if size is None else ():
            extents[dim] = _piece(extents[dim], pieces, which)
        if size is not None:
            extents[dim] = size
    return x.new_empty(extents)
