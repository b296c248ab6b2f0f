"""The c10d backend "tessera": torch.distributed over shared memory, for tensors on the CPU. Between hosts Gloo carries
what it moves.

Importing this module registers it; then ``dist.init_process_group("tessera")`` or ``"cpu:tessera,cuda:nccl"`` works
under torchrun and spawn, and so do DDP, FSDP2 and DTensor. See docs/pytorch-backend.md.

Importing it also replaces two functions of DTensor, for meshes on a tessera group only; for all others, under a dispatch
mode and while something is traced PyTorch's own run. DTensor has no all-to-all on CPU meshes: it gathers everything and
keeps a part. Here that is a real all-to-all, in both modules that bind the function. A pending sum that is to be whole on
every rank DTensor first copies, into fresh memory, and then adds up in place. Here it is added up from where it lies.
``TESSERA_DTENSOR=0`` in the environment leaves both alone.
"""

import functools
import importlib.abc
import importlib.util
import os
import sys

import torch
import torch.distributed as dist

from tessera._backend import ProcessGroupTessera, make_group

__all__ = ["ProcessGroupTessera", "register"]


def meeting_place(store, name, members, rank):
    """Where in a store these ranks meet. A group that is destroyed and made again has the same name, perhaps with other
    members, and the strings of the first meeting may still lie there: so the store counts how often each rank came. What
    a process counted by itself would be another number in one that has taken a lost one's place."""
    place = f"tessera/{name}/{','.join(map(str, members))}/"
    return f"{place}{store.add(f'{place}came{rank}', 1)}/"


def engine_between_hosts(store, rank, size, timeout):
    """What carries messages between hosts: a Gloo group that nobody else uses. Collective."""
    if not dist.is_gloo_available():
        raise RuntimeError(
            "the ranks are on several hosts, and this PyTorch has no Gloo to carry messages there: use one that has, "
            "or tessera's own calls under mpirun"
        )
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)


def _create(options, _):
    name = "world" if not dist.is_initialized() else f"group {options.group_id}"
    store, rank, size = options.store, options.group_rank, options.group_size
    prefix = meeting_place(store, options.group_id, options.global_ranks_in_group, rank)
    return make_group(
        store=store,
        prefix=prefix,
        rank=rank,
        size=size,
        timeout_s=options.timeout.total_seconds(),
        name=name,
        make_engine=lambda: engine_between_hosts(dist.PrefixStore(prefix, store), rank, size, options.timeout),
    )


def _takes_over(tensor, mesh, mesh_dim, tracing):
    """The backend of the mesh's group along that dimension; None: PyTorch's own operators are to see the tensor."""
    # Else it is traced, fake or a subclass of another kind; a mode counts or records operators, and finds them there.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return None
    if tracing or torch._C._len_torch_dispatch_stack() > 0:
        return None
    # Below autograd, where DTensor moves parts, only some ranks' parts may say that they require a gradient.
    below = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    if tensor.requires_grad and torch.is_grad_enabled() and not below:
        return None
    try:
        backend = mesh.get_group(mesh_dim)._get_backend(tensor.device)
    except RuntimeError:  # the group has no backend for the CPU
        return None
    return backend if isinstance(backend, ProcessGroupTessera) else None


def _replace_shard_dim_alltoall():
    from torch.distributed import _functional_collectives as funcol
    from torch.distributed.tensor import _collective_utils, placement_types

    original = _collective_utils.shard_dim_alltoall

    @functools.wraps(original)
    def shard_dim_alltoall(input, gather_dim, shard_dim, mesh, mesh_dim):
        if isinstance(input, funcol.AsyncCollectiveTensor):
            input = input.wait()
        group = _takes_over(input, mesh, mesh_dim, funcol._are_we_tracing())
        if group is not None:
            return group.shard_dim_alltoall(input.resolve_conj().resolve_neg(), gather_dim, shard_dim)
        return original(input, gather_dim, shard_dim, mesh, mesh_dim)

    _collective_utils.shard_dim_alltoall = shard_dim_alltoall
    placement_types.shard_dim_alltoall = shard_dim_alltoall


_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def _replace_reduce_value():
    from torch.distributed import _functional_collectives as funcol
    from torch.distributed.tensor import placement_types

    original = placement_types.Partial._reduce_value

    @functools.wraps(original)
    def _reduce_value(self, tensor, mesh, mesh_dim):
        if isinstance(tensor, funcol.AsyncCollectiveTensor):
            tensor = tensor.wait()
        known = self.reduce_op in _REDUCTIONS
        group = _takes_over(tensor, mesh, mesh_dim, funcol._are_we_tracing()) if known else None
        if group is not None:
            return group.all_reduced(tensor.resolve_conj().resolve_neg(), _REDUCTIONS[self.reduce_op])
        return original(self, tensor, mesh, mesh_dim)

    placement_types.Partial._reduce_value = _reduce_value


def _replace_in_dtensor():
    _replace_shard_dim_alltoall()
    _replace_reduce_value()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function when a module has been imported: importing DTensor takes a second that not everybody needs."""

    def __init__(self, name, then):
        self._name, self._then = name, then

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def execute_and_go_on(module):
            execute(module)
            sys.modules.setdefault(fullname, module)
            self._then()

        spec.loader.exec_module = execute_and_go_on
        return spec


def register():
    """Makes the backend known to torch.distributed. Local; any number of times."""
    if "TESSERA" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("tessera", _create, extended_api=True, devices=["cpu"])
    if os.environ.get("TESSERA_DTENSOR", "1") == "0":
        return
    binds_it = "torch.distributed.tensor.placement_types"
    if binds_it in sys.modules:
        _replace_in_dtensor()
    else:
        sys.meta_path.insert(0, _AfterImport(binds_it, _replace_in_dtensor))


register()
