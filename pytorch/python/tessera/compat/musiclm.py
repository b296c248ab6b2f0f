"""In place of musiclm_pytorch/distributed.py."""

from torch import nn
from torch.autograd import Function

from . import _gather
from ._gather import all_gather_same_dim, all_gather_variable_dim

__all__ = ["AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim"]


class AllGatherFunction(Function):
    @staticmethod
    def apply(x, dim, sizes, all_reduce_grads):
        if all_reduce_grads:
            return _gather.gather(x, dim, sizes, "sum")
        return _gather.gather_with_slice_gradient(x, dim, sizes)


class AllGather(nn.Module):
    def __init__(self, dim, *, all_reduce_grads=False):
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads

    @property
    def is_distributed(self):
        """Now, and not when the module was made."""
        return _gather.is_distributed()

    def forward(self, x, sizes=None):
        if not self.is_distributed:
            return x, None
        return AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads)
