"""ShardedTensor: a rank's part of a tensor, and the layout that says which part it is."""

import math

import torch

from . import _torch
from ._arguments import Wrong, integer, raised_here, told_to_all, wrong_type
from ._by_schema import is_dtensor, tensor
from ._core import Layout, Plan
from ._errors import ShapeError
from ._group import comm as comm_of
from ._plan import layout_on, told


class ShardedTensor:
    """This rank's part (`local`, a tensor with autograd) of a tensor of `shape`, cut as `layout` says.

    Cuts may be ragged, which a DTensor cannot say. Gradients go through `local`: they are those of a loss in which what
    is replicated counts once (convention="global"), or of the sum of what every rank computes ("local"). On a rank that
    has no part, `local` is an empty tensor.
    """

    @raised_here("ShardedTensor")
    def __init__(self, local, layout, shape, *, group=None, device_mesh=None):
        """Local. Raises ShapeError where `local` is not this rank's part; from_local() asks the other ranks too."""
        shape = _checked(local, layout, shape)
        self.shape = torch.Size(shape)
        self.layout = layout.resolved(list(shape))
        self.comm = comm_of(group)
        self.device_mesh = device_mesh  # of the DTensor that it comes from
        self.local = local
        _check_ranks(self.layout.mesh, self.comm.size)
        wrong = _misfit(self.layout, self.shape, self.comm.rank, local.shape)
        if wrong is not None:
            raise ShapeError(wrong)

    @classmethod
    @told_to_all("all_gather", lambda *_, group=None, **__: comm_of(group))
    def from_local(cls, local, layout, shape=None, *, group=None):
        """Of what each rank has. Collective: the shape, where it is not given, is found out, and every part is checked;
        where one does not fit, every rank gets the same ShapeError."""
        comm = comm_of(group)
        shape = _checked(local, layout, shape)
        shape = _agreed_shape(local, layout, shape, comm)
        return cls(local, layout, shape, group=comm)

    @classmethod
    @raised_here("from_dtensor")
    def from_dtensor(cls, dtensor):
        """Of a DTensor, with its gradients. Collective: DTensor.from_local() takes parts of any shape, so that a
        DTensor may say what is not so; every rank gets a ShapeError then."""
        if not is_dtensor(dtensor):
            raise wrong_type("dtensor", dtensor, "a DTensor")
        from . import _dtensor

        layout, comm = _dtensor.layout_of(dtensor._spec), _dtensor.comm_of(dtensor._spec)
        _agreed_shape(dtensor._local_tensor, layout, dtensor.shape, comm)
        return cls(dtensor.to_local(), layout, dtensor.shape, group=comm, device_mesh=dtensor.device_mesh)

    @property
    def dtype(self):
        return self.local.dtype

    @property
    def mesh(self):
        return self.layout.mesh

    @property
    def requires_grad(self):
        return self.local.requires_grad

    def requires_grad_(self, requires_grad=True):
        self.local.requires_grad_(requires_grad)
        return self

    @property
    def grad(self):
        """The gradient of `local`."""
        return self.local.grad

    def detach(self):
        return ShardedTensor(
            self.local.detach(), self.layout, self.shape, group=self.comm, device_mesh=self.device_mesh
        )

    @told_to_all("redistribute", lambda self, *_, **__: self.comm)
    def redistribute(self, target, *, convention="global"):
        """In another layout: a Layout, on this mesh or another one of these ranks; its text, as "S1[3,0,5]"; or a Plan
        from this layout. Collective over the ranks of the communicator. Cost: that of the plan."""
        plan = ""
        try:
            if isinstance(target, Plan):
                if target.source != self.layout or target.shape != tuple(self.shape):
                    raise ShapeError(f"the plan is for {target.source.text} of {list(target.shape)}, this is {self!r}")
                plan, target = told(target)[-1], target.target
            target = layout_on(self.mesh, target).resolved(list(self.shape))
        except ShapeError as error:
            raise Wrong("ShapeError", str(error)) from None
        except TypeError:
            raise wrong_type("target", target, "a Layout, its text or a Plan") from None
        local = _torch.redistribute(
            self.local, self.shape, self.layout.text, target.text, plan, 1.0, convention, self.comm.torch_name
        )
        return ShardedTensor(local, target, self.shape, group=self.comm, device_mesh=self.device_mesh)

    def full_tensor(self, *, convention="global"):
        """The whole, on every rank of the mesh. Collective."""
        return self.redistribute(["R"] * self.mesh.ndim, convention=convention).local

    def to_dtensor(self, device_mesh=None):
        """The same as a DTensor, with its gradients. `device_mesh`: as the layout's, rank for rank; by default that of
        the DTensor it comes from. Local; but the first time collective on a Comm that is of no process group. Raises,
        on every rank the same: ShapeError for another mesh, for a cut that is not torch.chunk's, and for At."""
        from . import _dtensor

        return _dtensor.from_sharded(self, device_mesh or self.device_mesh)

    def __repr__(self):
        return f"tessera.ShardedTensor({self.layout.text} of {list(self.shape)}, {self.dtype})"


def _checked(local, layout, shape):
    """The shape, as a tuple of integers; None: it is not given. Raises Wrong."""
    tensor("local", local)
    if not isinstance(layout, Layout):
        raise wrong_type("layout", layout, "a tessera.Layout")
    if shape is None:
        return None
    try:
        extents = tuple(shape)
    except Exception:
        raise wrong_type("shape", shape, "a list of integers") from None
    return tuple(integer(f"shape[{i}]", extent) for i, extent in enumerate(extents))


def _misfit(layout, shape, rank, local):
    """What is wrong with a rank's part; None: nothing."""
    box = layout.box(list(shape), rank)
    if box is not None and tuple(local) != box[1]:
        return f"rank {rank} has {list(local)}, but of {layout.text} of {list(shape)} its part is {list(box[1])}"
    if box is None and math.prod(local) != 0:
        return f"rank {rank} has {list(local)}, but of {layout.text} it has no part: give an empty tensor"
    return None


def _shapes_of_all(local, shape, comm):
    """Every rank's local shape, and the shape that it believes the whole to have; None: it gave none."""
    mine = torch.tensor([local.dim(), *local.shape, *([] if shape is None else [1, *shape])], dtype=torch.int64)
    with torch.no_grad():
        rows, sizes = _torch.all_gather(mine, 0, None, None, "sum", 1.0, comm.torch_name)
    rows = [row.tolist() for row in rows.split(sizes.tolist())]
    return [row[1 : 1 + row[0]] for row in rows], [row[2 + row[0] :] if row[1 + row[0] :] else None for row in rows]


def _agreed_shape(local, layout, shape, comm):
    locals_, wholes = _shapes_of_all(local, shape, comm)
    _check_ranks(layout.mesh, comm.size)
    if shape is None:
        shape = _whole_shape(layout, locals_)
    for rank, whole in enumerate(wholes):
        if whole != wholes[0]:
            raise ShapeError(
                f"rank 0 has a part of {wholes[0]}, rank {rank} one of {whole}: the parts of one tensor, cut "
                f"as {layout.text}, are not these {locals_}"
            )
    layout = layout.resolved(list(shape))
    for rank, part in enumerate(locals_):
        wrong = _misfit(layout, shape, rank, part)
        if wrong is not None:
            raise ShapeError(wrong)
    return shape


def _check_ranks(mesh, size):
    if max(mesh.ranks) >= size:
        raise ShapeError(f"the mesh {mesh} has rank {max(mesh.ranks)}, the communicator only {size} ranks")


def _whole_shape(layout, parts):
    """A dimension that is cut is as long as its pieces together."""
    mesh = layout.mesh
    origin = [int(p[3:-1]) if p.startswith("At(") else 0 for p in layout.placements]
    shape = list(parts[mesh.rank_at(origin)])
    for dim, axes, _ in layout.cuts:
        if not -len(shape) <= dim < len(shape):
            raise ShapeError(f"{layout.text} cuts dim {dim}, the parts have {len(shape)} dimensions")
        dim %= len(shape)
        at, total = list(origin), 0
        for piece in range(math.prod(mesh.axes[axis][1] for axis in axes)):
            for axis in axes:
                piece, at[axis] = divmod(piece, mesh.axes[axis][1])
            part = parts[mesh.rank_at(at)]
            total += part[dim] if dim < len(part) else 0
        shape[dim] = total
    return shape
