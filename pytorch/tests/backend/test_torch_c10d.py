"""PyTorch's own tests of c10d, on the tessera backend: those of collectives and messages on the CPU."""

import json
import os
import re

import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

# Read when the module of the tests is imported, here and in every rank.
os.environ.update(BACKEND="tessera", WORLD_SIZE="3")

from ranks import forked_process, preload  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature, backends in DistTestCases.backend_feature.items():
    if feature not in ("gpu", "cuda", "xpu"):
        backends.add("tessera")

from torch.testing._internal.distributed import distributed_test  # noqa: E402

WANTED = re.compile(r"test_(all_|broadcast|reduce|gather|scatter|barrier|send|isend|irecv|recv|batch|Distributed.*CPU)")
ELSEWHERE = re.compile("cuda|nccl|gpu", re.IGNORECASE)

preload(distributed_test.__name__)


class C10d(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # The server that forks the ranks has the environment of its own start; a test has folders of its own.
        self.file_of_environment = self.environment_of(self.file_name)
        with open(self.file_of_environment, "w") as file:
            json.dump(dict(os.environ), file)
        self._start_processes(forked_process)

    def tearDown(self):
        super().tearDown()
        os.unlink(self.file_of_environment)

    @staticmethod
    def environment_of(file_name):
        return file_name + ".environment"

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        with open(cls.environment_of(file_name)) as file:
            os.environ.update(json.load(file))
        super()._run(rank, test_name, file_name, pipe, **kwargs)


for name in dir(C10d):
    if name.startswith("test_") and (not WANTED.match(name) or ELSEWHERE.search(name)):
        getattr(C10d, name).__test__ = False
