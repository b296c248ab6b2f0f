"""What users write, for a type checker: test_types.py gives it to mypy, and nobody runs it."""

import builtins
from typing import Any, Optional

import numpy
import tessera
import torch
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import assert_type

Floats = numpy.ndarray[Any, numpy.dtype[numpy.float64]]


def tensors(comm: tessera.Comm, x: torch.Tensor) -> int:
    rows, sizes = tessera.all_gather(x, 0, [1, 2], group=comm, grad="mean")
    assert_type(rows, torch.Tensor)
    assert_type(sizes, torch.Tensor)
    assert_type(tessera.all_gather([x, x]), list[tuple[torch.Tensor, torch.Tensor]])
    assert_type(tessera.all_reduce(x, "max"), torch.Tensor)
    assert_type(tessera.all_reduce([x]), list[torch.Tensor])
    assert_type(tessera.broadcast(x if comm.rank == 0 else None), torch.Tensor)
    assert_type(tessera.all_to_all_v(x, sizes), tuple[torch.Tensor, torch.Tensor])
    tessera.send(x, 1)
    assert_type(tessera.recv(0, out=x), tuple[torch.Tensor, int])
    tessera.AllGather(1, grad="slice", group=comm)(x)
    comm.timeout = 2 * comm.timeout
    return sizes.numel()


def arrays(comm: tessera.Comm, x: Floats) -> None:
    assert_type(tessera.all_gather(x, sizes=numpy.array([1, 2])), tuple[Floats, list[int]])
    assert_type(tessera.gather_sizes(x), list[int])
    assert_type(tessera.reduce_scatter(x, op="avg"), Floats)
    assert_type(tessera.all_reduce(x, group=comm), Floats)
    assert_type(tessera.all_to_all(x, 0, 1), tuple[Floats, list[int]])
    assert_type(tessera.all_to_all_v(x, [1, 2]), tuple[Floats, list[int]])
    assert_type(tessera.broadcast(x), Floats)
    assert_type(tessera.scatter(x), tuple[Floats, list[int]])
    assert_type(tessera.gather(x), tuple[Optional[Floats], list[int]])
    assert_type(tessera.reduce(x), Optional[Floats])
    assert_type(tessera.split(x, 0, [1, 2]), Floats)
    tessera.send(x, 1)
    assert_type(tessera.recv(out=x), tuple[Floats, int])
    plan = tessera.plan(tessera.Layout("x=2", "S0"), "R", [4])
    assert_type(tessera.redistribute(x, plan), Optional[Floats])


def layouts(x: DTensor, part: torch.Tensor) -> str:
    plan = tessera.plan(x._spec, [Shard(0)])
    assert_type(tessera.redistribute(x, [Shard(0)]), DTensor)
    assert_type(tessera.redistribute(x, "S0[1,3]"), tessera.ShardedTensor)
    assert_type(tessera.redistribute(x, plan), tessera.ShardedTensor)
    assert_type(tessera.redistribute(part, plan), torch.Tensor)
    sharded = tessera.ShardedTensor.from_local(part, tessera.Layout("x=2", "S0"))
    assert_type(tessera.redistribute(sharded, ["R"]), tessera.ShardedTensor)
    assert_type(sharded.to_dtensor(), DTensor)
    return plan._repr_html_()


def errors() -> builtins.TimeoutError:
    error: ValueError = tessera.MismatchError("")
    error = tessera.ShapeError("")
    wrong: TypeError = tessera.DTypeError("")
    lost: torch.distributed.DistError = tessera.PeerLostError("")
    print(error, wrong, lost)
    return tessera.TimeoutError("")


assert_type(tessera.run(2, tensors, torch.ones(2)), list[int])
tessera.all_reduce("a text")  # type: ignore[arg-type]
tessera.all_reduce(torch.ones(1), "zzz")  # type: ignore[call-overload]
