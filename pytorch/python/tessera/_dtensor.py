"""DTensors: their specs as layouts, and redistribute() of them, with DTensor's own rule for gradients."""

import collections
import re
import weakref

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.utils._python_dispatch import _disable_current_modes

from . import _group, _torch
from ._arguments import Wrong, refuse, wrong_type
from ._core import Layout, Mesh
from ._errors import ShapeError
from ._site import here

_world = dist.distributed_c10d._world
_make = torch.Tensor._dtensor__new__  # DTensor() without its empty __init__, which takes longer than all of this

# What DTensor calls a reduction.
_OPS = {"product": "prod", "band": "bit_and", "bor": "bit_or", "bxor": "bit_xor"}
_THEIRS = {ours: theirs for theirs, ours in _OPS.items()}


# Meshes ---------------------------------------------------------------------------------------------------------------

# By the default process group, then by ranks: the communicators of meshes that no process group has exactly.
_mesh_comms: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _ranks_of(meshes):
    """The ranks of the default group that a move between these meshes is for, in the order of their communicator."""
    if len(meshes) == 1 and meshes[0].ndim == 1:
        return tuple(dist.get_process_group_ranks(meshes[0].get_group()))
    ranks = sorted({rank for mesh in meshes for rank in mesh.mesh.flatten().tolist()})
    # A rank of one mesh does not know that of another is called for: then all are.
    same = all(mesh.mesh.numel() == len(ranks) for mesh in meshes)
    return tuple(ranks if same else range(dist.get_world_size()))


def _comm_of(meshes, ranks):
    """Their communicator. Collective among them the first time."""
    if len(meshes) == 1 and meshes[0].ndim == 1:
        return _group.comm_of(meshes[0].get_group())
    world = dist.group.WORLD
    if len(ranks) == world.size():
        return _group.comm_of(world)
    known = _mesh_comms.setdefault(world, {})
    if ranks not in known:
        known[ranks] = _group.join_ranks(world, ranks)
    return known[ranks]


def _mesh_of(device_mesh, ranks):
    """Rank i of it is ranks[i]."""
    numbers = {rank: i for i, rank in enumerate(ranks)}
    names = device_mesh.mesh_dim_names or ()
    fit = all(re.fullmatch(r"(?!R$|P$|S-?\d+$)[A-Za-z_]\w*", name, re.ASCII) for name in names)
    if not names or not fit:
        names = [f"d{axis}" for axis in range(device_mesh.ndim)]
    sizes = device_mesh.mesh.shape
    return Mesh(list(zip(names, sizes)), [numbers[rank] for rank in device_mesh.mesh.flatten().tolist()])


# Layouts --------------------------------------------------------------------------------------------------------------


def _text_of(placement):
    if isinstance(placement, (Shard, _StridedShard)):
        return f"S{placement.dim}"
    if isinstance(placement, Replicate):
        return "R"
    if type(placement) is Partial:
        return f"P({_OPS.get(placement.reduce_op, placement.reduce_op)})"
    raise ShapeError(f"{placement!r} is no layout in tessera: move it by x.redistribute() first")


def _order_of(spec):
    """For each dimension that is cut the mesh axes that cut it, outermost first."""
    if not any(isinstance(placement, _StridedShard) for placement in spec.placements):
        return spec.shard_order
    order = None
    if spec.use_strided_shard_as_shard_order:
        order = DTensorSpec._maybe_convert_StridedShard_to_shard_order(spec.placements, spec.mesh)
    if order is None:
        raise ShapeError(
            f"in {spec.placements} a rank's part is no box of the tensor: move it to Shard or Replicate by "
            "x.redistribute() first"
        )
    return order


def _layout_of(spec, mesh):
    """As Layout.parse() reads it: cuts in another order than from left to right name their axes."""
    names = [name for name, _ in mesh.axes]
    texts = {axis: _text_of(placement) for axis, placement in enumerate(spec.placements)}
    for dim, axes in _order_of(spec):
        if list(axes) != sorted(axes):
            for axis in axes:
                del texts[axis]
            texts[axes[0]] = f"S{dim}@" + ",".join(names[axis] for axis in axes)
    return Layout(mesh, [text for _, text in sorted(texts.items())])


def layout_of(spec):
    """Local."""
    return _layout_of(spec, _mesh_of(spec.mesh, _ranks_of([spec.mesh])))


def _meshes_of(spec, mesh):
    return [spec.mesh] if mesh is None or mesh == spec.mesh else [spec.mesh, mesh]


def comm_of(spec, mesh=None):
    """The communicator of its ranks, and of those of a mesh that it moves to. Collective among them the first time."""
    meshes = _meshes_of(spec, mesh)
    return _comm_of(meshes, _ranks_of(meshes))


def _normal(placement, ndim):
    if isinstance(placement, (Shard, _StridedShard)) and not -ndim <= placement.dim < ndim:
        raise ShapeError(f"{placement} cuts dim {placement.dim} of a tensor of {ndim} dimensions")
    if isinstance(placement, Shard) and placement.dim < 0:
        return Shard(placement.dim + ndim)
    if isinstance(placement, _StridedShard) and placement.dim < 0:
        return _StridedShard(placement.dim + ndim, split_factor=placement.split_factor)
    return placement


def _target_of(spec, mesh, placements, order):
    placements = tuple(_normal(placement, len(spec.shape)) for placement in placements)
    if len(placements) != mesh.ndim:
        raise ShapeError(f"{len(placements)} placements for a mesh of {mesh.ndim} axes: give one for each")
    return DTensorSpec(mesh, placements, tensor_meta=spec.tensor_meta, shard_order=order)


# Moves ----------------------------------------------------------------------------------------------------------------

# What the operator is told, and what comes of it.
_Way = collections.namedtuple("_Way", "shape source target comm spec moves")
_ways: dict = {}
_ways_world = lambda: None  # noqa: E731 - stands for a weak reference
_MOST_WAYS = 4096


def _way(spec, mesh, placements, order=None):
    """Found once for each pair of specs, while the default process group lives."""
    global _ways_world
    if torch._C._len_torch_dispatch_stack():  # where this is traced, tensors have no elements and shapes may be symbols
        with _disable_current_modes():
            return _find_way(spec, mesh, placements, order)
    world = _world.default_pg
    if world is None:
        raise ValueError("there is no default process group, or none any more: its ranks cannot be asked for their parts")
    if world is not _ways_world() or len(_ways) >= _MOST_WAYS:
        _ways.clear()
        _ways_world = weakref.ref(world)
    # Meshes are equal that have other groups, after one was destroyed and made again.
    key = (spec, _groups_of(spec.mesh), mesh, mesh and _groups_of(mesh), placements, order)
    way = _ways.get(key)
    if way is None:
        way = _ways[key] = _find_way(spec, mesh, placements, order)
    return way


def _groups_of(mesh):
    return tuple(getattr(mesh, "_dim_group_names", ()))


def _find_way(spec, mesh, placements, order):
    meshes = _meshes_of(spec, mesh)
    mesh = meshes[-1]
    outside = len(meshes) == 1 and mesh.get_coordinate() is None
    ranks = () if outside else _ranks_of(meshes)
    if dist.get_rank() not in ranks:  # as DTensor has it: nothing to do outside of the mesh
        target = _target_of(spec, mesh, placements, order)
        return _Way(tuple(spec.shape), "", "", "", target, False)
    comm = _comm_of(meshes, ranks)
    try:
        target = _target_of(spec, mesh, placements, order)
        source_layout = _layout_of(spec, _mesh_of(spec.mesh, ranks))
        target_layout = _layout_of(target, _mesh_of(mesh, ranks))
    except ShapeError as error:
        refuse(comm, "redistribute", Wrong("ShapeError", str(error)))
    moves = source_layout != target_layout
    return _Way(tuple(spec.shape), source_layout.text, target_layout.text, comm.torch_name, target, moves)


def target_layout_of(spec, target):
    """The layout of other placements, or of another spec, on the same mesh. Local."""
    return layout_of(target if isinstance(target, DTensorSpec) else _target_of(spec, spec.mesh, target, None))


def _move(x, way, site, requires_grad):
    local = x._local_tensor
    if way.moves:
        local = _torch.redistribute_at(
            *site, requires_grad, local, way.shape, way.source, way.target, "", 1.0, "global", way.comm
        )
    return _make(DTensor, local, way.spec, requires_grad=requires_grad)


class _Redistribute(torch.autograd.Function):
    """As DTensor has it: the gradient goes from the layout it has to that of the input, with Replicate for what was
    pending, whatever the reduction."""

    @staticmethod
    def forward(ctx, x, way, site):
        ctx.spec, ctx.site = x._spec, site
        return _move(x, way, site, True)

    @staticmethod
    def backward(ctx, grad):
        spec, current = ctx.spec, grad._spec
        placements = spec.placements
        if current.mesh == spec.mesh:
            placements = tuple(
                Replicate() if target.is_partial() and not now.is_partial() else target
                for now, target in zip(current.placements, placements)
            )
        else:
            placements = tuple(Replicate() if target.is_partial() else target for target in placements)
        order = spec.shard_order if not spec.use_strided_shard_as_shard_order else None
        way = _way(current, None if current.mesh == spec.mesh else spec.mesh, placements, order)
        if grad.requires_grad and torch.is_grad_enabled():
            return _Redistribute.apply(grad, way, ctx.site), None, None
        return _move(grad, way, ctx.site, False), None, None


def redistribute(x, placements, device_mesh=None):
    """Raises Wrong."""
    placements = _as_tuple(placements)
    if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        raise wrong_type("device_mesh", device_mesh, "a DeviceMesh")
    if torch.compiler.is_dynamo_compiling():
        target = _name_of_target(placements, device_mesh)
        return _in_graph(x, target)
    way = _way(x._spec, device_mesh, placements)
    if x.requires_grad and torch.is_grad_enabled():
        return _Redistribute.apply(x, way, here())
    return _move(x, way, here(), False)


def _as_tuple(placements):
    try:
        listed = tuple(placements)
    except TypeError:
        raise wrong_type("target", placements, "a list of placements, a Layout or its text") from None
    for i, placement in enumerate(listed):
        if not isinstance(placement, Placement):
            raise wrong_type(f"target[{i}]", placement, "a placement, as Shard(0) or Replicate()")
    return listed


_targets: list = []  # of moves in graphs


@_group.constant
def _name_of_target(placements, device_mesh):
    """Dynamo passes DTensors and strings to what a graph calls, but no placements. What follows the number is for
    readers."""
    torch._dynamo.allow_in_graph(_in_graph)  # only now: the compiler is loaded
    number = next((i for i, known in enumerate(_targets) if known[0] == placements and known[1] is device_mesh), None)
    if number is None:  # a mesh that is equal to a known one may have other groups
        number = len(_targets)
        _targets.append((placements, device_mesh))
    return f"{number} {placements} {device_mesh or ''}"


def _in_graph(x, target):
    """Dynamo does not look into it: what traces the graph later finds the operator."""
    return redistribute(x, *_targets[int(target.partition(" ")[0])])


# ShardedTensor --------------------------------------------------------------------------------------------------------


def _placement_of(text):
    if text == "R":
        return Replicate()
    if text.startswith("P("):
        return Partial(_THEIRS.get(text[2:-1], text[2:-1]))
    if text.startswith("At("):
        raise ShapeError(f"a DTensor has no {text}: redistribute it to R or to a cut first")
    return Shard(int(re.match(r"S(-?\d+)", text).group(1)))


def _chunks(extent, counts):
    """The sizes of nested torch.chunk cuts, row-major."""
    if not counts:
        return [extent]
    piece = -(-extent // counts[0])
    return [size for i in range(counts[0]) for size in _chunks(max(0, min(piece, extent - i * piece)), counts[1:])]


def from_sharded(x, device_mesh):
    if device_mesh is None:
        raise ValueError("this ShardedTensor comes from no DTensor: say to_dtensor(device_mesh)")
    ranks = _group.global_ranks(x.comm)
    flat = torch.tensor([ranks[rank] for rank in x.mesh.ranks])
    mine, theirs = flat.reshape([size for _, size in x.mesh.axes]).tolist(), device_mesh.mesh.tolist()
    if mine != theirs:  # in all places: so every rank is told
        raise ShapeError(
            f"the device mesh is {theirs}, but this ShardedTensor, {x.layout.text}, has its parts on {mine}: give the "
            "mesh that has each rank in the same place"
        )
    placements = tuple(_placement_of(text) for text in x.layout.placements)
    order = []
    for dim, axes, sizes in sorted(x.layout.cuts):
        if sizes and sizes != _chunks(x.shape[dim], [x.mesh.axes[axis][1] for axis in axes]):
            raise ShapeError(
                f"a DTensor has no cut into {sizes}, only torch.chunk's: redistribute it to S{dim} first, or stay with "
                "this ShardedTensor"
            )
        order.append(ShardOrderEntry(dim, tuple(axes)))
    placements = DTensorSpec._convert_shard_order_to_StridedShard(tuple(order), placements, device_mesh)
    strides = torch.empty(x.shape, device="meta").stride()
    return DTensor.from_local(x.local, device_mesh, placements, run_check=False, shape=x.shape, stride=strides)
