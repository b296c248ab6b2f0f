"""Ctrl-C ends whatever a rank waits for, long before the timeout; the others hear of it."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks, start_group

import tessera


def _started_and_asked(rank):
    work = dist.irecv(torch.ones(3), 1)
    work.get_future()  # a thread waits for it now
    time.sleep(0.2)
    work.wait()


def _destroyed(rank):
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.destroy_process_group()


def _destroyed_with_a_future(rank):
    dist.irecv(torch.ones(3), 1).get_future()
    time.sleep(0.2)  # a thread waits for it now
    dist.destroy_process_group()


def _behind_another(rank):
    dist.all_reduce(torch.ones(3), async_op=True)
    time.sleep(0.2)
    dist.all_reduce(torch.ones(3))


def _second_of_two(rank):
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
    works[1].wait()


WAITS = {
    "send": lambda rank: dist.send(torch.ones(3), 1),
    "recv": lambda rank: dist.recv(torch.ones(3), 1),
    "recv from any": lambda rank: dist.recv(torch.ones(3)),
    "isend": lambda rank: dist.isend(torch.ones(3), 1).wait(),
    "irecv": lambda rank: dist.irecv(torch.ones(3), 1).wait(timedelta(seconds=200)),
    "irecv with a future": _started_and_asked,
    "batch": lambda rank: dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(3), 1)])[0].wait(),
    "first async": lambda rank: dist.all_reduce(torch.ones(3), async_op=True).wait(),
    "async with timeout": lambda rank: dist.all_reduce(torch.ones(3), async_op=True).wait(timedelta(seconds=200)),
    "behind another": _behind_another,
    "barrier": lambda rank: dist.barrier(),
    "the second of two": _second_of_two,
    "objects": lambda rank: dist.all_gather_object([None, None], {"rank": rank}),
    "broadcast of objects": lambda rank: dist.broadcast_object_list([None], src=1),
    "new_group": lambda rank: dist.new_group([0, 1]),
    "destroy": _destroyed,
    "destroy with a future": _destroyed_with_a_future,
    "tessera.send": lambda rank: tessera.send(torch.ones(3), 1),
    "tessera.all_gather": lambda rank: tessera.all_gather(torch.ones(3)),
}


OWN = ("new_group", "tessera.send", "tessera.all_gather")  # have a communicator of their own: the group lives on


def interrupted(wait):
    """What wait() raises when SIGINT comes after a while, and how long that took."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    start = time.monotonic()
    timer.start()
    try:
        wait()
        time.sleep(1.0)  # what a destructor swallowed comes here
    except BaseException as error:
        return type(error), time.monotonic() - start
    return None, time.monotonic() - start


def _interrupted(rank, size, which):
    dist.barrier()
    if rank == 0:
        return interrupted(lambda: WAITS[which](rank))
    time.sleep(1.5)
    try:
        dist.all_reduce(torch.ones(1))
    except tessera.Error as error:
        return type(error), str(error)
    return None, ""


@pytest.mark.parametrize("hosts", [None, 2])
@pytest.mark.parametrize("which", WAITS)
def test_ctrl_c_ends(which, hosts):
    if hosts == 2 and (which in OWN or which.startswith("destroy")):
        pytest.skip("as on one host")
    own = which in OWN
    (raised, seconds), (heard, text) = run_ranks(
        2, _interrupted, which, hosts=hosts, timeout_s=3.0 if own else 250.0, limit_s=60.0
    )
    assert raised is KeyboardInterrupt and seconds < 10, (raised, seconds)
    if not own:
        assert heard in (tessera.AbortedError, tessera.PeerLostError), (heard, text)


def _at_the_start(rank, size, folder):
    if rank == 1:
        return None
    return interrupted(lambda: start_group(rank, size, os.path.join(folder, "store"), timeout_s=250.0))


def test_ctrl_c_ends_the_meeting(tmp_path):
    raised, seconds = run_ranks(2, _at_the_start, str(tmp_path), backend=None)[0]
    assert raised is KeyboardInterrupt and seconds < 10, (raised, seconds)


class Ended(Exception):
    pass


def _by_handler(rank, size):
    def handler(number, frame):
        raise Ended(number)

    signal.signal(signal.SIGUSR1, handler)
    dist.barrier()
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Ended):
            dist.recv(torch.ones(3), 1)
        return None
    time.sleep(1.0)
    with pytest.raises(tessera.AbortedError, match="rank 0 failed: interrupted"):
        dist.recv(torch.ones(3), 0)


def test_what_another_handler_raises_comes_as_it_is():
    run_ranks(2, _by_handler, timeout_s=250.0, limit_s=60.0)
