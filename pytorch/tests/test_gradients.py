"""What is particular about gradients across ranks."""

import pytest
import tessera
import torch


def test_sum_slice_and_mean():
    """Three ranks, each with the sum of all rows for its loss: the true gradient is 3."""

    def rank_main(comm, grad):
        x = torch.ones(comm.rank, 2, requires_grad=True)
        gathered, _ = tessera.all_gather(x, grad=grad)
        gathered.sum().backward()
        return x.grad.unique().tolist()

    assert tessera.run(3, rank_main, "sum")[1:] == [[3.0], [3.0]]
    assert tessera.run(3, rank_main, "mean")[1:] == [[1.0], [1.0]]
    assert tessera.run(3, rank_main, "slice")[1:] == [[1.0], [1.0]]
    with pytest.raises(tessera.Error, match='"sum", "mean" and "slice"'):
        tessera.run(3, rank_main, "average")


@pytest.mark.parametrize("grad", ["sum", "mean", "slice"])
def test_gradcheck(grad):
    """On one rank the numeric gradient is exact."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def gather(x):
        return tessera.all_gather(x, 1, grad=grad)[0]

    torch.autograd.gradcheck(gather, x)
    torch.autograd.gradgradcheck(gather, x)


@pytest.mark.parametrize("ranks", [2, 3])
def test_numeric_gradient_of_the_sum_of_all_losses(ranks):
    """A step of one rank's input changes every rank's loss; the gradient is the change of their sum."""
    inputs = [torch.randn(r + 1, 2, dtype=torch.float64) for r in range(ranks)]

    def loss(comm, x):
        gathered, _ = tessera.all_gather(x)
        return (gathered.sin() * (comm.rank + 1)).sum()

    def losses(comm, xs):
        return loss(comm, xs[comm.rank]).item()

    def gradients(comm):
        x = inputs[comm.rank].clone().requires_grad_()
        loss(comm, x).backward()
        return x.grad

    step = 1e-6
    for moved, gradient in enumerate(tessera.run(ranks, gradients)):
        for index in range(inputs[moved].numel()):
            ends = []
            for sign in (1, -1):
                xs = [x.clone() for x in inputs]
                xs[moved].view(-1)[index] += sign * step
                ends.append(sum(tessera.run(ranks, losses, xs)))
            assert gradient.view(-1)[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("needs", [0, 1, 2])
def test_a_rank_that_needs_no_gradient_takes_part(needs):
    def rank_main(comm):
        x = torch.ones(2, 2, requires_grad=comm.rank == needs)
        gathered, _ = tessera.all_gather(x)
        assert gathered.requires_grad
        gathered.sum().backward()
        return None if x.grad is None else x.grad.unique().tolist()

    assert tessera.run(3, rank_main) == [[3.0] if r == needs else None for r in range(3)]


def test_the_root_alone_needs_a_gradient():
    def rank_main(comm):
        weights = torch.ones(2, 2, requires_grad=True) if comm.rank == 0 else None
        (tessera.broadcast(weights).sum() * (comm.rank + 1)).backward()
        x = torch.arange(6.0, requires_grad=True) if comm.rank == 0 else None
        part, sizes = tessera.scatter(x, sizes=[1, 2, 3] if comm.rank == 0 else None)
        assert sizes.tolist() == [1, 2, 3]
        (part.sum() * (comm.rank + 1)).backward()
        return None if comm.rank else (weights.grad.unique().tolist(), x.grad.tolist())

    assert tessera.run(3, rank_main)[0] == ([6.0], [1, 2, 2, 3, 3, 3])


def test_nobody_needs_a_gradient():
    def rank_main(comm):
        plain = tessera.all_gather(torch.ones(2))[0].requires_grad
        with torch.no_grad():
            x = torch.ones(2, requires_grad=True)
            return plain, tessera.all_gather(x)[0].requires_grad

    assert tessera.run(2, rank_main) == [(False, False)] * 2


def test_no_grad_on_one_rank_is_an_error_on_all():
    def rank_main(comm):
        with torch.set_grad_enabled(comm.rank == 0):
            with pytest.raises(tessera.MismatchError, match="rank 0 needs a gradient, rank 1 is under no_grad"):
                tessera.all_gather(torch.ones(2, requires_grad=True))
        return tessera.all_gather(torch.ones(1))[0].tolist()

    assert tessera.run(2, rank_main) == [[1, 1]] * 2


def test_the_incoming_gradient_is_left_alone():
    """An expanded one, one that others in the graph use too, and one whose layout differs between ranks."""

    def rank_main(comm):
        x = torch.ones(2, 3, requires_grad=True)
        gathered, _ = tessera.all_gather(x)
        sibling = torch.ones_like(gathered, requires_grad=True)
        weights = torch.full_like(gathered, comm.rank + 1.0)
        (gathered * weights + sibling * weights).sum().backward()
        first = x.grad.clone()
        x.grad = None
        gathered, _ = tessera.all_gather(x)
        incoming = torch.ones(3, gathered.shape[0]).t() if comm.rank else torch.ones(gathered.shape)
        gathered.backward(incoming)
        assert incoming.unique().tolist() == [1]
        return first.unique().tolist(), sibling.grad.unique().tolist(), x.grad.unique().tolist()

    assert tessera.run(2, rank_main) == [([3.0], [1.0], [2.0]), ([3.0], [2.0], [2.0])]


def two_gathers(which):
    """Two gathers alike, and the gradients of both; which(rank, a, b) is the loss."""

    def rank_main(comm):
        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        first, _ = tessera.all_gather(a)
        second, _ = tessera.all_gather(b)
        for loss in which(comm.rank, first, second):
            loss.sum().backward()
        return a.grad, b.grad

    return rank_main


@pytest.mark.parametrize(
    "which",
    [
        lambda rank, a, b: [b if rank else 10 * a],
        lambda rank, a, b: [b, 10 * a] if rank else [10 * a, b],
    ],
    ids=["one each", "another order"],
)
def test_gradients_of_different_calls_are_not_added_up(which):
    text = "(?s)the call whose gradient it is is 1 call ago, rank 0 has 2 calls ago.*every rank's loss"
    with pytest.raises(tessera.MismatchError, match=text) as raised:
        tessera.run(2, two_gathers(which))
    line = two_gathers.__code__.co_firstlineno
    assert all(f"test_gradients.py:{line + n}" in str(raised.value) for n in (5, 6))


def test_gradients_in_the_same_order_are_of_the_same_calls():
    """Also where other calls came between, in a list, and twice over one graph."""

    def rank_main(comm):
        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        results = []
        for step in range(3):
            (first, _), (second, _) = tessera.all_gather([a, b])
            for _ in range(step):
                tessera.barrier()
            loss = (first * (comm.rank + 1)).sum() + (second * 10).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            results.append((a.grad[0].item(), b.grad[0].item()))
            a.grad = b.grad = None
        return results

    assert tessera.run(2, rank_main) == [[(6.0, 40.0)] * 3] * 2


def test_tensors_of_one_list_are_told_apart():
    def rank_main(comm):
        xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
        (first, _), (second, _) = tessera.all_gather(xs)
        (second if comm.rank else first).sum().backward()

    with pytest.raises(tessera.MismatchError, match="1 call ago, tensor 2 of its list, rank 0 has 1 call ago"):
        tessera.run(2, rank_main)


def test_max_has_no_gradient_and_says_so():
    def rank_main(comm):
        x = torch.tensor([1.0 + comm.rank], requires_grad=True)
        with pytest.raises(tessera.Error, match="no linear adjoint"):
            tessera.all_reduce(x, "max")
        return tessera.all_reduce(x.detach(), "max").item()

    assert tessera.run(2, rank_main) == [2.0, 2.0]


def test_module_and_scalars():
    def rank_main(comm):
        gather = tessera.AllGather()
        losses, sizes = gather(torch.tensor(float(comm.rank)))
        return losses.tolist(), sizes.tolist(), repr(gather)

    assert tessera.run(2, rank_main) == [([0.0, 1.0], [1, 1], "AllGather(dim=0, grad='sum')")] * 2


def test_without_a_group_there_is_one_rank():
    x = torch.randn(2, 3, requires_grad=True)
    gathered, sizes = tessera.all_gather(x)
    assert torch.equal(gathered, x) and sizes.tolist() == [2]
    gathered.sum().backward()
    assert x.grad.unique().tolist() == [1.0]
    assert tessera.all_gather(torch.tensor(3.0))[0].tolist() == [3.0]


def test_a_gradient_that_comes_too_late_leaves_no_line_to_the_next_call():
    """Its communicator is gone: so no call is made that would take the line."""
    late = tessera.run(1, lambda comm: tessera.all_gather(torch.ones(2, requires_grad=True))[0])[0]
    with pytest.raises(tessera.Error, match="none any more"):
        late.sum().backward()

    group = tessera.Comm.from_env()
    with pytest.raises(tessera.ArgumentError, match="torch.ops") as raised:
        torch.ops.tessera.all_reduce(torch.ones(2), "zzz", 1.0, group.torch_name)
    assert "test_gradients.py" not in str(raised.value)
