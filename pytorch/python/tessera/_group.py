"""From what a user gives as a group to the name by which the operators know its communicator."""

import torch
import torch.distributed as dist

from . import _torch
from ._comm import Comm, process_comm, thread_comm


def comm_of(group):
    """The name of a ProcessGroup's communicator. A group on the tessera backend has one."""
    backend = group._get_backend(torch.device("cpu"))
    name = getattr(backend, "tessera_comm_name", None)
    if name is None:
        raise ValueError(
            f"a process group on {group.name()!r}: tessera works on its own backend, "
            'dist.init_process_group("tessera"), or on a tessera.Comm'
        )
    return name


@torch.compiler.assume_constant_result
def _process_name():
    """It is made once, and stays: compiled code may have its name in it."""
    return process_comm().torch_name


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
    return comm_of(group)


def rank_and_size(group=None):
    return _torch.rank_and_size(name_of(group))
