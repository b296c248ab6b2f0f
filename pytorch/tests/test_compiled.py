"""Compiled code on two ranks: every rank makes every call, also where its own result is empty or has no use."""

import pytest
import tessera
import torch

from test_processes import LAUNCHER, run


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No graph that an earlier version has left on the disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def rooted(rows, x):
    """rows: none on rank 0."""
    gathered, _ = tessera.all_gather(rows * 2)
    loss = gathered.square().sum() + tessera.reduce_scatter(x * 2).sum()
    loss = loss + tessera.reduce(x * 3, 1).square().sum() + tessera.broadcast(x * 4).square().sum()
    loss = loss + tessera.gather(x * 5)[0].square().sum() + tessera.scatter(x * 6)[0].square().sum()
    return loss


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_ranks_without_a_result_take_part(backend):
    fast = torch.compile(rooted, fullgraph=True, backend=backend, dynamic=True)

    def rank_main(comm):
        for step in (3, 5):
            results = []
            for function in (rooted, fast):
                rows = torch.full((step * comm.rank, 2), 1.0 + step, requires_grad=True)
                x = torch.full((4, step), 1.0 + comm.rank, requires_grad=True)
                loss = function(rows, x)
                loss.backward()
                results.append((loss.detach(), rows.grad, x.grad))
            torch.testing.assert_close(results[1], results[0])
            assert len(results[0][1]) == step * comm.rank
        tessera.barrier()

    tessera.run(2, rank_main, timeout=400)


def test_another_number_of_ranks_is_another_program():
    def step(x):
        gathered, sizes = tessera.all_gather(x)
        return gathered.sum() / len(sizes) + tessera.reduce_scatter(x, op="avg").sum()

    fast = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)

    def rank_main(comm):
        results = []
        for function in (step, fast):
            x = torch.ones(8, 2, requires_grad=True)
            loss = function(x)
            loss.backward()
            results.append((loss.item(), x.grad[0, 0].item()))
        return results

    for ranks in (3, 2):
        for eager, compiled in tessera.run(ranks, rank_main, timeout=200):
            assert compiled == eager


def test_more_ranks_than_the_compiler_would_compile_for():
    def step(x):
        return tessera.all_gather(x)[0] * 2

    fast = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True, recompile_limit=64)
    assert tessera.run(9, lambda comm: len(fast(torch.ones(3, 2))), timeout=200) == [27] * 9


def test_where_shapes_are_worked_out_scatter_wants_a_tensor_on_every_rank():
    def rank_main(comm):
        x = torch.empty(5, 2, device="meta")
        if comm.rank == 0:
            assert tessera.scatter(x)[0].shape == (3, 2)
        for nothing in (None, x) if comm.rank else ():
            with pytest.raises(tessera.ShapeError, match="scatter: .* on every rank|scatter: the size of its result"):
                _scatter_meta(nothing, comm)
        # Of plain tensors: one that is given must fit.
        whole = torch.arange(10.0).reshape(5, 2)
        assert tessera.scatter(whole)[0].tolist() == whole.chunk(2)[comm.rank].tolist()
        with pytest.raises(tessera.MismatchError, match="dim 0 is 4, rank 0 has 5"):
            tessera.scatter(whole[comm.rank :])

    tessera.run(2, rank_main)


def _scatter_meta(x, comm):
    nothing = torch.empty((), device="meta")
    return torch.ops.tessera.scatter(nothing if x is None else x, 0, 0, None, None, comm.torch_name)


@pytest.mark.skipif(LAUNCHER is None, reason="the command line is not built: make build")
def test_opcheck_on_two_ranks():
    done = run(
        2,
        """
        import tessera, torch
        comm = tessera.Comm.from_env()
        name, rank = comm.torch_name, comm.rank

        def made(*shape):
            return torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def turned(*shape):
            return torch.randn(shape, dtype=torch.float64).t().requires_grad_()

        sizes, rows = torch.tensor([1, 3]), (rank + 1, 6)
        cases = [
            ("all_gather", made(*rows), 0, None, None, "sum", 1.0),
            ("all_gather", made(*rows), 0, torch.tensor([1, 2]), None, "mean", 1.0),
            ("all_gather", made(3, rank + 1), -1, None, None, "slice", 1.0),
            ("gather_sizes", made(*rows), 0),
            ("reduce_scatter", made(4, 6), 0, sizes, None, "avg", 1.0),
            ("reduce_scatter", made(3, 2), 0, None, None, "sum", 1.0),
            ("all_reduce", turned(4, 6), "avg", 1.0),
            ("all_reduce", made(), "sum", 1.0),
            ("all_to_all", made(*rows), 1, 0, None, None, None),
            ("all_to_all", made(*rows), 1, 0, torch.tensor([5, 1]), None, None),
            ("all_to_all_v", made(4, 6), sizes, None, 0, None),
            ("broadcast", turned(4, 6), True, 1, None, 1.0),
            ("scatter", made(4, 6), 1, 0, None, None),
            ("gather", made(*rows), 1, 0, None, None),
            ("reduce", made(4, 6), 1, "sum", 1.0),
            ("split", made(4, 6), 0, sizes, None),
            ("embed", made(int(sizes[rank]), 6), 0, sizes, None),
            ("redistribute", made(2, 6), [4, 6], "S0 on x=2", "S1 on x=2", "", 1.0, "global"),
            ("redistribute", made(2, 6), [4, 6], "S0 on x=2", "S0 on x=2", "", 1.0, "local"),
            ("redistribute", turned(4, 6), [6, 4], "P(sum) on x=2", "S1[1,3] on x=2", "", 1.0, "local"),
            ("redistribute", turned(4, 6), [6, 4], "R on x=2", "R on x=2", "", 1.0, "local"),
            ("redistribute", made(*[(4, 6), (0,)][rank]), [4, 6], "At(0) on x=2", "R on x=2", "", 1.0, "global"),
        ]
        for op, *arguments in cases:
            torch.library.opcheck(getattr(torch.ops.tessera, op).default, (*arguments, name))
            tessera.barrier()
        print("fine")
        """,
        timeout=400,
    )
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr
