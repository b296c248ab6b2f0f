# Without torch or NumPy their names are Any to a type checker, and what needs them is never called.
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, Union, overload

from numpy import ndarray
from torch import Size, Tensor, dtype, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import Placement

from . import arrays as arrays
from ._comm import Comm as Comm
from ._comm import join as join
from ._comm import run as run
from ._core import Layout as Layout
from ._core import Mesh as Mesh
from ._core import Plan as Plan
from ._core import Step as Step
from ._core import Topology as Topology
from ._errors import AbortedError as AbortedError
from ._errors import ArgumentError as ArgumentError
from ._errors import ArgumentTypeError as ArgumentTypeError
from ._errors import DTypeError as DTypeError
from ._errors import Error as Error
from ._errors import MismatchError as MismatchError
from ._errors import PeerLostError as PeerLostError
from ._errors import ShapeError as ShapeError
from ._errors import TimeoutError as TimeoutError

__all__ = [
    "AbortedError",
    "AllGather",
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
    "ShardedTensor",
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

__version__: str

_Sizes = Union[Tensor, Sequence[int], None]
_Counts = Union[ndarray[Any, Any], Sequence[int], None]  # sizes beside NumPy arrays
_Grad = Literal["sum", "mean", "slice"]
_Op = Literal["sum", "avg", "prod", "min", "max", "bit_and", "bit_or", "bit_xor"]
_Array = TypeVar("_Array", bound=ndarray[Any, Any])
_Group = Union[Comm, ProcessGroup, None]

@overload
def all_gather(
    x: Tensor, dim: int = 0, sizes: _Sizes = None, *, group: _Group = None, grad: _Grad = "sum"
) -> tuple[Tensor, Tensor]: ...
@overload
def all_gather(
    x: Sequence[Tensor], dim: int = 0, sizes: _Sizes = None, *, group: _Group = None, grad: _Grad = "sum"
) -> list[tuple[Tensor, Tensor]]: ...
@overload
def all_gather(
    x: _Array, dim: int = 0, sizes: _Counts = None, *, group: _Group = None, grad: _Grad = "sum"
) -> tuple[_Array, list[int]]: ...
@overload
def gather_sizes(x: Tensor, dim: int = 0, *, group: _Group = None) -> Tensor: ...
@overload
def gather_sizes(x: _Array, dim: int = 0, *, group: _Group = None) -> list[int]: ...
@overload
def reduce_scatter(
    x: Tensor, dim: int = 0, sizes: _Sizes = None, *, op: _Op = "sum", group: _Group = None
) -> Tensor: ...
@overload
def reduce_scatter(
    x: _Array, dim: int = 0, sizes: _Counts = None, *, op: _Op = "sum", group: _Group = None
) -> _Array: ...
@overload
def all_reduce(x: Tensor, op: _Op = "sum", *, group: _Group = None) -> Tensor: ...
@overload
def all_reduce(x: Sequence[Tensor], op: _Op = "sum", *, group: _Group = None) -> list[Tensor]: ...
@overload
def all_reduce(x: _Array, op: _Op = "sum", *, group: _Group = None) -> _Array: ...
@overload
def all_to_all(
    x: Tensor, split_dim: int, concat_dim: int, sizes: _Sizes = None, *, group: _Group = None
) -> tuple[Tensor, Tensor]: ...
@overload
def all_to_all(
    x: _Array, split_dim: int, concat_dim: int, sizes: _Counts = None, *, group: _Group = None
) -> tuple[_Array, list[int]]: ...
@overload
def all_to_all_v(
    x: Tensor,
    send_sizes: Tensor | Sequence[int],
    recv_sizes: _Sizes = None,
    dim: int = 0,
    *,
    group: _Group = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def all_to_all_v(
    x: _Array, send_sizes: _Counts, recv_sizes: _Counts = None, dim: int = 0, *, group: _Group = None
) -> tuple[_Array, list[int]]: ...
@overload
def broadcast(x: Tensor | None, root: int = 0, *, group: _Group = None) -> Tensor: ...
@overload
def broadcast(x: _Array, root: int = 0, *, group: _Group = None) -> _Array: ...
@overload
def scatter(
    x: Tensor | None, root: int = 0, dim: int = 0, sizes: _Sizes = None, *, group: _Group = None
) -> tuple[Tensor, Tensor]: ...
@overload
def scatter(
    x: _Array, root: int = 0, dim: int = 0, sizes: _Counts = None, *, group: _Group = None
) -> tuple[_Array, list[int]]: ...
@overload
def gather(x: Tensor, root: int = 0, dim: int = 0, *, group: _Group = None) -> tuple[Tensor, Tensor]: ...
@overload
def gather(x: _Array, root: int = 0, dim: int = 0, *, group: _Group = None) -> tuple[_Array | None, list[int]]: ...
@overload
def reduce(x: Tensor, root: int = 0, op: _Op = "sum", *, group: _Group = None) -> Tensor: ...
@overload
def reduce(x: _Array, root: int = 0, op: _Op = "sum", *, group: _Group = None) -> _Array | None: ...
@overload
def split(x: Tensor, dim: int, sizes: Tensor | Sequence[int], *, group: _Group = None) -> Tensor: ...
@overload
def split(x: _Array, dim: int, sizes: ndarray[Any, Any] | Sequence[int], *, group: _Group = None) -> _Array: ...
def send(x: Tensor | ndarray[Any, Any], to: int, tag: int = 0, *, group: _Group = None) -> None: ...
@overload
def recv(
    source: int | None = None, tag: int = 0, out: Tensor | None = None, *, group: _Group = None
) -> tuple[Tensor, int]: ...
@overload
def recv(source: int | None, tag: int, out: _Array, *, group: _Group = None) -> tuple[_Array, int]: ...
@overload
def recv(
    source: int | None = None, tag: int = 0, *, out: _Array, group: _Group = None
) -> tuple[_Array, int]: ...
def barrier(*, group: _Group = None) -> None: ...

class AllGather(nn.Module):
    dim: int
    grad: _Grad
    group: _Group
    def __init__(self, dim: int = 0, *, grad: _Grad = "sum", group: _Group = None) -> None: ...
    def forward(self, x: Tensor, sizes: _Sizes = None) -> tuple[Tensor, Tensor]: ...

_Convention = Literal["global", "local"]

class ShardedTensor:
    local: Tensor
    layout: Layout
    shape: Size
    comm: Comm
    device_mesh: DeviceMesh | None
    def __init__(
        self,
        local: Tensor,
        layout: Layout,
        shape: Sequence[int],
        *,
        group: _Group = None,
        device_mesh: DeviceMesh | None = None,
    ) -> None: ...
    @classmethod
    def from_local(
        cls, local: Tensor, layout: Layout, shape: Sequence[int] | None = None, *, group: _Group = None
    ) -> ShardedTensor: ...
    @classmethod
    def from_dtensor(cls, dtensor: DTensor) -> ShardedTensor: ...
    @property
    def dtype(self) -> dtype: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def requires_grad(self) -> bool: ...
    def requires_grad_(self, requires_grad: bool = True) -> ShardedTensor: ...
    @property
    def grad(self) -> Tensor | None: ...
    def detach(self) -> ShardedTensor: ...
    def redistribute(
        self, target: Layout | str | Sequence[str] | Plan, *, convention: _Convention = "global"
    ) -> ShardedTensor: ...
    def full_tensor(self, *, convention: _Convention = "global") -> Tensor: ...
    def to_dtensor(self, device_mesh: DeviceMesh | None = None) -> DTensor: ...

@overload
def redistribute(x: DTensor, target: Sequence[Placement], *, device_mesh: DeviceMesh | None = None) -> DTensor: ...
@overload
def redistribute(
    x: ShardedTensor, target: Layout | str | Sequence[str] | Plan, *, convention: _Convention = "global"
) -> ShardedTensor: ...
@overload
def redistribute(  # type: ignore[overload-overlap]  # a DTensor is a Tensor, and the first that fits is meant
    x: DTensor, target: Layout | str | Plan, *, convention: _Convention = "global"
) -> ShardedTensor: ...
@overload
def redistribute(
    x: Tensor | None, target: Plan, *, group: _Group = None, convention: _Convention = "global"
) -> Tensor: ...
@overload
def redistribute(x: _Array, target: Plan, *, group: _Group = None) -> _Array | None: ...
def plan(
    source: Layout | DTensor | DTensorSpec | ShardedTensor,
    target: Layout | str | Sequence[str] | Sequence[Placement],
    shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    *,
    topology: Topology | None = None,
    max_bytes: int | None = None,
    any_order: bool = False,
) -> Plan: ...
