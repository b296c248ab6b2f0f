"""redistribute(): of DTensors, ShardedTensors, and of plain tensors by a plan."""

import torch
from torch.distributed.device_mesh import DeviceMesh

from . import _plan, _torch, arrays
from ._arguments import Wrong, called, told_to_all
from ._by_schema import is_dtensor
from ._core import Layout, Plan
from ._group import comm, name_of
from ._sharded import ShardedTensor


def _comm_of(x, *_, device_mesh=None, group=None, **__):
    if isinstance(x, ShardedTensor):
        return x.comm
    if not is_dtensor(x):
        return comm(group)
    from . import _dtensor

    # Where this rank's mesh is what is wrong, that of the others is not known.
    return _dtensor.comm_of(x._spec, device_mesh if isinstance(device_mesh, DeviceMesh) else None)


@told_to_all("redistribute", _comm_of)
def redistribute(x, target, *, device_mesh=None, group=None, convention="global"):
    """A tensor in another layout. Collective over the ranks that have it. Cost: that of the plan.

    - x is a DTensor, target its new placements: a DTensor. device_mesh: another mesh; then every rank of the default
      group calls. Gradients are those of DTensor.redistribute().
    - x is a DTensor or a ShardedTensor, target a Layout or its text, as "S1[3,0,5]": a ShardedTensor, whose cuts may be
      ragged.
    - x is a tensor, or None, and target a Plan: this rank's part, of the ranks of `group`. Empty where it gets none.

    Raises, on every rank the same: ShapeError, DTypeError, MismatchError, TimeoutError, PeerLostError, AbortedError.
    """
    if isinstance(x, ShardedTensor):
        return x.redistribute(target, convention=convention)
    if is_dtensor(x):
        if isinstance(target, (str, Layout, Plan)):
            return ShardedTensor.from_dtensor(x).redistribute(target, convention=convention)
        if convention != "global":
            raise Wrong("ArgumentError", "the gradients of DTensors are global: use a ShardedTensor for local ones")
        from . import _dtensor

        return _dtensor.redistribute(x, target, device_mesh)
    if not isinstance(target, Plan):
        raise Wrong("ArgumentTypeError", f"x is {called(x)}, which knows no layout: give a Plan, or a ShardedTensor")
    if x is None or isinstance(x, torch.Tensor):
        return _by_plan(x, target, group, convention)
    return arrays.redistribute(x, target, group=group)


def _by_plan(x, plan, group, convention):
    if x is None:
        x = torch.empty(0, dtype=getattr(torch, plan.dtype))
    name = name_of(group)
    if plan.source.box(plan.shape, _torch.rank_and_size(name)[0]) is None and x.numel() != 0:
        raise Wrong("ShapeError", f"x is {list(x.shape)}, but this rank has no part of {plan.source.text}: give None")
    return _torch.redistribute(x, *_plan.told(plan), 1.0, convention, name)


def _ends_of(source, target):
    if isinstance(source, ShardedTensor):
        return source.layout, target, source.shape, source.dtype
    spec = getattr(source, "_spec", source)
    if type(spec).__name__ != "DTensorSpec":
        raise TypeError(f"source is a {type(source).__name__}, not a Layout, a DTensor or a ShardedTensor")
    from . import _dtensor

    if not isinstance(target, (str, Layout)):
        target = _dtensor.target_layout_of(spec, target)
    return _dtensor.layout_of(spec), target, spec.shape, spec.tensor_meta.dtype


_plan.ends_of = _ends_of
