"""Groups of other backends: torch.distributed on Gloo, and tessera's calls on its groups."""

import contextlib
import io
import os
import subprocess
import sys
import textwrap

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "backend"))
from ranks import run_ranks  # noqa: E402 - its folder comes first

BEGIN = """
import datetime, os, sys, warnings
import torch, torch.distributed as dist, tessera
def start(name="", seconds=60, backend="gloo"):
    dist.init_process_group(backend, init_method="file://" + store + name, rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))
start()
"""


def _run(rank, size, folder, program):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {"rank": rank, "size": size, "store": os.path.join(folder, "store")})
    return printed.getvalue()


@pytest.fixture
def on_gloo(tmp_path):
    """What each process printed; all must end well."""
    return lambda ranks, program: run_ranks(
        ranks, _run, str(tmp_path), BEGIN + textwrap.dedent(program), backend=None, limit_s=180
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_world(on_gloo, ranks):
    on_gloo(
        ranks,
        """
        for rows in (1, 2000):  # within a record, and read out of the other's memory
            x = torch.full((rows * rank, 33), float(rank), requires_grad=True)
            gathered, sizes = tessera.all_gather(x)
            assert sizes.tolist() == [rows * r for r in range(size)]
            assert all(part.eq(r).all() for r, part in enumerate(gathered.split(sizes.tolist())))
            (gathered * (rank + 1)).sum().backward()
            assert x.grad.eq(sum(range(1, size + 1))).all()
        dist.destroy_process_group()
        """,
    )


def test_programs_that_just_end(tmp_path):
    """Python ends them while their group and its communicator are there."""
    program = "import sys\nrank, size, store = int(sys.argv[1]), 2, sys.argv[2]\n" + BEGIN
    program += "assert tessera.all_reduce(torch.tensor(1)).item() == 2"
    command = [sys.executable, "-c", program]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")]) for rank in range(2)]
    assert [rank.wait(timeout=180) for rank in ranks] == [0, 0]


def test_a_group_of_some_and_the_world_again(on_gloo):
    on_gloo(
        4,
        """
        some = dist.new_group([1, 3])
        if rank in (1, 3):
            gathered, sizes = tessera.all_gather(torch.full((rank,), rank), group=some)
            assert gathered.tolist() == [1, 3, 3, 3] and sizes.tolist() == [1, 3]
        assert tessera.all_reduce(torch.tensor(rank)).item() == 6
        dist.destroy_process_group()
        start("again")
        assert tessera.all_reduce(torch.tensor(1.0)).item() == 4
        dist.destroy_process_group()
        """,
    )


def test_beside_the_groups_own_calls(on_gloo):
    """Both kinds of calls, one after the other, and the drop-in for a copied file."""
    on_gloo(
        3,
        """
        from tessera.compat import st_moe
        for turn in range(20):
            t = torch.tensor([float(rank + turn)])
            dist.all_reduce(t)
            assert t.item() == 3 + 3 * turn
            assert tessera.all_reduce(torch.tensor([rank + turn])).item() == 3 + 3 * turn
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gathered, sizes = st_moe.all_gather_variable_dim(torch.full((rank, 2), rank), dim=0)
        assert gathered.shape == (3, 2) and sizes.tolist() == [0, 1, 2]
        dist.destroy_process_group()
        """,
    )


def test_ranks_that_disagree_hear_the_same(on_gloo):
    printed = on_gloo(
        2,
        """
        try:
            tessera.all_gather(torch.zeros(2, 3 + rank))
        except tessera.MismatchError as error:
            print(error)
        assert tessera.all_reduce(torch.tensor(1)).item() == 2  # nothing was moved, and all goes on
        dist.destroy_process_group()
        """,
    )
    assert printed[0] == printed[1] and "dim 1 is 4, rank 0 has 3" in printed[0], printed


def test_a_rank_that_does_not_come_is_named(on_gloo):
    printed = on_gloo(
        2,
        """
        dist.barrier()  # Gloo fails where a rank is gone before another has connected
        dist.destroy_process_group()
        start("late", seconds=3)
        gone = store + "gone"
        if rank == 0:
            try:
                tessera.all_gather(torch.zeros(2))
            except TimeoutError as error:
                print(error)
            open(gone, "w").close()
        else:
            import time
            while not os.path.exists(gone):
                time.sleep(0.01)
        """,
    )
    assert "rank 1 of 2 did not come" in printed[0], printed


def test_numpy_arrays_go_to_the_same_ranks(on_gloo):
    on_gloo(
        2,
        """
        import numpy as np
        gathered, sizes = tessera.all_gather(np.full(rank + 1, rank))
        assert gathered.tolist() == [0, 1, 1] and sizes == [1, 2]
        gathered, sizes = tessera.all_gather(np.full(1, rank), group=dist.group.WORLD)
        assert gathered.tolist() == [0, 1]
        dist.destroy_process_group()
        """,
    )


def test_what_is_local_waits_for_nobody(on_gloo):
    on_gloo(
        2,
        """
        from tessera.compat import mirasol, st_moe
        if rank == 0:
            assert tessera.split(torch.arange(4), 0, [1, 3]).tolist() == [0]
            assert st_moe.split_by_rank(torch.arange(4).view(2, 2))[0].tolist() == [0, 1]
            assert mirasol.get_is_distributed()
        dist.barrier()
        dist.destroy_process_group()
        """,
    )


def test_a_first_call_that_is_compiled(on_gloo):
    on_gloo(
        2,
        """
        def gather(x):
            return tessera.all_gather(2 * x)[0]
        compiled = torch.compile(gather, backend="aot_eager", fullgraph=True)
        assert compiled(torch.full((rank + 1,), 1.0)).tolist() == [2.0] * 3
        dist.destroy_process_group()
        """,
    )


def test_gradients_that_differ_and_sizes_that_are_reused(on_gloo):
    on_gloo(
        2,
        """
        x = torch.ones(2, requires_grad=True)
        for grad in ("sum", "slice")[rank], ("sum", "bogus")[rank]:
            try:
                tessera.all_gather(x, grad=grad)
                raise SystemExit("no error")
            except tessera.Error as error:
                assert "grad is" in str(error), error
        counts = torch.tensor([1, 1])
        y, _ = tessera.all_to_all_v(x, counts)
        counts.zero_()  # for the next batch
        (y * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [1, 2], x.grad
        try:
            torch.func.jvp(tessera.all_reduce, (torch.ones(1),), (torch.ones(1),))
            raise SystemExit("no error")
        except tessera.Error as error:
            assert "forward-mode" in str(error), error
        dist.destroy_process_group()
        """,
    )


def test_the_tessera_backend_and_its_futures(on_gloo):
    """A callback may make calls of its own, as PowerSGD's does; the group's timeout is that of tessera's calls too."""
    on_gloo(
        2,
        """
        from tessera import _group
        dist.barrier()  # as above
        dist.destroy_process_group()
        start("tessera", seconds=50, backend="tessera")
        def again(future):
            t = torch.ones(1)
            return dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0]).wait()
        first = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
        assert first.wait().item() == 2
        assert tessera.all_reduce(torch.tensor(1)).item() == 2
        assert _group.comm().timeout == 50
        dist.destroy_process_group()
        """,
    )
