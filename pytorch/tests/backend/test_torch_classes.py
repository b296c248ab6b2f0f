"""PyTorch's own test classes for DTensor, on the tessera backend."""

import itertools

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

from ranks import forked_process  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms  # noqa: E402


class OnTessera(DTensorTestBase):
    __test__ = False
    world_size = 4
    device_type = "cpu"
    backend = "tessera"

    def _spawn_processes(self):
        self._start_processes(forked_process)

    def init_pg(self, eager_init, backend=None):
        # The base class refuses backends that it does not know by name.
        torch.set_num_threads(1)
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("tessera", store=store, rank=self.rank, world_size=self.world_size)


class Redistribution(OnTessera):
    __test__ = True

    def check_pairs(self, mesh, shapes):
        """Values, and gradients: DTensor's are global, so that of `weights * x` is `weights`, however x lies."""
        kinds = [Shard(0), Shard(1), Replicate(), Partial()]
        sources = list(itertools.product(kinds, repeat=mesh.ndim))
        targets = list(itertools.product(kinds[:-1], repeat=mesh.ndim))  # DTensor moves nothing to a pending sum
        for shape in shapes:
            generator = torch.Generator().manual_seed(5)
            whole, weights = (torch.randn(shape, generator=generator) for _ in range(2))
            for source, target in itertools.product(sources, targets):
                there = self.parts_of(whole, mesh, source).requires_grad_()
                moved = there.redistribute(mesh, target)
                self.assertEqual(moved.placements, tuple(target))
                self.assertEqual(moved.full_tensor(), whole)
                moved.backward(distribute_tensor(weights, mesh, target))
                self.assertEqual(there.grad.full_tensor(), weights, msg=f"{source} to {target} of {shape}")

    def parts_of(self, whole, mesh, placements):
        """As distribute_tensor() has it, which makes no pending sums: here the terms of one along an axis of n ranks are
        1, 2, …, n parts of their sum."""
        share = 1.0
        for size, at, placement in zip(mesh.shape, mesh.get_coordinate(), placements):
            share *= (at + 1) / (size * (size + 1) / 2) if placement.is_partial() else 1
        plain = [Replicate() if placement.is_partial() else placement for placement in placements]
        local = distribute_tensor(whole, mesh, plain).to_local() * share
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())

    @with_comms
    def test_all_pairs_on_one_axis(self):
        self.check_pairs(self.build_device_mesh(), [(8, 4), (5, 7), (3, 2), (1, 9)])

    @with_comms
    def test_all_pairs_on_two_axes(self):
        self.check_pairs(init_device_mesh("cpu", (2, 2)), [(8, 4), (5, 7), (3, 1)])

    @with_comms
    def test_partial_sums(self):
        mesh = self.build_device_mesh()
        rows = distribute_tensor(torch.ones(7, 6), mesh, [Shard(0)])
        pending = rows.sum(0, keepdim=True)
        self.assertTrue(pending.placements[0].is_partial())
        for target in (Replicate(), Shard(1)):
            self.assertEqual(pending.redistribute(mesh, [target]).full_tensor(), torch.full((1, 6), 7.0))


class Operators(OnTessera):
    __test__ = True

    @with_comms
    def test_operators_under_every_sharding(self):
        mesh = self.build_device_mesh()
        generator = torch.Generator().manual_seed(6)
        a, b = torch.randn(12, 8, generator=generator), torch.randn(8, 12, generator=generator)
        self._test_op(mesh, torch.mm, a, b)
        self._test_op(mesh, torch.add, a, b.t().contiguous())
        self._test_op(mesh, lambda x: torch.softmax(x, dim=1), a)
        self._test_op(mesh, lambda x: x.sum(dim=0), a)
