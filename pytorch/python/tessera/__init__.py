"""Moves tensors whose pieces lie on many ranks: pieces of different sizes, along any dimension, with gradients.

>>> import tessera, torch
>>> def gather(comm):
...     rows, sizes = tessera.all_gather(torch.full((comm.rank + 1, 2), comm.rank))
...     return rows.shape[0], sizes.tolist()
>>> tessera.run(3, gather)[0]
(6, [1, 2, 3])
"""

from . import arrays
from ._comm import Comm, join, run
from ._errors import (
    AbortedError,
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    Error,
    MismatchError,
    PeerLostError,
    ShapeError,
    TimeoutError,
)
from ._plan import Layout, Mesh, Plan, Step, Topology, plan
from ._version import __version__

try:
    import torch as _installed_torch
except ImportError:
    _installed_torch = None

if _installed_torch is None:
    from .arrays import (
        all_gather,
        all_reduce,
        all_to_all,
        all_to_all_v,
        barrier,
        broadcast,
        gather,
        gather_sizes,
        recv,
        redistribute,
        reduce,
        reduce_scatter,
        scatter,
        send,
        split,
    )
else:
    from . import _load_torch  # noqa: F401 - says how to rebuild where the versions differ
    from . import backend  # noqa: F401 - makes it known to torch.distributed
    from ._functions import (
        AllGather,
        all_gather,
        all_reduce,
        all_to_all,
        all_to_all_v,
        barrier,
        broadcast,
        gather,
        gather_sizes,
        recv,
        reduce,
        reduce_scatter,
        scatter,
        send,
        split,
    )
    from ._redistribute import redistribute
    from ._sharded import ShardedTensor

__all__ = [
    "AbortedError",
    "ArgumentError",
    "ArgumentTypeError",
    "Comm",
    "DTypeError",
    "Error",
    "Layout",
    "Mesh",
    "MismatchError",
    "PeerLostError",
    "Plan",
    "ShapeError",
    "Step",
    "TimeoutError",
    "Topology",
    "__version__",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "arrays",
    "barrier",
    "broadcast",
    "gather",
    "gather_sizes",
    "join",
    "plan",
    "recv",
    "redistribute",
    "reduce",
    "reduce_scatter",
    "run",
    "scatter",
    "send",
    "split",
]
if _installed_torch is not None:
    __all__ += ["AllGather", "ShardedTensor"]
