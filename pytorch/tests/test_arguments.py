"""Arguments that are wrong on one rank alone: every rank gets the error, at once, and the communicator lives on."""

import math

import numpy
import pytest
import tessera
import torch
import torch.distributed as dist
from tessera.compat import mirasol, musiclm, spear_tts, st_moe
from test_errors import raised

ONE_OF_THREE = 1


def refused(kind, right, wrong, words=()):
    """Three ranks, of which one calls it wrong."""

    def rank_main(comm):
        try:
            (wrong if comm.rank == ONE_OF_THREE else right)()
        except Exception as error:
            return error, tessera.all_gather(torch.ones(1))[1].tolist()  # the next call is as ever
        return None, None

    outcomes = tessera.run(3, rank_main, timeout=60)
    for error, after in outcomes:
        assert isinstance(error, kind) and isinstance(error, dist.DistError), repr(error)
        assert after == [1, 1, 1]
        assert str(error) == str(outcomes[0][0])
        assert f"rank  {ONE_OF_THREE}: " in str(error) and "test_arguments.py:" in str(error), error
        for word in words:
            assert word in str(error)
        assert error.__context__ is None or error.__suppress_context__


def tensor():
    return torch.ones(3, 3)


def array():
    return numpy.ones((3, 3))


# The call, its arguments that are right, and for each name what it does not take.
NO_INT = ["0", 1.0, None, [0], 1j]
NO_STR = [None, 1, dist.ReduceOp.SUM, b"sum"]
NO_SIZES = [["1", "1", "1"], "111", object(), [None, 1, 1], [2**70, 0, 0], [[1], [2, 3]]]
CALLS = {
    "all_gather": ([], {"dim": NO_INT, "sizes": NO_SIZES, "grad": NO_STR}),
    "gather_sizes": ([], {"dim": NO_INT}),
    "reduce_scatter": ([], {"dim": NO_INT, "sizes": NO_SIZES, "op": NO_STR}),
    "all_reduce": ([], {"op": NO_STR}),
    "all_to_all": ([0, 1], {"split_dim": NO_INT, "concat_dim": NO_INT, "sizes": NO_SIZES}),
    "all_to_all_v": ([[1, 1, 1]], {"send_sizes": [*NO_SIZES, None], "recv_sizes": NO_SIZES, "dim": NO_INT}),
    "broadcast": ([], {"root": NO_INT}),
    "scatter": ([], {"root": NO_INT, "dim": NO_INT}),
    "gather": ([], {"root": NO_INT, "dim": NO_INT}),
    "reduce": ([], {"root": NO_INT, "op": NO_STR}),
}
POSITIONS = {"split_dim": 0, "concat_dim": 1, "send_sizes": 0}
TYPES = [
    pytest.param(call, name, value, id=f"{call}-{name}-{value!r:.24}")
    for call, (_, arguments) in CALLS.items()
    for name, values in arguments.items()
    for value in values
]


@pytest.mark.parametrize("make", [tensor, array], ids=["torch", "numpy"])
@pytest.mark.parametrize("call, name, value", TYPES)
def test_a_wrong_type(make, call, name, value):
    fn, given = getattr(tessera, call), CALLS[call][0]

    def wrong():
        args, named = list(given), {}
        if name in POSITIONS:
            args[POSITIONS[name]] = value
        else:
            named[name] = value
        fn(make(), *args, **named)

    kind = (TypeError, ValueError) if name.endswith("sizes") else TypeError
    refused(kind, lambda: fn(make(), *given), wrong, [f"{call}: {name}"])


@pytest.mark.parametrize("make", [tensor, array], ids=["torch", "numpy"])
@pytest.mark.parametrize("name, value", [("op", "zzz"), ("op", ""), ("op", "\ud800"), ("grad", "foo"), ("dim", 2**70)])
def test_a_value_that_there_is_not(make, name, value):
    fn = tessera.reduce_scatter if name == "op" else tessera.all_gather
    refused(ValueError, lambda: fn(make()), lambda: fn(make(), **{name: value}), [f"{name} is "])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("x", [1, "text", [1, 2], (torch.ones(1), None), {}, object(), torch.float32], ids=repr)
def test_what_is_no_tensor(call, x):
    fn, given = getattr(tessera, call), CALLS[call][0]
    refused(TypeError, lambda: fn(tensor(), *given), lambda: fn(x, *given), ["neither a tensor nor an array"])


@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
def test_lists(op):
    fn = getattr(tessera, op)
    xs = [tensor(), tensor()]
    refused(TypeError, lambda: fn(xs), lambda: fn([tensor(), None]), ["x[1] is None"])
    for value in (None, 1.5):
        name = {"all_gather": "dim", "all_reduce": "op"}[op]
        refused(TypeError, lambda: fn(xs), lambda value=value: fn(xs, value), [f"{name} is "])
    assert len(fn([numpy.ones(2), numpy.ones(3)])) == 2


class Word(str):
    pass


def test_what_stands_for_an_int_or_a_str():
    def rank_main(comm):
        x = torch.full((2, comm.rank + 1), 1.0)
        for one in (numpy.int64(1), numpy.int8(1), numpy.array(1), torch.tensor(1), True):
            for mine in (x, x.numpy(), [x]):
                result = tessera.all_gather(mine, one, grad=Word("sum"))
                assert (result[0] if isinstance(mine, list) else result)[0].shape == (2, 6)
            assert tessera.broadcast(x if comm.rank == 1 else None, one).shape == (2, 2)
        for sizes in (numpy.array([1, 2, 3]), (1, 2, 3), range(1, 4), [numpy.int64(1), 2, 3], torch.tensor([1, 2, 3])):
            for mine in (x, x.numpy()):
                assert tessera.all_gather(mine, 1, sizes)[0].shape == (2, 6)
        for mine in ([x[:, :1]], x[:, :1], x[:, :1].numpy()):
            total = tessera.all_reduce(mine, Word("sum"))
            assert float((total[0] if isinstance(mine, list) else total).sum()) == 6

    tessera.run(3, rank_main, timeout=60)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, 3).to_sparse(),
        lambda: torch.ones(3, 3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(3, 3), 1.0, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        lambda: torch.ones(3, 3).to_mkldnn(),
        lambda: numpy.ones(3, dtype=object),
        lambda: numpy.ones(3, dtype=">f4"),
        lambda: numpy.array(["a", "b", "c"]),
        lambda: numpy.ones(3, dtype="u2"),
    ],
    ids=["sparse", "csr", "quantized", "nested", "mkldnn", "object", "swapped", "str", "u2"],
)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_cannot_be_taken(call, make):
    fn, given = getattr(tessera, call), CALLS[call][0]
    x = make()
    if call in ("broadcast", "scatter"):  # which take the root's
        given = [ONE_OF_THREE]
    right = (lambda: fn(None, *given)) if call in ("broadcast", "scatter") else (lambda: fn(tensor(), *given))
    refused(TypeError, right, lambda: fn(x, *given))


@pytest.mark.parametrize("op", ["prod", "min", "max"])
def test_reductions_without_a_gradient(op):
    needs = torch.ones(3, 3, requires_grad=True)
    for fn in (tessera.all_reduce, tessera.reduce_scatter, tessera.reduce):
        refused(ValueError, lambda fn=fn: fn(tensor(), op=op), lambda fn=fn: fn(needs, op=op), ["no linear adjoint"])
    refused(
        ValueError, lambda: tessera.all_reduce([tensor()], op), lambda: tessera.all_reduce([needs], op), ["detach x"]
    )


def test_forward_mode():
    from torch.autograd import forward_ad

    def wrong(fn):
        with forward_ad.dual_level():
            fn(forward_ad.make_dual(tensor(), tensor()))

    for fn in (tessera.all_gather, tessera.all_reduce, tessera.broadcast):
        refused(ValueError, lambda fn=fn: fn(tensor()), lambda fn=fn: wrong(fn), ["use backward()"])


def read_only(*shape):
    made = numpy.arange(float(math.prod(shape))).reshape(shape)
    made.flags.writeable = False
    return made


def test_what_is_only_read_may_be_read_only():
    def rank_main(comm):
        x = read_only(3, 3)
        results = [
            tessera.all_gather(x)[0],
            tessera.reduce_scatter(x),
            tessera.all_reduce(x),
            tessera.all_to_all(x, 0, 1)[0],
            tessera.all_to_all_v(x, [1, 1, 1])[0],
            tessera.broadcast(x),
            tessera.scatter(x)[0],
            tessera.gather(x)[0],
            tessera.reduce(x),
            tessera.redistribute(x, tessera.plan(tessera.Layout("x=3", "P"), "R", [3, 3], "float64")),
            tessera.redistribute(x, tessera.plan(tessera.Layout("x=3", "R"), "R", [3, 3], "float64")),
        ]
        assert all(result.flags.writeable for result in results if result is not None)
        assert not tessera.split(x, 0, [1, 1, 1]).flags.writeable  # a view of it
        if comm.rank == 0:
            tessera.send(x, 1)
            tessera.send(x, 1)
        if comm.rank == 1:
            assert tessera.recv(0)[0].shape == (3, 3)
            with pytest.raises(tessera.ShapeError, match="cannot be written"):
                tessera.recv(0, out=x)
            tessera.recv(0)
        numpy.testing.assert_array_equal(results[2], 3 * x)

    tessera.run(3, rank_main, timeout=60)


def test_split():
    x = torch.ones(4, 3)
    for mine in (x, x.numpy()):
        for dim in (2, -3, 2**40):
            for error in raised(2, lambda comm, mine=mine, dim=dim: tessera.split(mine, dim, [2, 2])):
                assert isinstance(error, tessera.ShapeError) and "test_arguments.py:" in str(error)
        for dim, sizes in (("0", [2, 2]), (None, [2, 2]), (0, ["2", "2"]), (0, None), (0, 2), (0, [2.0, 2.0])):
            for error in raised(2, lambda comm, mine=mine, dim=dim, sizes=sizes: tessera.split(mine, dim, sizes)):
                assert isinstance(error, tessera.ArgumentTypeError) and "test_arguments.py:" in str(error)
    for wrong in (None, 1.0, [1.0], "x"):
        (error,) = raised(1, lambda comm, wrong=wrong: tessera.split(wrong, 0, [1]))
        assert isinstance(error, tessera.ArgumentTypeError)
    for scalar in (torch.tensor(1.0), numpy.array(1.0)):
        assert tessera.run(1, lambda comm, scalar=scalar: tessera.split(scalar, 0, [1]))[0].shape == (1,)
    parts = tessera.run(2, lambda comm: tessera.split(x.numpy(), numpy.int64(0), numpy.array([1, 3])))
    assert [part.shape for part in parts] == [(1, 3), (3, 3)]


def test_messages():
    def rank_main(comm):
        for wrong in ("1", None, 1.0, 2**40):
            with pytest.raises((TypeError, ValueError), match="test_arguments.py") as caught:
                tessera.send(torch.ones(1), wrong)
            assert isinstance(caught.value, dist.DistError)
        for x in (None, [1.0], "x"):
            with pytest.raises(tessera.ArgumentTypeError, match="x is .*test_arguments.py"):
                tessera.send(x, 1 - comm.rank)
        for named in ({"source": "0"}, {"tag": None}, {"out": [1.0]}):
            with pytest.raises(tessera.ArgumentTypeError, match="test_arguments.py"):
                tessera.recv(**named)

    tessera.run(2, rank_main, timeout=60)


@pytest.mark.parametrize("ranks", [0, -1, "2", 2.0, None, 2**40])
def test_run(ranks):
    kind = ValueError if isinstance(ranks, int) else TypeError
    with pytest.raises(kind, match="ranks is") as caught:
        tessera.run(ranks, lambda comm: None)
    assert isinstance(caught.value, tessera.Error)


def test_run_takes_numpys_integers_and_functions_only():
    assert tessera.run(numpy.int64(2), lambda comm: comm.rank) == [0, 1]
    with pytest.raises(TypeError, match="fn is"):
        tessera.run(2, None)
    with pytest.raises(ValueError, match="not positive"):
        tessera.run(1, lambda comm: None, timeout=0)


def test_a_module_is_checked_when_it_is_made():
    for named, kind in (({"grad": "nope"}, ValueError), ({"grad": None}, TypeError), ({"dim": "1"}, TypeError)):
        with pytest.raises(kind, match="AllGather: .*test_arguments.py"):
            tessera.AllGather(**{"dim": 1, **named})
    assert tessera.AllGather(numpy.int64(1)).dim == 1


def test_groups():
    for group in (5, "world", 0, ""):
        for x in (torch.ones(1), numpy.ones(1)):
            with pytest.raises(tessera.ArgumentTypeError, match="group is"):
                tessera.all_gather(x, group=group)

    def rank_main(comm):
        comm.split("0" if comm.rank == ONE_OF_THREE else 0)

    errors = raised(3, rank_main, timeout=60)
    assert all(isinstance(error, tessera.ArgumentTypeError) and "color is '0'" in str(error) for error in errors)


COMPAT = {
    "st_moe": lambda x, dim=0, sizes=None: st_moe.AllGather(dim=dim)(x, sizes),
    "musiclm": lambda x, dim=0, sizes=None: musiclm.AllGather(dim)(x, sizes),
    "musiclm-sum": lambda x, dim=0, sizes=None: musiclm.AllGather(dim, all_reduce_grads=True)(x, sizes),
    "mirasol": lambda x, dim=0, sizes=None: mirasol.all_gather(x, dim, sizes),
    "spear_tts": lambda x, dim=0, sizes=None: spear_tts.all_gather(x, dim, sizes),
    "plain": st_moe.all_gather_variable_dim,
}


@pytest.mark.parametrize("name", COMPAT)
def test_drop_ins(name):
    fn = COMPAT[name]
    for value in ("0", None, 1.0):
        refused(TypeError, lambda: fn(tensor()), lambda value=value: fn(tensor(), value), ["dim is "])
    for value in ([3, 3, 3], (3, 3, 3), "333"):
        refused(TypeError, lambda: fn(tensor()), lambda value=value: fn(tensor(), 0, value), ["give a tensor of"])
    for value in (None, [1.0], 1.0, numpy.ones(2)):
        refused(TypeError, lambda: fn(tensor()), lambda value=value: fn(value), ["t is "])
    assert tessera.run(3, lambda comm: fn(tensor(), numpy.int64(1))[0].shape) == [(3, 9)] * 3


def test_the_other_drop_ins():
    same = st_moe.all_gather_same_dim
    refused(TypeError, lambda: same(tensor()), lambda: same(None), ["t is None"])
    right = lambda: st_moe.gather_sizes(tensor(), dim=0)  # noqa: E731
    refused(TypeError, right, lambda: st_moe.gather_sizes([1], dim=0), ["t is a list"])
    refused(TypeError, right, lambda: st_moe.gather_sizes(tensor(), dim="0"), ["dim is '0'"])


def test_redistribute():
    layout = tessera.Layout("x=3", "S0")
    plan = tessera.plan(layout, "R", [3, 3], "float32")
    part = torch.ones(1, 3)
    right = lambda: tessera.redistribute(part, plan)  # noqa: E731
    for x, target in ((part, None), (part, "R"), (part, [1]), ([1.0], plan), ("x", plan), (None, "R")):
        refused(TypeError, right, lambda x=x, target=target: tessera.redistribute(x, target))
    for convention, kind in (("other", ValueError), (None, TypeError)):
        refused(kind, right, lambda c=convention: tessera.redistribute(part, plan, convention=c), ["convention is"])
    refused(TypeError, right, lambda: tessera.arrays.redistribute(part.numpy(), "R"), ["plan is 'R'"])

    sharded = lambda: tessera.ShardedTensor(part, layout, [3, 3])  # noqa: E731
    for target in (None, 5, [None], object()):
        refused(TypeError, lambda: sharded().redistribute("R"), lambda target=target: sharded().redistribute(target))
    refused(TypeError, lambda: sharded().redistribute("R"), lambda: sharded().redistribute("R", convention=1))
    make = tessera.ShardedTensor.from_local
    for args in ((None, layout), ([1.0], layout), (part, "S0"), (part, None), (part, layout, 3), (part, layout, ["3", 3])):
        refused(TypeError, lambda: make(part, layout), lambda args=args: make(*args))
        if len(args) == 2:
            with pytest.raises(TypeError, match="ShardedTensor: .*test_arguments.py"):
                tessera.ShardedTensor(*args, [3, 3])


def test_arrays_have_no_gradient_to_choose():
    assert tessera.all_gather(numpy.ones(2), grad="mean")[1] == [2]


def test_numbers_without_dimensions_stay_so():
    def rank_main(comm):
        x = numpy.array(1.0 + comm.rank)
        assert tessera.all_reduce(x).shape == () and tessera.broadcast(x).shape == ()
        assert tessera.all_gather(x)[0].tolist() == [1, 2] and tessera.all_gather(numpy.float32(2))[0].tolist() == [2, 2]
        return float(tessera.all_reduce(numpy.float64(2)))

    assert tessera.run(2, rank_main) == [4.0, 4.0]


def test_layouts():
    for args in ((5, "S0"), ("x=2", 5), ("x=2", [None]), (None, None)):
        with pytest.raises(TypeError):
            tessera.Layout(*args)
    for source in (None, 5, torch.ones(2)):
        with pytest.raises(TypeError):
            tessera.plan(source, "R", [4])


class Fails:
    def __index__(self):
        raise RuntimeError("no number")

    __iter__ = __index__


def test_what_fails_when_it_is_looked_at():
    for make in (tensor, array):
        refused(TypeError, lambda: tessera.all_gather(make()), lambda: tessera.all_gather(make(), Fails()), ["dim is a Fails"])
        refused(TypeError, lambda: tessera.all_gather(make()), lambda: tessera.all_gather(make(), 0, Fails()), ["sizes is"])


def test_no_shape_is_not_the_shape_of_a_scalar():
    layout = tessera.Layout("x=3", "S0")
    for shape in ([], iter([3, 3, 3])):
        make = tessera.ShardedTensor.from_local
        errors = raised(3, lambda comm: make(torch.ones(1), layout, shape if comm.rank == 1 else None), timeout=60)
        assert all(isinstance(error, tessera.ShapeError) for error in errors), errors
    assert tessera.ShardedTensor(torch.ones(2), tessera.Layout("x=1", "S0"), iter([2])).shape == (2,)


def test_what_no_other_rank_waits_for():
    with pytest.raises(tessera.ArgumentTypeError, match="dtensor is 5.*test_arguments.py"):
        tessera.ShardedTensor.from_dtensor(5)
    with pytest.raises(tessera.ArgumentTypeError, match="group is"):
        tessera.barrier(group="world")
    for x in (torch.ones(2, 2).to_sparse(), torch.nested.nested_tensor([torch.ones(1), torch.ones(1)])):
        with pytest.raises(tessera.ArgumentTypeError, match="sparse or nested"):
            tessera.split(x, 0, [2])
    with pytest.raises(tessera.ArgumentTypeError, match="sizes is a Tensor"):
        tessera.split(torch.ones(2), 0, torch.ones(1, dtype=torch.long, device="meta"))
