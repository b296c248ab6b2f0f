"""In place of st_moe_pytorch/distributed.py."""

import torch
from torch import nn
from torch.autograd import Function

from . import _gather
from ._gather import all_gather_same_dim, all_gather_variable_dim, gather_sizes, pad_dim_to

__all__ = [
    "AllGather",
    "AllGatherFunction",
    "all_gather_same_dim",
    "all_gather_variable_dim",
    "default",
    "divisible_by",
    "exists",
    "gather_sizes",
    "has_only_one_value",
    "pad_dim_to",
    "split_by_rank",
]


def exists(val):
    return val is not None


def default(val, d):
    return d if val is None else val


def divisible_by(num, den):
    return num % den == 0


def has_only_one_value(t):
    """A 0-d bool tensor."""
    return (t == t[0]).all()


class AllGatherFunction(Function):
    @staticmethod
    def apply(x, dim, sizes):
        return _gather.gather_with_slice_gradient(x, dim, sizes)


class AllGather(nn.Module):
    def __init__(self, *, dim=0):
        super().__init__()
        self.dim = dim

    def forward(self, x, sizes=None):
        return AllGatherFunction.apply(x, self.dim, sizes)


def split_by_rank(x):
    """This rank's own of a tuple or list of parts, or of a tensor stacked along dim 0; and the rows of each."""
    own = x[_gather.world()[0]]
    rows = [x.shape[1]] * x.shape[0] if isinstance(x, torch.Tensor) else [part.shape[0] for part in x]
    return own, torch.tensor(rows, device=own.device, dtype=torch.long)
