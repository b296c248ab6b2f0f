"""plan(): the cheapest way from one layout to another. Talks to no rank."""

from ._core import Layout, Mesh, Plan, Step, Topology
from ._core import plan as _plan

__all__ = ["Layout", "Mesh", "Plan", "Step", "Topology", "plan"]


def ends_of(source, target):
    """(source, target, shape, dtype) of a source that knows its layout; with torch, _redistribute has more to say."""
    raise TypeError(f"source is a {type(source).__name__}, not a Layout, a DTensor or a ShardedTensor")


def layout_on(mesh, target):
    """A layout as it was given: one already, its text, or a text for each axis."""
    return target if isinstance(target, Layout) else Layout(mesh, target)


def told(plan):
    """What the operator is told of a plan; worked out once."""
    if not hasattr(plan, "_told"):
        plan._told = (plan.shape, plan.source.text, plan.target.text, plan.to_json())
    return plan._told


def plan(source, target, shape=None, dtype="float32", *, topology=None, max_bytes=None, any_order=False):
    """The cheapest plan from the layout `source` to the layout `target`, of a tensor of that shape and dtype.

    It prints, and draws itself in a notebook. `source` may also be a DTensor, its spec or a ShardedTensor, which have a
    shape and a dtype; `target` may be the text of a layout on the same mesh, as "S1,R", or DTensor's placements. The
    prices are those of PyTorch's model, or of a Topology. max_bytes: the most that a rank may use at any step.
    Local. Raises ShapeError, DTypeError, and Error where no plan keeps within max_bytes.
    """
    if not isinstance(source, Layout):
        source, target, shape, dtype = ends_of(source, target)
    if shape is None:
        raise TypeError("plan() needs the shape of the whole tensor")
    return _plan(source, layout_on(source.mesh, target), list(shape), dtype, topology, max_bytes, any_order)
