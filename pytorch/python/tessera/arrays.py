"""The collectives on NumPy arrays, and on whatever else has __dlpack__: without torch, and without gradients.

NumPy arrays give NumPy arrays; all else gives an object with __dlpack__. Sizes are lists.
"""

from . import _comm, _core, _errors
from ._arguments import Wrong, called, gradient, integer, integers, raised_here, reduction, told_to_all, wrong_type
from ._site import here

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "broadcast",
    "gather",
    "gather_sizes",
    "recv",
    "redistribute",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "split",
]


def _ranks(group):
    return _comm.comm_of(group)._core


def _collective(fn):
    return told_to_all(fn.__name__, lambda *_, group=None, **__: _comm.comm_of(group))(fn)


def _is_numpy(x):
    return type(x).__module__.partition(".")[0] == "numpy"


def is_array(x):
    return hasattr(x, "__dlpack__") or _is_scalar(x)


def _is_scalar(x):
    return _is_numpy(x) and not hasattr(x, "__dlpack__") and hasattr(x, "__array__")


def _in(x, name="x"):
    if _is_scalar(x):
        x = x.__array__()
    if not hasattr(x, "__dlpack__"):
        raise Wrong("ArgumentTypeError", f"{name} is {called(x)}, no array: it has no __dlpack__")
    try:
        return _core.Array.from_dlpack(x)
    except _errors.Error as error:
        raise Wrong(type(error).__name__, f"{name}: {error}") from None
    except Exception as error:  # whatever another library has to say
        raise Wrong("ArgumentTypeError", f"{name}, {called(x)}, does not give its elements: {error}") from None


def _rows(x):
    """A scalar counts as one row."""
    return _in(x.reshape(1) if _is_numpy(x) and getattr(x, "ndim", 1) == 0 else x)


def _or_none(take, x):
    return None if x is None else take(x)


def _out(array, like):
    if not array.defined:
        return None
    if not _is_numpy(like):
        return array
    import numpy

    return numpy.from_dlpack(array)


def _pair(result, like):
    return _out(result[0], like), result[1]


@_collective
def all_gather(x, dim=0, sizes=None, *, group=None, grad="sum"):
    """grad: as of tensors, so that one program takes both. Arrays have no gradient."""
    gradient("grad", grad)
    dim, sizes = integer("dim", dim), integers("sizes", sizes)
    return _pair(_core.all_gather(_ranks(group), _rows(x), dim, sizes, here()), x)


@_collective
def gather_sizes(x, dim=0, *, group=None):
    return _core.gather_sizes(_ranks(group), _rows(x), integer("dim", dim), here())


@_collective
def reduce_scatter(x, dim=0, sizes=None, *, op="sum", group=None):
    dim, sizes, op = integer("dim", dim), integers("sizes", sizes), reduction("op", op)
    return _out(_core.reduce_scatter(_ranks(group), _rows(x), dim, sizes, op, here()), x)


@_collective
def all_reduce(x, op="sum", *, group=None):
    return _out(_core.all_reduce(_ranks(group), _in(x), reduction("op", op), here()), x)


@_collective
def all_to_all(x, split_dim, concat_dim, sizes=None, *, group=None):
    dims = integer("split_dim", split_dim), integer("concat_dim", concat_dim)
    return _pair(_core.all_to_all(_ranks(group), _in(x), *dims, integers("sizes", sizes), here()), x)


@_collective
def all_to_all_v(x, send_sizes, recv_sizes=None, dim=0, *, group=None):
    if send_sizes is None:
        raise wrong_type("send_sizes", send_sizes, "a list of integers, one for each rank")
    sizes = integers("send_sizes", send_sizes), integers("recv_sizes", recv_sizes)
    return _pair(_core.all_to_all_v(_ranks(group), _rows(x), *sizes, integer("dim", dim), here()), x)


@_collective
def broadcast(x, root=0, *, group=None):
    array = _core.broadcast(_ranks(group), _or_none(_in, x), integer("root", root), here())
    return array if x is None else _out(array, x)


@_collective
def scatter(x, root=0, dim=0, sizes=None, *, group=None):
    root, dim, sizes = integer("root", root), integer("dim", dim), integers("sizes", sizes)
    array, sizes = _core.scatter(_ranks(group), _or_none(_rows, x), root, dim, sizes, here())
    return (array if x is None else _out(array, x)), sizes


@_collective
def gather(x, root=0, dim=0, *, group=None):
    return _pair(_core.gather(_ranks(group), _rows(x), integer("root", root), integer("dim", dim), here()), x)


@_collective
def reduce(x, root=0, op="sum", *, group=None):
    return _out(_core.reduce(_ranks(group), _in(x), integer("root", root), reduction("op", op), here()), x)


@_collective
def redistribute(x, plan, *, group=None):
    """This rank's part of plan.target, of that of plan.source. None stands for no part, both ways."""
    if not isinstance(plan, _core.Plan):
        raise wrong_type("plan", plan, "a tessera.Plan")
    array = _core.redistribute(_ranks(group), _or_none(_in, x), plan, here())
    return array if x is None and array.defined else _out(array, x)


@raised_here("send")
def send(x, to, tag=0, *, group=None):
    """x to one rank; returns when it has come. The two ranks take part, no other."""
    _core.send(_ranks(group), _in(x), integer("to", to, 32), integer("tag", tag), here())


@raised_here("recv")
def recv(source=None, tag=0, out=None, *, group=None):
    """(what came, its sender) of the first message with that tag from source, or from any rank. It is new memory with
    __dlpack__, of the sender's dtype and shape; or out, which must fit."""
    source = -1 if source is None else integer("source", source, 32)
    into = None if out is None else _in(out, "out")
    array, sender = _core.recv(_ranks(group), source, integer("tag", tag), into, here())
    return (array if out is None else out), sender


def cut_of(x, dim, sizes, ranks):
    """The dim and the sizes of a split, which must be a cut of x.shape. Raises Wrong."""
    dim, ndim = integer("dim", dim), len(x.shape)
    if not -ndim <= dim < ndim:
        raise Wrong("ShapeError", f"dim {dim} is out of range: x has {ndim} dimensions")
    if sizes is None:
        raise wrong_type("sizes", sizes, "a list of integers, one for each rank")
    sizes = integers("sizes", sizes)
    if len(sizes) != ranks:
        raise Wrong("ShapeError", f"sizes has {len(sizes)} entries for {ranks} ranks: give one for each")
    if sum(sizes) != x.shape[dim] or min(sizes) < 0:
        raise Wrong("ShapeError", f"the sizes {sizes} must be a cut of dim {dim}, which has {x.shape[dim]}")
    return dim, sizes


@raised_here("split")
def split(x, dim, sizes, *, group=None):
    if not hasattr(x, "shape") or not hasattr(x, "__getitem__"):
        raise Wrong("ArgumentTypeError", f"x is {called(x)}, no array")
    if _is_numpy(x) and x.ndim == 0:
        x = x.reshape(1)
    rank, size = _comm.rank_and_size(group)
    dim, sizes = cut_of(x, dim, sizes, size)
    start = sum(sizes[:rank])
    index = [slice(None)] * len(x.shape)
    index[dim] = slice(start, start + sizes[rank])
    return x[tuple(index)]


def barrier(*, group=None):
    _ranks(group).barrier(here())
