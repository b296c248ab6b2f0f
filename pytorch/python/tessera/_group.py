"""From what a user gives as a group to its communicator, and to the name by which the operators know that."""

import datetime
import threading
import time
import weakref

import torch
import torch.distributed as dist

from . import _backend, _comm, _torch
from ._comm import Comm, join, process_comm, thread_comm
from ._errors import ArgumentError, ArgumentTypeError
from .backend import engine_between_hosts, meeting_place

_guard = threading.Lock()
_locks: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# By the id of a ProcessGroup: a weak reference to it, and its communicator, or the error with which its ranks failed to
# come together. A WeakKeyDictionary takes longer to look into than a small gather does.
_known: dict = {}


def comm_of(group):
    """The communicator of a ProcessGroup's ranks, whatever its own backend is: they find each other through the group's
    store, and share memory; between hosts a Gloo group of their own carries what they move. Collective the first time.
    Where that failed it fails again: ranks that try it another time, each for itself, would not meet."""
    reference, known = _known.get(id(group), _unknown)
    if reference() is not group:
        known = _met(member_of(group))
    if isinstance(known, Exception):
        raise type(known)(f"the ranks of this process group failed to come together; make a new group. {known}")
    return known


_unknown = object, None  # refers to nothing that anybody has


def _met(group):
    with _guard:
        lock = _locks.setdefault(group, threading.Lock())
    with lock:
        key = id(group)
        if key not in _known:
            reference = weakref.ref(group, lambda _: _known.pop(key, None))
            try:
                _known[key] = reference, _join(group)
            except BaseException as error:
                # A copy: the error itself keeps what its frames had, the group among it.
                kind = type(error) if isinstance(error, Exception) else RuntimeError
                _known[key] = reference, kind(str(error) or type(error).__name__)
                raise
        return _known[key][1]


def member_of(group):
    group = getattr(group, "real_obj", group)  # what stands for it while a function is compiled
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("this rank is no member of the process group: only members call")
    if not isinstance(group, dist.ProcessGroup):
        raise ArgumentTypeError(f"group is {group!r}, neither a tessera.Comm nor a process group")
    return group


def _join(group):
    name = "world" if group is dist.group.WORLD else f"group {group.group_name}"
    return _meet(group, dist.get_process_group_ranks(group), group.rank(), name)


def join_ranks(group, ranks):
    """A communicator of some ranks of a group, in that order. Collective among these ranks only."""
    if group.rank() not in ranks:
        raise ArgumentError(f"this is rank {group.rank()}, none of the ranks {', '.join(map(str, ranks))}: only these call")
    return _meet(group, ranks, ranks.index(group.rank()), f"ranks {','.join(map(str, ranks))}")


def _meet(group, members, rank, name):
    known = dist.distributed_c10d._world.pg_map.get(group)
    if known is None or known[1] is None:
        raise ArgumentError("the process group was destroyed, or has no store through which its ranks could meet")
    store, size = known[1], len(members)
    prefix = meeting_place(store, f"of {group.group_name}", members, rank)

    def get(key, seconds):
        # Asking now and then: a wait() of the store's that fails prints a trace of the stack.
        end, pause = time.monotonic() + seconds, 0.0001
        while not store.check([prefix + key]):
            if time.monotonic() >= end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.005)
        return store.get(prefix + key)

    timeout = _timeout_of(group)

    def make_carrier():
        engine = engine_between_hosts(dist.PrefixStore(prefix, store), rank, size, timeout)
        return _backend.carrier(engine)

    joined = join(
        lambda key, value: store.set(prefix + key, value),
        get,
        rank,
        size,
        name=name,
        timeout=timeout.total_seconds(),
        make_carrier=make_carrier,
    )
    joined._global_ranks = tuple(members)
    return joined


def global_ranks(comm):
    """Of the ranks of a communicator those of the default process group. Collective the first time, for one that is not
    of a process group."""
    if comm._global_ranks is None:
        mine = torch.tensor([dist.get_rank()])
        found, _ = _torch.all_gather(mine, 0, None, None, "sum", 1.0, comm.torch_name)
        comm._global_ranks = tuple(found.tolist())
    return comm._global_ranks


def _timeout_of(group):
    for device in group._device_types:
        backend = group._get_backend(device)
        if hasattr(backend, "timeout_s"):
            return datetime.timedelta(seconds=backend.timeout_s)
        options = getattr(backend, "options", None)
        if hasattr(options, "_timeout"):
            return options._timeout
    return datetime.timedelta(seconds=300)


_has_groups = dist.is_available()


def _meant(group):
    """A Comm, or a ProcessGroup; None: all ranks, which may be this one alone."""
    if group is None:
        group = thread_comm()
    if group is None and _has_groups and dist.is_initialized():
        group = dist.group.WORLD
    return group


def comm(group=None):
    """The Comm that a group stands for."""
    group = _meant(group)
    if group is None:
        return process_comm()
    return group if isinstance(group, Comm) else comm_of(group)


def constant(fn):
    """As torch.compiler.assume_constant_result(), which loads the whole compiler: a second for who does not compile."""
    fn._dynamo_marked_constant = True
    return fn


@constant
def _process_name():
    """It is made once, and stays: compiled code may have its name in it."""
    return process_comm().torch_name


@constant
def _group_name(group):
    return comm_of(group).torch_name


def name_of(group=None):
    """The name of the communicator that a group stands for."""
    if not torch.compiler.is_dynamo_compiling():
        return comm(group).torch_name
    group = _meant(group)
    if group is None:
        return _process_name()
    return group.torch_name if isinstance(group, Comm) else _group_name(group)


def rank_and_size(group=None):
    """Local."""
    group = _meant(group)
    if group is None:
        group = process_comm()
    if isinstance(group, Comm):
        return group.rank, group.size
    group = member_of(group)
    return group.rank(), group.size()


# NumPy arrays go to the same ranks.
_comm.comm_of, _comm.rank_and_size = comm, rank_and_size
