"""Ranks that an MPI's launcher started, with the installed package and nothing else."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import tessera, torch
comm = tessera.Comm.from_env()
x = torch.full((comm.rank, 3000), float(comm.rank), requires_grad=True)
gathered, sizes = tessera.all_gather(x)
assert sizes.tolist() == [0, 1, 2]
gathered.sum().backward()
assert x.grad.eq(3).all()
assert tessera.all_reduce(torch.tensor(1), group=comm.split(comm.rank % 2)).item() == 2 - comm.rank % 2
assert comm.stats()["bytes_between_hosts"] > 0  # otherwise this would show nothing
print("fine", flush=True)
"""
# As root in a container, with more ranks than cores, which then must not spin.
OPTIONS = {"openmpi": ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"], "mpich": []}


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_values_and_gradients(mpi):
    launcher = shutil.which(f"mpirun.{mpi}")
    if launcher is None:
        pytest.skip(f"there is no {mpi} here")
    command = [launcher, *OPTIONS[mpi], "-n", "3", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, "TESSERA_HOSTS": "3"}
    )
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr
