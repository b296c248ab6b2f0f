"""Errors as Python sees them: their classes, the line they name, and that every rank gets them."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import tessera
import torch
import torch.distributed as dist


def raised(ranks, fn, **options):
    """What each rank raised."""

    def rank_main(comm):
        try:
            fn(comm)
        except Exception as error:  # all of them are looked at
            return error
        return None

    return tessera.run(ranks, rank_main, **options)


def test_classes():
    assert issubclass(tessera.Error, dist.DistError)
    assert issubclass(tessera.MismatchError, ValueError)
    assert issubclass(tessera.ShapeError, ValueError)
    assert issubclass(tessera.DTypeError, TypeError)
    assert issubclass(tessera.TimeoutError, TimeoutError)


def test_a_mismatch_names_the_users_line_on_every_rank():
    def gather(comm):
        tessera.all_gather(torch.ones(2, 3 + comm.rank))

    line = gather.__code__.co_firstlineno + 1
    errors = raised(3, gather)
    assert [type(error) for error in errors] == [tessera.MismatchError] * 3
    assert len({str(error) for error in errors}) == 1
    assert f"test_errors.py:{line}" in str(errors[0])
    assert "dim 1 is 4, rank 0 has 3" in str(errors[0])


def test_a_module_is_called_by_the_user_and_not_by_torch():
    module = tessera.AllGather(0)

    def gather(comm):
        module(torch.ones(2, 3 + comm.rank))

    assert f"test_errors.py:{gather.__code__.co_firstlineno + 1}" in str(raised(2, gather)[0])


def test_an_error_in_backward_names_the_line_of_the_forward():
    lines = []

    def rank_main(comm):
        x = torch.ones(2, 2, requires_grad=True)
        lines.append(sys._getframe().f_lineno + 1)
        gathered, _ = tessera.all_gather(x)
        if comm.rank == 0:
            gathered.sum().backward()
        else:
            tessera.barrier()

    errors = raised(2, rank_main)
    assert [type(error) for error in errors] == [tessera.MismatchError] * 2
    assert f"test_errors.py:{lines[0]}" in str(errors[0]) and "reduce_scatter" in str(errors[0])


@pytest.mark.parametrize("x", [None, 1.0, "text", [[1.0]], {"a": 1}], ids=str)
@pytest.mark.parametrize("call", [tessera.all_gather, tessera.reduce_scatter, tessera.gather], ids=lambda f: f.__name__)
def test_what_is_no_tensor(call, x):
    with pytest.raises(TypeError, match="neither a tensor nor an array"):
        call(x)


def test_a_root_that_has_nothing_to_cut():
    for call in (tessera.scatter, tessera.broadcast):
        errors = raised(2, lambda comm: call(None))
        assert all(isinstance(error, tessera.ShapeError) for error in errors)
        assert "rank  0" in str(errors[1]) and "x is undefined on the root" in str(errors[1])


def test_a_dtype_that_tessera_has_not():
    errors = raised(2, lambda comm: tessera.all_gather(torch.ones(2, dtype=torch.uint16 if comm.rank else torch.int16)))
    assert all(isinstance(error, tessera.DTypeError) and "x.view(torch.int16)" in str(error) for error in errors)


def test_timeouts():
    def rank_main(comm):
        comm.timeout = math.inf
        assert 1e6 < comm.timeout < math.inf
        for wrong in (0, -1, math.nan):
            with pytest.raises(tessera.Error, match="is not positive"):
                comm.timeout = wrong
        tessera.barrier()

    tessera.run(2, rank_main, timeout=math.inf)


@pytest.mark.parametrize("sizes", [[2, 1], [1, 1, 1], [3, 3], [-1, 4], [2.5, 2.5], [], 2])
def test_wrong_sizes_are_refused(sizes):
    errors = raised(2, lambda comm: tessera.all_gather(torch.ones(2), sizes=sizes))
    assert all(isinstance(error, tessera.ShapeError) for error in errors)


@pytest.mark.parametrize("sizes", [[2, 1], [1, 1, 1], [-1, 5]])
def test_a_split_must_be_a_cut(sizes):
    errors = raised(2, lambda comm: tessera.split(torch.ones(4), 0, sizes))
    assert all(isinstance(error, tessera.ShapeError) for error in errors)


def test_dtypes_that_differ():
    errors = raised(2, lambda comm: tessera.all_gather(torch.ones(2, dtype=[torch.float32, torch.int32][comm.rank])))
    assert all(isinstance(error, tessera.MismatchError) for error in errors)


def test_what_one_rank_cannot_pass_is_told_to_all():
    errors = raised(2, lambda comm: tessera.all_gather(torch.ones(2, dtype=[torch.int16, torch.uint16][comm.rank])))
    assert all(isinstance(error, tessera.DTypeError) and "rank  1" in str(error) for error in errors)
    errors = raised(2, lambda comm: tessera.all_gather(torch.ones(2).to_sparse() if comm.rank else torch.ones(2)))
    assert all(isinstance(error, tessera.Error) and "to_dense" in str(error) for error in errors)


def test_a_timeout():
    def rank_main(comm):
        if comm.rank == 0:
            tessera.all_gather(torch.ones(2))
        time.sleep(1)

    (error, _) = raised(2, rank_main, timeout=0.3)
    assert isinstance(error, TimeoutError) and isinstance(error, dist.DistError) and "rank 1" in str(error)


def test_run_raises_the_first_cause():
    def rank_main(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        tessera.all_gather(torch.ones(1))

    with pytest.raises(KeyError, match="mine") as caught:
        tessera.run(3, rank_main)
    assert "raised on rank 1 of 3" in caught.value.__notes__


def test_a_communicator_that_is_gone_says_so():
    gathered = []

    def rank_main(comm):
        gathered.append(tessera.all_gather(torch.ones(2, requires_grad=True), group=comm)[0])

    tessera.run(1, rank_main, name="short-lived")
    with pytest.raises(tessera.Error, match="short-lived"):
        gathered[0].sum().backward()


def test_waiting_releases_the_gil():
    ticks = []

    def rank_main(comm):
        if comm.rank == 0:
            tessera.all_gather(torch.ones(1))
        else:
            for _ in range(5):
                time.sleep(0.01)
                ticks.append(threading.get_ident())
            tessera.all_gather(torch.ones(1))

    tessera.run(2, rank_main, timeout=30)
    assert len(ticks) == 5


# A shell starts what it puts into the background with Ctrl-C ignored, and a child inherits that.
HEEDS_CTRL_C = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


@pytest.mark.parametrize("place", ["run", "sleeping", "main"])
def test_ctrl_c_ends_a_wait(place):
    """In run(), whose ranks are threads, also where one is in no call; and on the main thread, which waits itself."""
    program = {
        "run": """
            import tessera, torch
            def rank_main(comm):
                if comm.rank == 0:
                    print("waiting", flush=True)
                    tessera.all_gather(torch.ones(1))
                while True:
                    time.sleep(0.01)
            tessera.run(2, rank_main)
        """,
        "sleeping": """
            import tessera, torch
            def rank_main(comm):
                if comm.rank == 0:
                    print("waiting", flush=True)
                    time.sleep(300)
                tessera.recv(0)
            try:
                tessera.run(2, rank_main)
            except KeyboardInterrupt:
                print("over", flush=True)
                raise
        """,
        "main": """
            import tessera, threading, torch
            from tessera import _comm
            ready, ended = threading.Event(), threading.Event()
            def rank_main(core):
                comms[core.rank] = core
                if len(comms) == 2:
                    ready.set()
                ended.wait()
            comms = {}
            threading.Thread(target=lambda: tessera._core.run(2, rank_main, "borrowed", 60.0), daemon=True).start()
            ready.wait()
            print("waiting", flush=True)
            try:
                tessera.all_gather(torch.ones(1), group=tessera.Comm(comms[0]))
            finally:
                ended.set()
        """,
    }[place]
    child = subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    os.kill(child.pid, signal.SIGINT)
    rest, errors = child.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and child.returncode != 0, errors
    assert rest == ("over\n" if place == "sleeping" else ""), rest


class Mine(RuntimeError):
    def __bool__(self):
        return False


@pytest.mark.parametrize("kind", [Mine, SystemExit, tessera.PeerLostError])
@pytest.mark.parametrize("waits", [True, False], ids=["in a call", "in none"])
def test_what_a_handler_raises_comes_out_of_run(kind, waits):
    raised = kind(7)

    def handler(number, frame):
        raise raised

    def rank_main(comm):
        if comm.rank == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        while comm.rank == 1 or not waits:
            time.sleep(0.01)
        comm.barrier()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(kind) as caught:
            tessera.run(2, rank_main, timeout=60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value is raised and not getattr(raised, "__notes__", [])


def test_another_torch_is_refused_with_the_remedy(monkeypatch):
    import importlib

    from tessera import _load_torch, _version

    monkeypatch.setattr(_version, "built_for_torch", "1.0.0")
    with pytest.raises(ImportError, match="built for torch 1.0.0.*pip install --no-build-isolation"):
        importlib.reload(_load_torch)
