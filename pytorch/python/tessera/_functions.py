"""The collectives on torch tensors, with autograd. NumPy arrays go to tessera.arrays."""

import functools

import torch
import torch.distributed as dist

from . import _torch, arrays
from ._arguments import Wrong, called, gradient, integer, raised_here, refuse
from ._comm import Comm, process_comm, thread_comm
from ._group import comm, member_of, name_of, rank_and_size

_traced = torch.ops.tessera


def _ops():
    """The operators. Where no compiler looks on, by the short way, on which errors show the user's line."""
    return _traced if torch.compiler.is_dynamo_compiling() else _torch


def _sizes(sizes, x):
    """Where shapes are worked out, on the device of x: all that an operator is given is taken to lie on one."""
    if sizes is None:
        return None
    if torch.compiler.is_dynamo_compiling() or (x.device.type != "cpu" and torch._C._len_torch_dispatch_stack() > 0):
        return sizes.to(x.device) if isinstance(sizes, torch.Tensor) else torch.tensor(sizes, device=x.device)
    if isinstance(sizes, torch.Tensor):
        return sizes
    try:
        return torch.tensor(sizes)  # as whatever they are: the operator tells every rank of those that are no integers
    except Exception:
        return sizes  # and of these too


def _face(*others):
    """For tensors and the other types the function; its namesake in tessera.arrays for NumPy arrays and the like."""
    types = (torch.Tensor, *others)

    def decorate(fn):
        namesake = getattr(arrays, fn.__name__)

        @functools.wraps(fn)
        def face(x, *args, **named):
            try:
                if isinstance(x, types):
                    return fn(x, *args, **named)
                _check_array("x", x)
            except Wrong as wrong:
                problem = wrong
            else:
                return namesake(x, *args, **named)
            refuse(comm(named.get("group")), fn.__name__, problem)

        return face

    return decorate


def _check_array(name, x):
    if not isinstance(x, torch.Tensor) and not arrays.is_array(x):
        raise Wrong("ArgumentTypeError", f"{name} is {called(x)}, neither a tensor nor an array")


def _each(call, xs):
    """What is no tensor is found before the first call."""
    for i, x in enumerate(xs):
        _check_array(f"x[{i}]", x)
    return [call(x) for x in xs]


_lists = list, tuple
_none = type(None)


def _rows(x):
    """A 0-d tensor counts as one row."""
    return x.unsqueeze(0) if x.dim() == 0 else x


def _plain(xs):
    """Whether one call may take the whole list: whoever traces or overrides operators has to see them one by one."""
    return not (
        torch.compiler.is_dynamo_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    ) and all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in xs)


@_face(*_lists)
def all_gather(x, dim=0, sizes=None, *, group=None, grad="sum"):
    """Every rank's x, concatenated along dim, and their sizes along it. Only dim may differ between ranks. Of a list,
    the results for each, with one agreement for all."""
    if isinstance(x, (list, tuple)):
        if sizes is None and _plain(x):
            return _torch.all_gather_list([_rows(each) for each in x], dim, grad, name_of(group))
        return _each(lambda each: all_gather(each, dim, sizes, group=group, grad=grad), x)
    return tuple(_ops().all_gather(_rows(x), dim, _sizes(sizes, x), None, grad, 1.0, name_of(group)))


@_face()
def gather_sizes(x, dim=0, *, group=None):
    """Every rank's extent along dim. Moves no elements."""
    return _ops().gather_sizes(_rows(x), dim, name_of(group))


@_face()
def reduce_scatter(x, dim=0, sizes=None, *, op="sum", group=None):
    """The ranks' x combined; each rank keeps its cut along dim: that of the sizes, or of torch.chunk."""
    return _ops().reduce_scatter(_rows(x), dim, _sizes(sizes, x), None, op, 1.0, name_of(group))


@_face(*_lists)
def all_reduce(x, op="sum", *, group=None):
    """The ranks' x combined, on every rank. Of a list, the results for each, with one agreement for all."""
    if isinstance(x, (list, tuple)):
        if _plain(x):
            return _torch.all_reduce_list(list(x), op, 1.0, name_of(group))
        return _each(lambda each: all_reduce(each, op, group=group), x)
    return _ops().all_reduce(x, op, 1.0, name_of(group))


@_face()
def all_to_all(x, split_dim, concat_dim, sizes=None, *, group=None):
    """From a cut along concat_dim to one along split_dim; with the sizes along concat_dim."""
    return tuple(_ops().all_to_all(x, split_dim, concat_dim, _sizes(sizes, x), None, None, name_of(group)))


@_face()
def all_to_all_v(x, send_sizes, recv_sizes=None, dim=0, *, group=None):
    """send_sizes[r] rows of x go to rank r; what came, by sender, and how much from each."""
    return tuple(_ops().all_to_all_v(_rows(x), _sizes(send_sizes, x), _sizes(recv_sizes, x), dim, None, name_of(group)))


@_face(_none)
def broadcast(x, root=0, *, group=None):
    """The root's x on every rank. Other ranks give None, or a tensor of that shape, which is only looked at."""
    name = name_of(group)
    if x is None:
        return _ops().broadcast(torch.empty(0), False, root, None, 1.0, name)
    return _ops().broadcast(x, True, root, None, 1.0, name)


@_face(_none)
def scatter(x, root=0, dim=0, sizes=None, *, group=None):
    """Each rank's cut of the root's x along dim, and the sizes of all cuts. Other ranks give None, or a tensor of that
    shape, which is only looked at."""
    x = torch.empty(()) if x is None else _rows(x)
    return tuple(_ops().scatter(x, root, dim, _sizes(sizes, x), None, name_of(group)))


@_face()
def gather(x, root=0, dim=0, *, group=None):
    """Every rank's x, concatenated along dim, on the root; elsewhere an empty tensor. With the sizes of all."""
    return tuple(_ops().gather(_rows(x), root, dim, None, None, name_of(group)))


@_face()
def reduce(x, root=0, op="sum", *, group=None):
    """The ranks' x combined, on the root; elsewhere an empty tensor."""
    return _ops().reduce(x, root, op, 1.0, name_of(group))


@raised_here("split")
def split(x, dim, sizes, *, group=None):
    """This rank's cut of an x that every rank has whole: a view. Local; its gradient is zero elsewhere."""
    if not isinstance(x, torch.Tensor):
        _check_array("x", x)
        return arrays.split(x, dim, sizes, group=group)
    x = _rows(x)
    # What a mode records or works shapes out for must not ask for the numbers: they are another time's.
    if torch.compiler.is_compiling() or (
        isinstance(sizes, torch.Tensor) and torch._C._len_torch_dispatch_stack() > 0
    ):
        return _traced.split(x, dim, _sizes(sizes, x), None, name_of(group))
    if x.layout != torch.strided or x.is_nested:
        raise Wrong("ArgumentTypeError", "x is sparse or nested: only dense tensors are cut")
    rank, size = rank_and_size(group)
    dim, sizes = arrays.cut_of(x, dim, sizes, size)
    return x.split(sizes, dim)[rank]


def send(x, to, tag=0, *, group=None):
    """x to one rank; returns when it has come. The two ranks take part, no other. No gradient passes."""
    if isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg().cpu()
    arrays.send(x, to, tag, group=group)


def recv(source=None, tag=0, out=None, *, group=None):
    """(what came, its sender) of the first message with that tag from source, or from any rank. A new tensor of the
    sender's dtype and shape, on the CPU; or out, which must fit. No gradient passes."""
    into = host = out.detach() if isinstance(out, torch.Tensor) else out
    elsewhere = isinstance(into, torch.Tensor) and into.device.type != "cpu"
    if elsewhere:
        host = torch.empty_like(into, device="cpu")
    came, sender = arrays.recv(source, tag, host, group=group)
    if elsewhere:
        into.copy_(host)
    return (torch.from_dlpack(came) if out is None else out), sender


def barrier(*, group=None):
    """Returns when every rank has come."""
    if group is None:
        group = thread_comm() or (None if dist.is_available() and dist.is_initialized() else process_comm())
    if isinstance(group, Comm):
        group.barrier()
    else:
        dist.barrier(group and member_of(group))


class AllGather(torch.nn.Module):
    """all_gather() as a module: forward(x, sizes=None) -> (gathered, sizes)."""

    @raised_here("AllGather")
    def __init__(self, dim=0, *, grad="sum", group=None):
        super().__init__()
        self.dim = integer("dim", dim)
        self.grad = gradient("grad", grad)
        self.group = group

    def forward(self, x, sizes=None):
        return all_gather(x, self.dim, sizes, group=self.group, grad=self.grad)

    def extra_repr(self):
        return f"dim={self.dim}, grad={self.grad!r}"
