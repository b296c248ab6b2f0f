"""Ranks for tests: real processes that meet in a process group, run one function, and report."""

import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import forkserver

import torch
import torch.distributed as dist

import tessera.backend  # noqa: F401  registers the backend

# Every rank would import torch anew; a server that has done so once forks them.
_context = multiprocessing.get_context("forkserver")
forked_process = _context.Process


def preload(*modules):
    """From now on the server has imported these too. Before the first test it need not be started again for that."""
    forkserver._forkserver._stop()
    _context.set_forkserver_preload(["torch.distributed.tensor", "tessera.backend", "pytest", *modules])


preload()


class RankFailed(AssertionError):
    """What the ranks that failed have to say."""


def start_group(rank, size, store_file, backend="tessera", timeout_s=60.0):
    store = dist.FileStore(store_file, size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))


def _be_rank(results, rank, size, folder, backend, timeout_s, hosts, fn, args):
    if hosts is not None:
        os.environ["TESSERA_HOSTS"] = str(hosts)
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    try:
        if backend is not None:
            start_group(rank, size, os.path.join(folder, "store"), backend, timeout_s)
        result = fn(rank, size, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        results.put((rank, None, result))
    except BaseException:
        results.put((rank, traceback.format_exc(), None))


def run_ranks(size, fn, *args, backend="tessera", timeout_s=60.0, limit_s=150.0, may_die=(), hosts=None):
    """fn(rank, size, *args) on `size` processes, in a default group of `backend` (None: in no group). Returns what it
    returned, by rank. A rank in `may_die` need not report. The ranks take each other for those of `hosts` hosts.
    Raises RankFailed with the tracebacks."""
    with tempfile.TemporaryDirectory() as folder:
        results = _context.Queue()
        ranks = [
            forked_process(
                target=_be_rank, args=(results, r, size, folder, backend, timeout_s, hosts, fn, args), daemon=True
            )
            for r in range(size)
        ]
        for process in ranks:
            process.start()
        reports = {}
        end = time.monotonic() + limit_s
        expected = set(range(size)) - set(may_die)
        while not expected <= set(reports) and time.monotonic() < end:
            dead = [r for r in expected - set(reports) if ranks[r].exitcode is not None]
            try:
                rank, error, result = results.get(timeout=1.0)
                reports[rank] = (error, result)
            except Exception:
                if dead:
                    break
        slow = set()
        for r, process in enumerate(ranks):
            process.join(timeout=max(0.0, min(10.0, end - time.monotonic())))
            if process.is_alive():
                slow.add(r)
                process.kill()
                process.join()
    wrong = [f"rank {r}:\n{error}" for r, (error, _) in sorted(reports.items()) if error is not None]
    wrong += [f"rank {r}: no report, exit code {ranks[r].exitcode}" for r in sorted(expected - set(reports))]
    ended_badly = [r for r in sorted((expected & set(reports)) - slow) if ranks[r].exitcode != 0]
    wrong += [f"rank {r}: exit code {ranks[r].exitcode} after its report" for r in ended_badly]
    if wrong:
        raise RankFailed("\n".join(wrong))
    return [reports[r][1] if r in reports else None for r in range(size)]
