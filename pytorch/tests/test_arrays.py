"""NumPy arrays and whatever has __dlpack__; and the package without torch."""

import re
import subprocess
import sys

import numpy
import pytest
import tessera
import torch


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?", "c8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy(dtype, order):
    def rank_main(comm):
        mine = numpy.asarray(numpy.arange(3 * comm.rank).reshape(comm.rank, 3).astype(dtype), order=order)
        everything, sizes = tessera.all_gather(mine)
        assert sizes == [0, 1, 2] and isinstance(everything, numpy.ndarray) and everything.dtype == mine.dtype
        numpy.testing.assert_array_equal(tessera.split(everything, 0, sizes), mine)
        return everything

    results = tessera.run(3, rank_main)
    numpy.testing.assert_array_equal(results[0], results[2])


def test_the_other_collectives():
    def rank_main(comm):
        x = numpy.full((4, 2), comm.rank + 1.0)
        numpy.testing.assert_array_equal(tessera.all_reduce(x), numpy.full((4, 2), 3.0))
        assert tessera.reduce_scatter(x, sizes=numpy.array([1, 3])).shape == (1 + 2 * comm.rank, 2)
        assert tessera.all_to_all(x, 1, 0)[0].shape == (8, 1)
        assert tessera.all_to_all_v(x, [1, 3])[1] == ([1, 1] if comm.rank == 0 else [3, 3])
        root = tessera.broadcast(x)
        assert root.min() == 1 and root is not x
        root += 1
        assert x.min() == comm.rank + 1  # the root's result is not its argument
        assert tessera.scatter(x)[0].shape == (2, 2)
        gathered, sizes = tessera.gather(x)
        assert sizes == [4, 4] and (gathered is None) == (comm.rank == 1)
        assert (tessera.reduce(x, op="max") is None) == (comm.rank == 1)
        assert tessera.gather_sizes(x) == [4, 4]
        tessera.arrays.barrier()

    tessera.run(2, rank_main)


def test_messages():
    def rank_main(comm):
        if comm.rank == 0:
            tessera.send(numpy.arange(6.0).reshape(2, 3).T, 1, 7)
            tessera.send(torch.tensor(2 - 3j).conj(), 2)
            tessera.send(torch.arange(4.0, requires_grad=True).reshape(2, 2), 2)
            tessera.send(numpy.zeros((0, 2), "i4"), 1, 8)
            with pytest.raises(tessera.MismatchError):
                tessera.send(torch.ones(3), 1, 9)
        elif comm.rank == 1:
            came, sender = tessera.arrays.recv(tag=7)
            assert sender == 0 and numpy.from_dlpack(came).tolist() == [[0, 3], [1, 4], [2, 5]]
            assert tessera.recv(0, 8)[0].shape == (0, 2)
            with pytest.raises(tessera.MismatchError, match="test_arrays.py"):
                tessera.recv(0, 9, torch.empty(2))
        else:
            assert tessera.recv(0)[0].item() == 2 + 3j
            out = torch.zeros(2, 2)
            assert tessera.recv(0, out=out)[0] is out and out.tolist() == [[0, 1], [2, 3]]

    tessera.run(3, rank_main, timeout=60)


def test_anything_with_dlpack():
    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, stream=None):  # as before version 1 of the protocol
            return self.tensor.__dlpack__()

    def rank_main(comm):
        everything, sizes = tessera.all_gather(Foreign(torch.full((2,), comm.rank, dtype=torch.bfloat16)))
        assert everything.dtype == "bfloat16" and everything.shape == (4,)
        return torch.from_dlpack(everything).tolist()

    assert tessera.run(2, rank_main) == [[0, 0, 1, 1]] * 2


def test_without_torch():
    program = """
        import sys
        sys.modules["torch"] = None
        import numpy, tessera
        def rank_main(comm):
            return tessera.all_gather(numpy.full(comm.rank + 1, comm.rank))[0].tolist()
        assert tessera.run(2, rank_main) == [[0, 1, 1]] * 2
        try:
            tessera.all_gather([1.0])
            raise SystemExit("a list was taken")
        except TypeError as error:
            assert "x is a list, no array" in str(error)
        assert issubclass(tessera.Error, RuntimeError) and "torch._C" not in sys.modules
    """
    import textwrap

    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


def test_errors():
    def rank_main(comm):
        with pytest.raises(tessera.MismatchError, match="test_arrays.py"):
            tessera.all_gather(numpy.zeros((1, 2 + comm.rank)))

    tessera.run(2, rank_main)


@pytest.mark.parametrize("x", [numpy.ones(2), torch.ones(2)], ids=["numpy", "torch"])
def test_ranks_that_all_send_first_are_told_so(x):
    def rank_main(comm):
        with pytest.raises(tessera.TimeoutError, match="A send waits until its message is received") as raised:
            tessera.send(x, (comm.rank + 1) % comm.size)
        assert re.search(r"Last calls of rank \d: send to rank \d \(tag 0\) at test_arrays.py:\d+\n", str(raised.value))
        assert all(f"rank {rank}: last seen in send" in str(raised.value) for rank in range(comm.size))
        assert "send to rank" in comm.chrome_trace()

    tessera.run(3, rank_main, timeout=1.0)
