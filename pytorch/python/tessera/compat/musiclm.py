"""In place of musiclm_pytorch/distributed.py."""

from torch import nn
from torch.autograd import Function

from ._gather import all_gather_same_dim, all_gather_variable_dim, gather, gather_with_slice_gradient
from ._gather import is_distributed as _is_distributed

__all__ = ["AllGather", "AllGatherFunction", "all_gather_same_dim", "all_gather_variable_dim"]


class AllGatherFunction(Function):
    @staticmethod
    def apply(x, dim, sizes, all_reduce_grads):
        if all_reduce_grads:
            return gather(x, dim, sizes, "sum")
        return gather_with_slice_gradient(x, dim, sizes)


class AllGather(nn.Module):
    def __init__(self, dim, *, all_reduce_grads=False):
        super().__init__()
        self.dim = dim
        self.all_reduce_grads = all_reduce_grads

    @property
    def is_distributed(self):
        """Now, and not when the module was made."""
        return _is_distributed()

    def forward(self, x, sizes=None):
        if not self.is_distributed:
            return x, None
        return AllGatherFunction.apply(x, self.dim, sizes, self.all_reduce_grads)
