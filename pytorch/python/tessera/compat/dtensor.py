"""In place of torch/distributed/_tensor/_collective_utils.py, on PyTorch's own DeviceMesh, placements and DTensorSpec.

The costs are those of that file, figure for figure. shard_dim_alltoall is an all-to-all, uneven ones too.
"""

import functools
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from .. import _functions

__all__ = [
    "MeshTopoInfo",
    "allgather_cost",
    "allreduce_cost",
    "fill_empty_tensor_to_shards",
    "mesh_broadcast",
    "mesh_scatter",
    "pad_tensor",
    "redistribute_cost",
    "reduce_scatter_cost",
    "shard_dim_alltoall",
    "spec_to_bytes",
    "unpad_tensor",
]

# Between the GPUs of a host, and between hosts.
_GB_PER_S, _HOP_US = 87.7, 0.6
_FAR_GB_PER_S, _FAR_HOP_US = 87.7 * 0.22, 2.7
_BASE_US = 6.6


def _outside(mesh):
    return mesh.get_coordinate() is None


def mesh_scatter(
    output: torch.Tensor,
    scatter_list: list[torch.Tensor],
    mesh: DeviceMesh,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> Optional[dist.Work]:
    """Tensor i of the source's list to the output of coordinate i. None for meta tensors and outside of the mesh."""
    if output.is_meta or _outside(mesh):
        return None
    group = mesh.get_group(mesh_dim)
    parts = scatter_list if dist.get_rank(group) == group_src else None
    return dist.scatter(output, parts, group=group, async_op=async_op, group_src=group_src)


def mesh_broadcast(
    tensor: torch.Tensor, mesh: DeviceMesh, mesh_dim: int = 0, async_op: bool = False, *, group_src: int = 0
) -> Optional[dist.Work]:
    """The source's tensor, in everybody's. None for meta tensors and outside of the mesh."""
    if tensor.is_meta or _outside(mesh):
        return None
    return dist.broadcast(tensor, group=mesh.get_group(mesh_dim), async_op=async_op, group_src=group_src)


def shard_dim_alltoall(input, gather_dim, shard_dim, mesh, mesh_dim):  # noqa: A002 - the name it has there
    """From a cut along gather_dim, which may be ragged, to that of torch.chunk along shard_dim."""
    if _outside(mesh):
        return None
    if getattr(input, "is_meta", False):
        ranks, rank = mesh.size(mesh_dim), mesh.get_local_rank(mesh_dim)
        piece = -(-input.shape[shard_dim] // ranks)
        shape = list(input.shape)
        shape[shard_dim] = max(0, min(piece, shape[shard_dim] - rank * piece))
        shape[gather_dim] *= ranks
        return input.new_empty(shape)
    moved, _ = _functions.all_to_all(input, shard_dim, gather_dim, group=mesh.get_group(mesh_dim))
    return moved


def pad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """With pad_size zeros behind along pad_dim; for 0 the tensor itself."""
    if pad_size == 0:
        return tensor
    behind = tensor.ndim - 1 - pad_dim % tensor.ndim
    return F.pad(tensor, [0, 0] * behind + [0, pad_size])


def unpad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """A view without the last pad_size along pad_dim; for 0 the tensor itself."""
    return tensor if pad_size == 0 else tensor.narrow(pad_dim, 0, tensor.size(pad_dim) - pad_size)


def fill_empty_tensor_to_shards(
    shards: list[torch.Tensor], shard_dim: int, num_empty_tensors: int
) -> list[torch.Tensor]:
    """The list itself, with so many tensors more: like its first, but empty along shard_dim."""
    if num_empty_tensors > 0:
        shape = list(shards[0].shape)
        shape[shard_dim] = 0
        shards += [shards[0].new_zeros(shape)] * num_empty_tensors
    return shards


def spec_to_bytes(spec) -> int:
    """Of the whole tensor."""
    assert spec.tensor_meta is not None, "spec should have tensor meta defined!"
    return spec.tensor_meta.dtype.itemsize * math.prod(spec.shape)


@dataclass
class MeshTopoInfo:
    """What a collective along each axis of a mesh meets: ranks, GiB/s, µs a hop."""

    mesh: DeviceMesh
    mesh_dim_devices: list[int]
    mesh_dim_bandwidth: list[float]
    mesh_dim_latency: list[float]

    @staticmethod
    @functools.cache
    def build_from_mesh(mesh: DeviceMesh) -> "MeshTopoInfo":
        per_host = _devices_per_host(mesh)
        devices = [mesh.size(axis) for axis in range(mesh.ndim)]
        # An axis leaves the host where it and those to its right have more ranks than a host.
        far = [math.prod(devices[axis:]) > per_host for axis in range(mesh.ndim)]
        return MeshTopoInfo(
            mesh,
            devices,
            [_FAR_GB_PER_S if leaves else _GB_PER_S for leaves in far],
            [_FAR_HOP_US if leaves else _HOP_US for leaves in far],
        )


def _devices_per_host(mesh):
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.num_devices_per_host(mesh.device_type)


def _ring(bytes_gb, topo, axis, hops):
    seconds = bytes_gb * hops / topo.mesh_dim_devices[axis] / topo.mesh_dim_bandwidth[axis]
    return _BASE_US + hops * topo.mesh_dim_latency[axis] + seconds * 1e6


def allgather_cost(bytes_gb: float, mesh_topo: MeshTopoInfo, mesh_dim: int) -> float:
    """µs for bytes_gb GiB of the gathered tensor."""
    return _ring(bytes_gb, mesh_topo, mesh_dim, mesh_topo.mesh_dim_devices[mesh_dim] - 1)


def allreduce_cost(bytes_gb: float, mesh_topo: MeshTopoInfo, mesh_dim: int) -> float:
    """µs for bytes_gb GiB of the tensor; counts 2n - 1 hops."""
    return _ring(bytes_gb, mesh_topo, mesh_dim, 2 * mesh_topo.mesh_dim_devices[mesh_dim] - 1)


def reduce_scatter_cost(bytes_gb: float, mesh_topo: MeshTopoInfo, mesh_dim: int) -> float:
    """µs for bytes_gb GiB of the input."""
    return _ring(bytes_gb, mesh_topo, mesh_dim, mesh_topo.mesh_dim_devices[mesh_dim] - 1)


def redistribute_cost(current_spec, target_spec) -> float:
    """µs; one transition for each axis, from left to right, whether or not that order can be run."""
    if current_spec.mesh != target_spec.mesh:
        return math.inf
    if current_spec.is_replicated() or current_spec.mesh.get_coordinate() is None:  # or on a rank outside
        return 0.0
    topo = MeshTopoInfo.build_from_mesh(current_spec.mesh)
    held_gb = spec_to_bytes(current_spec) / current_spec.num_shards / 2**30
    cost = 0.0
    for axis, (current, target) in enumerate(zip(current_spec.placements, target_spec.placements)):
        if current == target:
            continue
        if current.is_shard() and target.is_replicate():
            held_gb *= topo.mesh_dim_devices[axis]
            cost += allgather_cost(held_gb, topo, axis)
        elif current.is_shard() and target.is_shard():
            cost += allgather_cost(held_gb, topo, axis) + 1.0
        elif current.is_partial() and target.is_replicate():
            cost += allreduce_cost(held_gb, topo, axis)
        elif current.is_partial() and target.is_shard():
            cost += reduce_scatter_cost(held_gb, topo, axis)
            held_gb /= topo.mesh_dim_devices[axis]
        elif current.is_shard() and target.is_partial():
            return math.inf
    return cost
