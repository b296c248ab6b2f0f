"""The operators: opcheck, make_fx, and torch.compile of gathers whose size differs at every call."""

import subprocess
import sys
import types

import numpy
import pytest
import tessera
import torch
from torch.fx.experimental.proxy_tensor import make_fx

ops = torch.ops.tessera


@pytest.fixture(scope="module")
def alone():
    """A communicator of one rank."""
    return tessera.Comm.from_env()


def samples(comm):
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    sizes = torch.tensor([4])
    name = comm.torch_name
    return {
        "all_gather": (x, 0, None, None, "sum", 1.0, name),
        "gather_sizes": (x, 1, name),
        "reduce_scatter": (x, 0, None, None, "sum", 1.0, name),
        "all_reduce": (x, "avg", 1.0, name),
        "all_to_all": (x, 1, 0, None, None, None, name),
        "all_to_all_v": (x, sizes, None, 0, None, name),
        "broadcast": (x, True, 0, None, 1.0, name),
        "scatter": (x, 0, 0, None, None, name),
        "gather": (x, 0, 1, None, None, name),
        "reduce": (x, 0, "sum", 1.0, name),
        "split": (x, 0, sizes, None, name),
        "embed": (x, 0, sizes, None, name),
    }


@pytest.mark.parametrize(
    "name",
    "all_gather gather_sizes reduce_scatter all_reduce all_to_all all_to_all_v broadcast scatter gather reduce split "
    "embed".split(),
)
def test_opcheck(alone, name):
    torch.library.opcheck(getattr(ops, name).default, samples(alone)[name])


def test_make_fx(alone):
    def gather(x):
        gathered, sizes = tessera.all_gather(x, group=alone)
        return gathered * 2, sizes

    x = torch.randn(3, 2)
    graph = make_fx(gather, tracing_mode="symbolic")(x)
    assert "tessera.all_gather" in graph.code
    for rows in (3, 5, 0):
        x = torch.randn(rows, 2)
        assert torch.equal(graph(x)[0], x * 2)


@pytest.mark.parametrize("mode", ["symbolic", "real", "fake"])
def test_make_fx_of_a_gather_and_its_split(mode):
    def rank_main(comm):
        def there_and_back(x):
            gathered, sizes = tessera.all_gather(x, group=comm)
            summed = tessera.reduce_scatter(gathered * 2, sizes=sizes, group=comm)
            return tessera.split(gathered, 0, sizes, group=comm) + summed

        graph = make_fx(there_and_back, tracing_mode=mode)(torch.ones(3 + comm.rank, 2))
        assert "tessera.split" in graph.code
        for rows in (3, 5) if mode == "symbolic" else (3,):
            x = torch.full((rows + comm.rank, 2), comm.rank + 1.0)
            assert torch.equal(graph(x), x + 2 * x)

    tessera.run(1, rank_main)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_once_for_every_size(backend):
    """Each rank has its own number of rows at every step, and nothing is compiled again."""
    steps = [(5, 6), (8, 2), (2, 7), (6, 6), (9, 3)]  # at first none that the weights have: dynamo would make them one

    def rank_main(comm):
        compiled = 0

        def counting(graph, inputs):
            nonlocal compiled
            compiled += 1
            return torch._dynamo.lookup_backend(backend)(graph, inputs)

        def step(x, w):
            gathered, sizes = tessera.all_gather(x @ w, group=comm)
            return (gathered * gathered).sum() + sizes.sum() * 0

        # Dynamo keeps what it compiled with the code, which the two threads would share.
        code = step.__code__.replace(co_name=f"step_{comm.rank}")
        own = types.FunctionType(code, step.__globals__, None, None, step.__closure__)
        fast = torch.compile(own, fullgraph=True, backend=counting, dynamic=True)
        for rows in steps:
            whole = torch.randn(sum(rows), 4, generator=torch.Generator().manual_seed(sum(rows)))
            x = whole.split(list(rows))[comm.rank]
            w = torch.ones(4, 3, requires_grad=True)
            loss = fast(x, w)
            loss.backward()
            same = torch.ones(4, 3, requires_grad=True)
            expected = (whole @ same).square().sum()
            torch.testing.assert_close(loss, expected)
            # Of the two ranks' losses, this rank's rows: what DDP would add up and halve.
            ((x @ same).square().sum() * 2).backward()
            torch.testing.assert_close(w.grad, same.grad)
        return compiled

    assert tessera.run(2, rank_main, timeout=200) == [1, 1]


def test_compiled_without_naming_a_group():
    """In run() the group is the thread's, though the compiled code is one; outside it is the process."""

    def double(x):
        return tessera.all_gather(x)[0] * 2

    fast = torch.compile(double, fullgraph=True, backend="aot_eager", dynamic=True)
    assert fast(torch.ones(3, 2)).shape == (3, 2)
    assert tessera.run(2, lambda comm: fast(torch.ones(3 + comm.rank, 2)).shape) == [(7, 2)] * 2
    assert fast(torch.ones(4, 2)).shape == (4, 2)


def test_the_slice_gradient_and_split_compile(alone):
    def step(x):
        gathered, sizes = tessera.all_gather(x, group=alone, grad="slice")
        return tessera.split(gathered, 0, sizes, group=alone).sum()

    fast = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 2, requires_grad=True)
        fast(x).backward()
        assert x.grad.unique().tolist() == [1.0]


def test_the_other_collectives_compile():
    def step(x):
        y = tessera.all_reduce(x) + tessera.broadcast(x, 1)
        y, _ = tessera.all_to_all(y, 1, 0)
        gathered, _ = tessera.gather(y)
        part, _ = tessera.scatter(x * 2, 1)
        results = tessera.reduce(y), tessera.reduce_scatter(y), gathered, part
        return sum((result**2).sum() for result in results)

    fast = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)

    def rank_main(comm):
        for rows in (4, 6):
            x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(comm.rank)).requires_grad_()
            fast(x).backward()
            same = x.detach().clone().requires_grad_()
            step(same).backward()
            torch.testing.assert_close(x.grad, same.grad)

    tessera.run(2, rank_main, timeout=200)


def test_who_overrides_functions_sees_the_operator(alone):
    """Eager calls do not parse arguments by the schema; but a mode or a subclass is asked as ever."""
    seen = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Special(torch.Tensor):
        pass

    x = torch.ones(2, 3)
    with Watching():
        tessera.all_gather(x, group=alone)
    assert any("tessera.all_gather" in name for name in seen)
    assert type(tessera.all_gather(x.as_subclass(Special), group=alone)[0]) is Special
    assert tessera.all_gather(torch.nn.Parameter(x), group=alone)[0].requires_grad


def test_arguments_that_only_the_schema_knows(alone):
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(tessera.all_gather(x, numpy.int64(1), group=alone)[0], x)
    with pytest.raises((RuntimeError, TypeError), match="dim"):
        tessera.all_gather(x, "0", group=alone)


def test_sizes_are_not_baked_into_what_is_traced(alone):
    def gradient(x):
        gathered, _ = tessera.all_gather(x, group=alone)
        return torch.autograd.grad(gathered, x, gathered.detach() * 2)[0]

    graph = make_fx(gradient, tracing_mode="real")(torch.ones(2, 3, requires_grad=True))
    for rows in (2, 5):
        x = torch.randn(rows, 3, requires_grad=True)
        assert torch.equal(graph(x), 2 * x)


def test_export(alone):
    class Step(torch.nn.Module):
        def forward(self, x):
            gathered, sizes = tessera.all_gather(x, group=alone)
            return tessera.split(gathered, 0, sizes, group=alone) + tessera.all_reduce(x, group=alone)

    rows = {"x": {0: torch.export.Dim("rows")}}
    exported = torch.export.export(Step(), (torch.ones(3, 2),), strict=False, dynamic_shapes=rows)
    x = torch.randn(5, 2)
    assert torch.equal(exported.module()(x), 2 * x)


def test_meta_tensors_have_the_shapes_of_the_others():
    def rank_main(comm):
        sizes = [3, 0, 2]
        x = torch.ones(4, 5).t()

        def results(x, mine):
            return [
                *tessera.all_gather(mine, sizes=sizes),
                tessera.reduce_scatter(x, 1),
                tessera.reduce_scatter(x, sizes=sizes),
                tessera.all_reduce(x, "max"),
                tessera.broadcast(x, root=2),
                tessera.reduce(x, root=1),
                tessera.gather_sizes(mine),
                *tessera.all_to_all_v(x, sizes, [sizes[comm.rank]] * 3),
            ]

        real = results(x, x[: sizes[comm.rank]])
        calls = comm.stats()["calls"]
        meta = results(x.to("meta"), x[: sizes[comm.rank]].to("meta"))
        assert [(t.shape, t.stride(), t.dtype) for t in meta] == [(t.shape, t.stride(), t.dtype) for t in real]
        assert all(t.is_meta for t in meta) and comm.stats()["calls"] == calls
        with pytest.raises(tessera.ShapeError, match="all_gather: the size of its result is found out by the call"):
            tessera.all_gather(x.to("meta"))
        with pytest.raises(ValueError, match="2 sizes for 3 ranks"):
            tessera.all_gather(x.to("meta"), sizes=torch.tensor([2, 4]))

    tessera.run(3, rank_main)


def test_meta_tensors_are_refused_what_others_are():
    def rank_main(comm):
        real = torch.ones(4, 5)
        for error, text, call in [
            (tessera.ShapeError, "root 3 is none of the ranks 0 to 2", lambda x: tessera.broadcast(x, root=3)),
            (tessera.ShapeError, "root -1 is none of the ranks 0 to 2", lambda x: tessera.reduce(x, root=-1)),
            (tessera.ShapeError, "root 3 is none of the ranks 0 to 2", lambda x: tessera.gather(x, root=3)),
            (tessera.ShapeError, "root 3 is none of the ranks 0 to 2", lambda x: tessera.scatter(x, root=3)),
            (tessera.Error, 'op is "add"', lambda x: tessera.all_reduce(x, "add")),
            (tessera.Error, 'op is "add"', lambda x: tessera.reduce_scatter(x, op="add")),
            (tessera.Error, 'op is "add"', lambda x: tessera.reduce(x, op="add")),
            (TypeError, "complex64", lambda x: tessera.all_reduce(x.to(torch.complex64), "max")),
            (tessera.Error, 'grad is "all"', lambda x: tessera.all_gather(x, sizes=[4, 4, 4], grad="all")),
            (tessera.ShapeError, "dim", lambda x: tessera.gather_sizes(x, 2)),
        ]:
            for x in (real, real.to("meta")):
                with pytest.raises(error, match=text):
                    call(x)

    tessera.run(3, rank_main)


def test_importing_does_not_load_the_compiler():
    program = """
import sys, tessera
assert not {"torch._dynamo", "torch.distributed.tensor"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
