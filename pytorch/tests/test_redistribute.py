"""redistribute(): ShardedTensors on ranks that are threads, and the operator."""

import itertools

import pytest
import tessera
import torch


# ShardedTensors on ranks that are threads -----------------------------------------------------------------------------


def part_of(whole, layout, rank):
    box = layout.box(list(whole.shape), rank)
    if box is None:
        return whole.new_empty(0)
    return whole[tuple(slice(o, o + e) for o, e in zip(*box))]


LAYOUTS = ["S0", "S1", "R", "S0[3,0,1,1]", "S1[0,0,7,0]", "At(2)"]


@pytest.mark.parametrize("convention", ["global", "local"])
def test_ragged_layouts(convention):
    """Every pair; the gradient is that of a loss in which what is replicated counts once, or for each rank."""
    whole = torch.arange(35, dtype=torch.float64).reshape(5, 7)

    def rank_main(comm, source, target):
        layout = tessera.Layout(f"x={comm.size}", source)
        x = tessera.ShardedTensor.from_local(part_of(whole, layout, comm.rank).clone(), layout, whole.shape)
        moved = x.requires_grad_().redistribute(target, convention=convention)
        expected = part_of(whole, moved.layout, comm.rank)
        assert moved.local.shape == expected.shape and torch.equal(moved.local, expected)
        (moved.local * part_of(torch.cos(whole), moved.layout, comm.rank)).sum().backward()
        times = comm.size if target == "R" and convention == "local" and source != "R" else 1
        if source == "R" and convention == "local" and target != "R":
            total = tessera.all_reduce(x.grad)  # each rank has a term
            torch.testing.assert_close(total, torch.cos(whole))
        else:
            torch.testing.assert_close(x.grad, part_of(torch.cos(whole) * times, layout, comm.rank))

    for source, target in itertools.product(LAYOUTS, LAYOUTS):
        tessera.run(4, rank_main, source, target)


def test_a_sharded_tensor():
    def rank_main(comm):
        layout = tessera.Layout("x=3", "S0[2,0,3]")
        rows = torch.full((layout.box([5, 4], comm.rank)[1][0], 4), float(comm.rank))
        x = tessera.ShardedTensor.from_local(rows, layout)  # the shape is found out
        assert x.shape == (5, 4) and x.dtype == torch.float32 and "S0[2,0,3] on x=3 of [5, 4]" in repr(x)
        assert x.full_tensor()[:, 0].tolist() == [0, 0, 2, 2, 2]
        assert not x.detach().requires_grad
        plan = tessera.plan(x, "S1", max_bytes=1 << 20)
        assert x.redistribute(plan).local.shape == (5, [2, 2, 0][comm.rank])
        moved = tessera.redistribute(rows, plan)
        assert torch.equal(moved, x.redistribute("S1").local)
        rows.requires_grad_()
        tessera.redistribute(rows, plan).sum().backward()
        assert rows.grad.eq(1).all()
        with pytest.raises(tessera.ShapeError, match="the plan is for"):
            x.redistribute("S1").redistribute(plan)
        with pytest.raises(tessera.ShapeError, match=r"rank 1 has \[2, 4\]"):
            tessera.ShardedTensor.from_local(torch.ones(2, 4), layout, (5, 4))
        with pytest.raises(tessera.ShapeError, match="no mesh|fit|axis"):
            x.redistribute("S0,S1" if comm.rank == 1 else "R")
        with pytest.raises(tessera.Error, match="convention"):
            x.redistribute("R", convention="mine")
        for make in (tessera.ShardedTensor, tessera.ShardedTensor.from_local):
            with pytest.raises(tessera.ShapeError, match="the mesh x=4 has rank 3, the communicator only 3 ranks"):
                make(torch.ones(1, 4), tessera.Layout("x=4", "S0"), (4, 4))
        with pytest.raises(TypeError, match="knows no layout"):
            tessera.redistribute(rows, "S1")

    tessera.run(3, rank_main)


def test_scalars_one_rank_and_more_ranks_than_elements():
    def rank_main(comm):
        scalar = tessera.ShardedTensor(torch.tensor(float(comm.rank)), tessera.Layout(f"x={comm.size}", "P"), ())
        assert scalar.full_tensor().item() == sum(range(comm.size))
        one = tessera.Layout(f"x={comm.size}", "S0")
        few = torch.arange(2.0)
        x = tessera.ShardedTensor.from_local(part_of(few, one, comm.rank), one)
        assert x.shape == (2,) and torch.equal(x.full_tensor(), few)
        strided = torch.arange(12.0).reshape(4, 3).t()
        x = tessera.ShardedTensor(part_of(strided, one, comm.rank), one, strided.shape)
        assert torch.equal(x.full_tensor(), strided)

    for ranks in (1, 2, 5):
        tessera.run(ranks, rank_main)


# The operator ---------------------------------------------------------------------------------------------------------

op = torch.ops.tessera.redistribute.default


@pytest.mark.parametrize("source, target", [("S0", "R"), ("P(sum)", "S1"), ("P(avg)", "R"), ("S1", "S0"), ("R", "R")])
@pytest.mark.parametrize("convention", ["global", "local"])
def test_opcheck_and_gradcheck(source, target, convention):
    name = tessera.Comm.from_env().torch_name
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    rest = ((4, 6), f"{source} on x=1", f"{target} on x=1", "", 1.0, convention, name)
    torch.library.opcheck(op, (x, *rest))
    assert torch.autograd.gradcheck(lambda x: op(x, *rest), x)
    assert torch.autograd.gradgradcheck(lambda x: op(x, *rest), x)


def test_scale_counts_beside_a_plan_too():
    def rank_main(comm):
        for source, target in (("S0", "R"), ("P(avg)", "R"), ("P(sum)", "S0")):
            there = tessera.plan(tessera.Layout("x=2", source), target, [4, 3])
            for plan in (there, there.adjoint("local")):
                box = plan.source.box([4, 3], comm.rank)
                results = []
                for scale, text in ((1.0, ""), (3.0, ""), (1.0, plan.to_json()), (3.0, plan.to_json())):
                    x = torch.ones(box[1], requires_grad=True)
                    # Without the plan its own factor has to be given.
                    factor = scale if text else scale * plan.scale
                    y = op(x, (4, 3), plan.source.text, plan.target.text, text, factor, "local", comm.torch_name)
                    y.sum().backward()
                    results.append((y.detach() / scale, x.grad / scale))
                for result in results[1:]:
                    torch.testing.assert_close(result, results[0])

    tessera.run(2, rank_main)


@pytest.mark.parametrize("target", ["S0", "S1", "S0[3,0,1,1]", "R", "At(2)", "S0@b,a on a=2,b=2", "S0,S0 on a=2,b=2"])
def test_what_is_traced_has_the_shape_of_what_is_run(target):
    text = target if " on " in target else f"{target} on x=4"
    mesh = text.partition(" on ")[2]
    source = ",".join(["R"] * len(mesh.split(","))) + " on " + mesh

    def rank_main(comm):
        rest = ((5, 7), source, text, "", 1.0, "global", comm.torch_name)
        return op(torch.ones(5, 7), *rest).shape, op(torch.ones(5, 7, device="meta"), *rest).shape

    for real, meta in tessera.run(4, rank_main):
        assert real == meta


@pytest.mark.parametrize("source, target", [("S0", "S1"), ("R", "S1"), ("P(sum)", "S1"), ("S1", "S0"), ("R", "R")])
def test_results_are_row_major_as_compiled_code_takes_them_to_be(source, target):
    def rank_main(comm):
        layout = tessera.Layout("x=2", source)
        x = torch.ones(layout.box([4, 6], comm.rank)[1][::-1]).t()
        rest = ((4, 6), layout.text, f"{target} on x=2", "", 1.0, "global", comm.torch_name)
        assert op(x, *rest).stride() == op(x.to("meta"), *rest).stride()

    tessera.run(2, rank_main)


def test_compiled_once_for_every_size():
    comm = tessera.Comm.from_env()
    compiled = 0

    def counting(graph, inputs):
        nonlocal compiled
        compiled += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def step(x):
        rows, columns = x.shape
        y = op(x * 2, (rows, columns), "S0 on x=1", "S1 on x=1", "", 1.0, "global", comm.torch_name)
        return (y * y).sum()

    fast = torch.compile(step, fullgraph=True, backend=counting, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4, requires_grad=True)
        fast(x).backward()
        torch.testing.assert_close(x.grad, 8 * x.detach())
    assert compiled == 1


def test_what_is_wrong_is_told_to_every_rank():
    def rank_main(comm):
        def call(x, source="S0 on x=2", target="R on x=2", shape=(4, 3), plan=""):
            return op(x, shape, source, target, plan, 1.0, "global", comm.torch_name)

        wrong = comm.rank == 1
        with pytest.raises(tessera.ShapeError, match=r"\[3, 3\].*\[2, 3\]"):
            call(torch.ones(3 if wrong else 2, 3))
        with pytest.raises(tessera.ShapeError, match="is no layout"):
            call(torch.ones(2, 3), source="S0" if wrong else "S0 on x=2")
        with pytest.raises(tessera.MismatchError, match="S1"):
            call(torch.ones(2, 3), target="S1 on x=2" if wrong else "R on x=2")
        with pytest.raises(tessera.Error, match="the plan has no"):
            call(torch.ones(2, 3), plan="{}" if wrong else "")
        other = tessera.plan(tessera.Layout("x=2", "S0"), "S1", [4, 3]).to_json()
        with pytest.raises(tessera.ShapeError, match="the plan is for .* S0 to S1"):
            call(torch.ones(2, 3), plan=other if wrong else "")
        with pytest.raises(tessera.DTypeError):
            call(torch.ones(2, 3).to(torch.uint16) if wrong else torch.ones(2, 3))
        with pytest.raises(tessera.Error, match='redistribute on communicator "world" at .*no linear adjoint'):
            call(torch.ones(4, 3, requires_grad=True), source="P(max) on x=2")
        return call(torch.full((2, 3), float(comm.rank)))[:, 0].tolist()

    assert tessera.run(2, rank_main) == [[0, 0, 1, 1]] * 2
