"""From what a user gives as a group to the name by which the operators know its communicator."""

import collections
import datetime
import time
import weakref

import torch
import torch.distributed as dist

from . import _torch
from ._comm import Comm, join, process_comm, thread_comm

_comms = weakref.WeakKeyDictionary()
# How often this process has joined a group of each name: one that is destroyed and made again may meet in the same store.
_joined = collections.Counter()


def comm_of(group):
    """The communicator of a ProcessGroup's ranks, whatever its own backend is: they share memory, and find each other
    through the group's store. Collective the first time."""
    comm = _comms.get(group)
    if comm is None:
        comm = _comms[group] = _join(group)
    return comm


def _join(group):
    _, store = dist.distributed_c10d._world.pg_map[group]
    _joined[group.group_name] += 1
    prefix = f"tessera/{group.group_name}/{_joined[group.group_name]}/"

    def get(key, seconds):
        # Asking now and then: a wait() of the store's that fails prints a trace of the stack.
        end, pause = time.monotonic() + seconds, 0.0001
        while not store.check([prefix + key]):
            if time.monotonic() >= end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
        return store.get(prefix + key)

    return join(
        lambda key, value: store.set(prefix + key, value),
        get,
        group.rank(),
        group.size(),
        name="world" if group is dist.group.WORLD else f"group {group.group_name}",
        timeout=_timeout_of(group).total_seconds(),
    )


def _timeout_of(group):
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if hasattr(options, "_timeout"):
            return options._timeout
    return datetime.timedelta(seconds=300)


@torch.compiler.assume_constant_result
def _process_name():
    """It is made once, and stays: compiled code may have its name in it."""
    return process_comm().torch_name


@torch.compiler.assume_constant_result
def _group_name(group):
    return comm_of(group).torch_name


def name_of(group=None):
    """The name of a Comm's or ProcessGroup's communicator; None: of all ranks, which may be this one alone."""
    if group is None:
        group = thread_comm()
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        return _process_name()
    if isinstance(group, Comm):
        return group.torch_name
    return _group_name(group)


def rank_and_size(group=None):
    return _torch.rank_and_size(name_of(group))
