"""The collectives on NumPy arrays, and on whatever else has __dlpack__: without torch, and without gradients.

NumPy arrays give NumPy arrays; all else gives an object with __dlpack__. Sizes are lists.
"""

import operator

from . import _core
from ._comm import process_comm, thread_comm
from ._errors import ShapeError
from ._site import here


def comm_of(group):
    return group or thread_comm() or process_comm()  # with torch, process groups too: see _group


def rank_and_size(group):
    comm = comm_of(group)
    return comm.rank, comm.size


def _comm(group):
    return comm_of(group)._core


def _in(x):
    if type(x).__module__.partition(".")[0] == "numpy" and hasattr(x, "ndim") and x.ndim == 0:
        x = x.reshape(1)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"x is a {type(x).__name__}, no array: it has no __dlpack__")
    return _core.Array.from_dlpack(x)


def _out(array, like):
    if not array.defined:
        return None
    if type(like).__module__.partition(".")[0] != "numpy":
        return array
    import numpy

    return numpy.from_dlpack(array)


def _list(sizes):
    return [] if sizes is None else [operator.index(size) for size in sizes]


def _pair(result, like):
    return _out(result[0], like), result[1]


def all_gather(x, dim=0, sizes=None, *, group=None):
    return _pair(_core.all_gather(_comm(group), _in(x), dim, _list(sizes), here()), x)


def gather_sizes(x, dim=0, *, group=None):
    return _core.gather_sizes(_comm(group), _in(x), dim, here())


def reduce_scatter(x, dim=0, sizes=None, *, op="sum", group=None):
    return _out(_core.reduce_scatter(_comm(group), _in(x), dim, _list(sizes), op, here()), x)


def all_reduce(x, op="sum", *, group=None):
    return _out(_core.all_reduce(_comm(group), _in(x), op, here()), x)


def all_to_all(x, split_dim, concat_dim, sizes=None, *, group=None):
    return _pair(_core.all_to_all(_comm(group), _in(x), split_dim, concat_dim, _list(sizes), here()), x)


def all_to_all_v(x, send_sizes, recv_sizes=None, dim=0, *, group=None):
    return _pair(_core.all_to_all_v(_comm(group), _in(x), _list(send_sizes), _list(recv_sizes), dim, here()), x)


def broadcast(x, root=0, *, group=None):
    array = _core.broadcast(_comm(group), None if x is None else _in(x), root, here())
    return array if x is None else _out(array, x)


def scatter(x, root=0, dim=0, sizes=None, *, group=None):
    array, sizes = _core.scatter(_comm(group), None if x is None else _in(x), root, dim, _list(sizes), here())
    return (array if x is None else _out(array, x)), sizes


def gather(x, root=0, dim=0, *, group=None):
    return _pair(_core.gather(_comm(group), _in(x), root, dim, here()), x)


def reduce(x, root=0, op="sum", *, group=None):
    return _out(_core.reduce(_comm(group), _in(x), root, op, here()), x)


def redistribute(x, plan, *, group=None):
    """This rank's part of plan.target, of that of plan.source. None stands for no part, both ways."""
    array = _core.redistribute(_comm(group), None if x is None else _in(x), plan, here())
    return array if x is None and array.defined else _out(array, x)


def send(x, to, tag=0, *, group=None):
    """x to one rank; returns when it has come. The two ranks take part, no other."""
    _core.send(_comm(group), _core.Array.from_dlpack(x), to, tag, here())


def recv(source=None, tag=0, out=None, *, group=None):
    """(what came, its sender) of the first message with that tag from source, or from any rank. It is new memory with
    __dlpack__, of the sender's dtype and shape; or out, which must fit."""
    into = None if out is None else _core.Array.from_dlpack(out)
    array, sender = _core.recv(_comm(group), -1 if source is None else source, tag, into, here())
    return (array if out is None else out), sender


def check_cut(x, dim, sizes, ranks):
    if len(sizes) != ranks:
        raise ShapeError(f"split: sizes has {len(sizes)} entries for {ranks} ranks: give one for each")
    if sum(sizes) != x.shape[dim] or min(sizes) < 0:
        raise ShapeError(f"split: the sizes {list(sizes)} must be a cut of dim {dim}, which has {x.shape[dim]}")


def split(x, dim, sizes, *, group=None):
    rank, size = rank_and_size(group)
    check_cut(x, dim, sizes, size)
    start = sum(sizes[:rank])
    index = [slice(None)] * len(x.shape)
    index[dim] = slice(start, start + sizes[rank])
    return x[tuple(index)]


def barrier(*, group=None):
    _comm(group).barrier(here())
