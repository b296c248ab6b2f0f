"""Ranks that are processes, started by `tessera run`: build/tessera, or the one on the PATH."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BUILT = os.path.join(ROOT, "build", "tessera")
LAUNCHER = BUILT if os.path.exists(BUILT) else shutil.which("tessera")
pytestmark = pytest.mark.skipif(LAUNCHER is None, reason="the command line is not built: make build")


def run(ranks, program, timeout=120):
    return subprocess.run(
        [LAUNCHER, "run", "-n", str(ranks), "--", sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_values_and_gradients(ranks):
    done = run(
        ranks,
        """
        import tessera, torch
        comm = tessera.Comm.from_env()
        for rows in (1, 1000):  # within a record, and read out of the other's memory
            x = torch.full((rows * comm.rank, 33), float(comm.rank), requires_grad=True)
            gathered, sizes = tessera.all_gather(x)
            assert sizes.tolist() == [rows * r for r in range(comm.size)]
            assert all(part.eq(r).all() for r, part in enumerate(gathered.split(sizes.tolist())))
            (gathered * (comm.rank + 1)).sum().backward()
            assert x.grad.eq(sum(range(1, comm.size + 1))).all()
        print("fine")
        """,
    )
    assert done.returncode == 0 and done.stdout.count("fine") == ranks, done.stdout + done.stderr


def test_a_rank_that_dies():
    before = set(os.listdir("/dev/shm"))
    done = run(
        2,
        """
        import os, tessera, torch
        comm = tessera.Comm.from_env()
        if comm.rank == 1:
            os.kill(os.getpid(), 9)
        try:
            tessera.all_gather(torch.ones(1))
        except tessera.PeerLostError as error:
            print("lost:", error)
        """,
    )
    assert "lost:" in done.stdout and "rank 1" in done.stdout, done.stdout + done.stderr
    assert set(os.listdir("/dev/shm")) <= before
