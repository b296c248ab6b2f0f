"""Communicators: Comm, run() and where group=None leads."""

import sys
import threading

from . import _core, _errors
from ._arguments import Wrong, integer, raised_here, text, told_to_all, wrong_type
from ._site import here

_local = threading.local()
_process = None
_process_guard = threading.Lock()


class Comm:
    """A group of ranks that call the same things in the same order. For one thread at a time."""

    def __init__(self, core):
        self._core = core
        self.rank = core.rank
        self.size = core.size
        self.name = core.name
        self.torch_name = _torch_name(core)
        self._global_ranks = None  # those of torch.distributed, where they are known

    @staticmethod
    def from_env():
        """The ranks that this program was started with, by `tessera run` or an MPI's launcher; plainly, one rank."""
        return process_comm()

    @property
    def timeout(self):
        """Seconds that a call waits for a peer before it raises TimeoutError."""
        return self._core.timeout

    @timeout.setter
    def timeout(self, seconds):
        self._core.timeout = seconds

    def barrier(self):
        """Returns when every rank has come."""
        self._core.barrier(here())

    @told_to_all("Comm::split", lambda comm, *_, **__: comm)
    def split(self, color, key=0):
        """The ranks with one color, ordered by key; None on a rank whose color is negative. Collective."""
        part = self._core.split(integer("color", color), integer("key", key), here())
        return None if part is None else Comm(part)

    def shrink(self):
        """After a PeerLostError, TimeoutError or AbortedError: the ranks that come here too."""
        return Comm(self._core.shrink())

    def abort(self, reason):
        """Ends the communicator on every rank."""
        self._core.abort(reason)

    def stats(self):
        """What this rank has done, as a dict."""
        return self._core.stats()

    def reset_stats(self):
        self._core.reset_stats()

    def chrome_trace(self):
        """The last 64 calls of this rank, in the Chrome trace format."""
        return self._core.chrome_trace()

    # There is one of it in a process: a model that has it may be copied, and the copy talks to the same ranks.
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(
            f"{self!r} cannot be pickled or saved: it is this process's. Save what is in it, as a state_dict() or "
            "ShardedTensor.local and .layout, and give the group again when it is loaded"
        )

    def __repr__(self):
        return f"tessera.Comm(name={self.name!r}, rank={self.rank}, size={self.size})"


def _torch_name(core):
    try:
        from . import _torch
    except ImportError:
        return None
    return _torch.name_of(core.handle)


def process_comm():
    """The communicator of this process, made when it is first needed."""
    global _process
    if _process is not None:
        return _process
    with _process_guard:
        if _process is None:
            _process = Comm(_core.from_env())
        return _process


def thread_comm():
    """The communicator of the rank that runs on this thread; None outside of run()."""
    # No default by its class: a compiled function would take that for good.
    return getattr(_local, "comm", None)


def comm_of(group=None):
    """The Comm that a group stands for. With torch, process groups too: see _group."""
    if group is None:
        return thread_comm() or process_comm()
    if not isinstance(group, Comm):
        raise _errors.ArgumentTypeError(f"group is {group!r}, no tessera.Comm")
    return group


def rank_and_size(group=None):
    comm = comm_of(group)
    return comm.rank, comm.size


def join(set, get, rank, size, *, name="world", timeout=300.0, make_carrier=None):
    """The communicator of `size` processes that nobody started as ranks; this one is `rank`. Collective.

    They find each other through set(key, value) and get(key, seconds), of a key-value store that all of them reach:
    values are bytes, and get() returns None when the time is over. Keys must be new to the store. Where they are on
    several hosts, make_carrier() is called for what carries messages between those: a function that returns
    tessera._backend.carrier(group), of a backend of torch.distributed that nobody else uses. Raises Error where there
    is none and the processes are not on one host, TimeoutError with the names of those that did not come.
    """
    return Comm(_core.join(set, get, rank, size, name, timeout, make_carrier))


@raised_here("run")
def _checked(ranks, fn, name):
    ranks = integer("ranks", ranks, 32)
    if ranks < 1:
        raise Wrong("ArgumentError", f"ranks is {ranks}: give 1 or more")
    if not callable(fn):
        raise wrong_type("fn", fn, "a function of a Comm")
    return ranks, text("name", name)


def run(ranks, fn, *args, name="world", timeout=300.0):
    """Runs fn(comm, *args) on `ranks` threads of this process and returns what each returned, by rank.

    Within fn, group=None means these ranks. Where a rank raises, the others come out of their calls, and run() raises
    the first cause, with a note that names the rank. Ctrl-C ends all of them.
    """
    ranks, name = _checked(ranks, fn, name)
    results = [None] * ranks
    failures = {}

    def rank_main(core):
        # Else autograd runs what lies on a GPU on a thread of its own, which is no rank's.
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.autograd.set_multithreading_enabled(False)
        try:
            _local.comm = Comm(core)
            results[core.rank] = fn(_local.comm, *args)
        except BaseException as error:
            failures[core.rank] = error
            raise
        finally:
            _local.comm = None

    _core.run(ranks, rank_main, name, timeout)  # raises what a signal's handler did, and nothing of the ranks'
    if failures:
        # That another rank failed is no cause; of the others the first is.
        follows = (_errors.PeerLostError, _errors.AbortedError)
        causes = [item for item in failures.items() if not isinstance(item[1], follows)]
        rank, error = (causes or list(failures.items()))[0]
        if hasattr(error, "add_note"):
            error.add_note(f"raised on rank {rank} of {ranks}")
        raise error
    return results
