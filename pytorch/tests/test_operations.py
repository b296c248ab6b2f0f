"""Every collective against one process: values, gradients, and gradients of gradients."""

import pytest
import reference
import tessera
import torch

RANKS = [1, 2, 3, 4, 7]


def ragged(ranks, shape=(5, 3), dim=0, seed=0, dtype=torch.float64):
    """A tensor for each rank, of different extents along dim; with several ranks one has none."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for r in range(ranks):
        extents = list(shape)
        extents[dim] = (r * 2 + 3) % 5
        tensors.append(torch.randn(extents, generator=generator, dtype=dtype))
    return tensors


def alike(ranks, shape=(7, 4), seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(ranks)]


def cut(total, ranks):
    """Uneven sizes that add up to total; zeros among them."""
    sizes = [0] * ranks
    for i in range(total):
        sizes[(i * i) % ranks] += 1
    return sizes


def cases(n):
    send = [cut(x.shape[0], n) for x in ragged(n)]
    sizes = cut(7, n)
    root = n - 1
    return {
        "all_gather": (ragged(n), lambda x, r: tessera.all_gather(x)[0], lambda xs: reference.all_gather(xs)),
        "all_gather dim -1": (
            ragged(n, (2, 4), 1),
            lambda x, r: tessera.all_gather(x, -1)[0],
            lambda xs: reference.all_gather(xs, 1),
        ),
        "reduce_scatter": (alike(n), lambda x, r: tessera.reduce_scatter(x), lambda xs: reference.reduce_scatter(xs)),
        "reduce_scatter sizes avg": (
            alike(n),
            lambda x, r: tessera.reduce_scatter(x, 0, sizes, op="avg"),
            lambda xs: reference.reduce_scatter(xs, 0, sizes, "avg"),
        ),
        "all_reduce": (alike(n), lambda x, r: tessera.all_reduce(x), lambda xs: reference.all_reduce(xs)),
        "all_reduce avg": (
            alike(n),
            lambda x, r: tessera.all_reduce(x, "avg"),
            lambda xs: reference.all_reduce(xs, "avg"),
        ),
        "all_to_all": (
            ragged(n, (5, 6)),
            lambda x, r: tessera.all_to_all(x, 1, 0)[0],
            lambda xs: reference.all_to_all(xs, 1, 0),
        ),
        "all_to_all_v": (
            ragged(n),
            lambda x, r: tessera.all_to_all_v(x, send[r])[0],
            lambda xs: reference.all_to_all_v(xs, send),
        ),
        "broadcast": (alike(n), lambda x, r: tessera.broadcast(x, root), lambda xs: reference.broadcast(xs, root)),
        "scatter": (
            alike(n),
            lambda x, r: tessera.scatter(x, root, 0, sizes)[0],
            lambda xs: reference.scatter(xs, root, 0, sizes),
        ),
        "gather": (ragged(n), lambda x, r: tessera.gather(x, root)[0], lambda xs: reference.gather(xs, root, 0)),
        "reduce": (alike(n), lambda x, r: tessera.reduce(x, root), lambda xs: reference.reduce(xs, root)),
        "reduce avg": (
            alike(n),
            lambda x, r: tessera.reduce(x, root, "avg"),
            lambda xs: reference.reduce(xs, root, "avg"),
        ),
        "split": (
            alike(n),
            lambda x, r: tessera.split(x, 0, sizes),
            lambda xs: [x.split(sizes)[r] for r, x in enumerate(xs)],
        ),
    }


def loss_of(out, rank):
    """Not linear, so that there is a second gradient; another one on each rank."""
    return (out**3).sum() * (rank + 1)


def second(grad, rank):
    return (grad**2).sum() / (rank + 2)


def check_values_and_gradients(name, ranks, device="cpu"):
    inputs, collective, on_one_process = cases(ranks)[name]

    def rank_main(comm):
        x = inputs[comm.rank].clone().to(device).requires_grad_()
        out = collective(x, comm.rank)
        (first,) = torch.autograd.grad(loss_of(out, comm.rank), x, create_graph=True)
        second(first, comm.rank).backward()
        results = out.detach(), first.detach(), x.grad
        assert all(result.device.type == device for result in results)
        return [result.cpu() for result in results]

    results = tessera.run(ranks, rank_main)
    xs = [x.clone().requires_grad_() for x in inputs]
    outs = on_one_process(xs)
    loss = sum(loss_of(out, r) for r, out in enumerate(outs))
    firsts = torch.autograd.grad(loss, xs, create_graph=True, materialize_grads=True)
    sum(second(first, r) for r, first in enumerate(firsts)).backward()
    for r, (out, first, both) in enumerate(results):
        torch.testing.assert_close(out, outs[r].detach())
        torch.testing.assert_close(first, firsts[r].detach())
        expected = xs[r].grad if xs[r].grad is not None else torch.zeros_like(xs[r])
        torch.testing.assert_close(both, expected)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", list(cases(2)))
def test_values_and_gradients(name, ranks):
    check_values_and_gradients(name, ranks)


def test_lists_have_one_agreement_and_a_gradient_each():
    def rank_main(comm):
        a = torch.full((comm.rank, 2), float(comm.rank), requires_grad=True)
        b, scalar = torch.full((3,), comm.rank), torch.tensor(float(comm.rank), requires_grad=comm.rank == 1)
        before = comm.stats()["exchanges"]
        (rows, sizes), (others, _), (scalars, _) = tessera.all_gather([a, b, scalar])
        total, halved = tessera.all_reduce((a.sum(), b.float()), "avg")
        assert tessera.all_reduce([]) == []
        assert comm.stats()["exchanges"] == before + 3
        assert sizes.tolist() == [0, 1, 2] and rows[:, 0].tolist() == [1, 2, 2] and others.shape == (9,)
        assert scalars.requires_grad and not others.requires_grad and halved.tolist() == [1, 1, 1]
        (rows.sum() + scalars.sum() + total).backward()
        assert a.grad.unique().tolist() == ([4.0] if comm.rank else [])
        assert scalar.grad is None or scalar.grad.item() == 3
        with torch.set_grad_enabled(comm.rank != 0):  # of a slice no other rank takes part in the gradient
            (sliced, _), _ = tessera.all_gather([a, b], grad="slice")
        assert sliced.requires_grad == (comm.rank != 0)
        with pytest.raises(tessera.MismatchError, match="test_operations.py"):
            tessera.all_gather([a] if comm.rank else [a, b])
        with pytest.raises(tessera.DTypeError):
            tessera.all_reduce([a, b if comm.rank else b.to(torch.uint16)])

    tessera.run(3, rank_main, timeout=60)


def test_results_can_be_resized_like_any_tensor():
    def rank_main(comm):
        x = torch.arange(4.0) + comm.rank
        whole, _ = tessera.all_gather(x)
        expected = whole.clone()
        assert torch.equal(whole.resize_(1000)[: expected.numel()], expected)
        total = torch.add(torch.ones(50), torch.ones(50), out=tessera.all_reduce(torch.empty(0)))
        assert torch.equal(total, torch.full((50,), 2.0))

    tessera.run(2, rank_main)
