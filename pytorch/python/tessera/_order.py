"""That compiled code makes every call, in the order of the program.

A compiler takes operators for functions of their arguments. So it leaves out calls whose result is empty or not used, and
moves others: on this rank, while the others make them and wait. What has an effect it keeps.
"""

import sys

import torch
import torch.utils._pytree as pytree
from torch._library.effects import EffectHolder, EffectType
from torch._library.simple_registry import singleton

_collectives = """
all_gather all_reduce all_to_all all_to_all_v broadcast gather gather_sizes redistribute reduce reduce_scatter scatter
"""


class _InOrder(EffectHolder):
    """torch.library._register_effectful_op() would do, if it did not load the compiler; and if inductor kept to it."""

    @property  # type: ignore[misc]  # set once, and never by others
    def effect(self):
        if "torch._inductor.lowering" in sys.modules:  # then it is the one that asks, and lowers the operator next
            _lower_in_order(getattr(torch.ops.tessera, self.qualname.partition("::")[2]).default)
        return EffectType.ORDERED


def _lower_in_order(op):
    """Inductor notes what comes before an effect by the name of a buffer, and looks for it by that of an operation: so it
    orders nothing. Here it is noted by both."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    if op in lowering.lowerings:
        return

    def lower(*args, **named):
        graph = V.graph
        before, known = graph.effectful_ops.get(EffectType.ORDERED), len(graph.operations)
        result = ir.FallbackKernel.create(op, *args, **named)
        for operation in graph.operations[known:] if before else ():
            graph.additional_buffer_deps[operation.get_operation_name()].add(before.get_name())
        return pytree.tree_map_only(ir.IRNode, lambda node: node.wrap_for_lowering(), result)

    lowering.register_lowering(op, type_promotion_kind=None)(lower)


def keep_calls():
    for name in _collectives.split():
        qualified = f"tessera::{name}"
        singleton.find(qualified).effect = _InOrder(qualified)
