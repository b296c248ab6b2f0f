"""What the four drop-ins share."""

import functools
import sys
import threading
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .. import _group, _site
from .._arguments import told_to_all
from .._by_schema import tensor
from .._comm import thread_comm
from .._functions import _ops, _rows, _sizes
from .._group import name_of


def world():
    """(rank, size) of the ranks that run() started, or of the default process group; without either, its error."""
    if thread_comm() is None:
        dist.get_rank()  # says that there is no group, as the copied files do
    return _group.rank_and_size()


def is_distributed():
    comm = thread_comm()
    if comm is not None:
        return comm.size > 1
    return dist.is_initialized() and dist.get_world_size() > 1


def pad_dim_to(t, length, dim=0):
    """t with zeros behind it, until it is `length` long along dim."""
    behind = t.ndim - 1 - dim % t.ndim
    return F.pad(t, [0, 0] * behind + [0, length - t.shape[dim]])


def _told(op):
    return told_to_all(op, lambda *_, **__: _group.comm())


@_told("all_gather")
def all_gather_same_dim(t):
    """Every rank's t, all of one shape, as a list."""
    world()
    stacked, _ = _ops().all_gather(tensor("t", t).detach().unsqueeze(0), 0, None, None, "slice", 1.0, name_of())
    return [part.clone() for part in stacked]  # each by itself: they may be written to


@_told("gather_sizes")
def gather_sizes(t, *, dim):
    world()
    return _ops().gather_sizes(_rows(tensor("t", t)), dim, name_of()).to(t.device)


@_told("all_gather")
def gather(t, dim, sizes, grad):
    """all_gather() that gives back the very sizes it was given."""
    world()
    rows = _rows(tensor("t", t))
    given = _sizes(sizes, rows) if isinstance(sizes, torch.Tensor) else sizes
    gathered, found = _ops().all_gather(rows, dim, given, None, grad, 1.0, name_of())
    return gathered, found.to(t.device) if sizes is None else sizes


@_told("all_gather")
def all_gather_variable_dim(t, dim=0, sizes=None):
    return gather(tensor("t", t).detach(), dim, sizes, "slice")


_warned = threading.Lock()  # who gets it warns, and keeps it


def _warn():
    if not _warned.acquire(blocking=False):
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_site.library_paths):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        "the gradient of this gather leaves out what other ranks' losses contribute, as the file it stands in for "
        'does. tessera.all_gather(x, dim, grad="sum") has the whole gradient; see docs/pytorch.md',
        stacklevel=level,
    )


def gather_with_slice_gradient(x, dim, sizes):
    """The gradient is this rank's own slice of its own loss's gradient, as the copied files have it."""
    gathered, sizes = gather(x, dim, sizes, "slice")
    if not torch.compiler.is_dynamo_compiling() and gathered.requires_grad and world()[1] > 1:
        _warn()
    return gathered, sizes


@functools.cache
def _answer(group):
    return group is not None


def get_is_distributed():
    """Cached for each group: an answer from before there was one does not stay."""
    if not is_distributed():
        return _answer(None)
    comm = thread_comm()
    return _answer(dist.group.WORLD.group_name if comm is None else comm.name)


get_is_distributed.cache_clear = _answer.cache_clear  # type: ignore[attr-defined]
get_is_distributed.cache_info = _answer.cache_info  # type: ignore[attr-defined]
