"""The operators on what the short way does not take: tensors of other classes, NumPy's integers, and what is wrong."""

import functools

import torch

from . import _torch
from ._arguments import Wrong, gradient, integer, reduction, text, wrong_type


def is_dtensor(x):
    return hasattr(type(x), "_spec")  # its class says so, without being imported here


def tensor(name, value, remedy="a tensor"):
    if not isinstance(value, torch.Tensor):
        raise wrong_type(name, value, remedy)
    if is_dtensor(value):
        raise Wrong(
            "ArgumentTypeError",
            f"{name} is a DTensor: give its part, {name}.to_local(), or move the whole by tessera.redistribute()",
        )
    return value


def _tensors(name, values):
    return [tensor(f"{name}[{i}]", value) for i, value in enumerate(values)]


def _sizes(name, value):
    return tensor(name, value, "a tensor of integers, one for each rank")


def _sizes_or_none(name, value):
    return None if value is None else _sizes(name, value)


# By the names of arguments. The others are tessera's own.
_CHECKS = {
    "x": tensor,
    "xs": _tensors,
    "dim": integer,
    "split_dim": integer,
    "concat_dim": integer,
    "root": integer,
    "sizes": _sizes_or_none,
    "send_sizes": _sizes,
    "recv_sizes": _sizes_or_none,
    "op": reduction,
    "grad": gradient,
    "convention": text,
}
_LISTS = {"all_gather_list": ("xs", "dim", "grad", "comm"), "all_reduce_list": ("xs", "op", "factor", "comm")}


@functools.cache
def _names(operator):
    if operator in _LISTS:
        return _LISTS[operator]
    return tuple(argument.name for argument in getattr(torch.ops.tessera, operator).default._schema.arguments)


def call(operator, *arguments):
    """Raises Wrong."""
    checked = [
        _CHECKS[name](name, value) if name in _CHECKS else value for name, value in zip(_names(operator), arguments)
    ]
    if operator in _LISTS:
        return getattr(_torch, operator)(*checked)
    result = getattr(torch.ops.tessera, operator)(*checked)
    return tuple(result) if isinstance(result, list) else result  # as the short way has pairs
