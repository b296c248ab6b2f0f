"""PyTorch's own test classes for DTensor, on the tessera backend."""

import itertools

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

from ranks import forked_process  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
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
        placements = list(itertools.product([Shard(0), Shard(1), Replicate()], repeat=mesh.ndim))
        for shape in shapes:
            whole = torch.randn(shape, generator=torch.Generator().manual_seed(5))
            for source, target in itertools.product(placements, repeat=2):
                there = distribute_tensor(whole, mesh, source).requires_grad_()
                moved = there.redistribute(mesh, target)
                self.assertEqual(moved.placements, tuple(target))
                self.assertEqual(moved.to_local(), distribute_tensor(whole, mesh, target).to_local())
                moved.to_local().sum().backward()  # the gradient goes the way back
                self.assertEqual(there.grad.to_local().shape, there.to_local().shape)

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
