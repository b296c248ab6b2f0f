"""Compiled code on several ranks."""

import pytest
import tessera
import torch


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """No graph that an earlier version has left on the disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def test_another_number_of_ranks_is_another_program():
    def step(x):
        gathered, sizes = tessera.all_gather(x)
        return gathered.sum() / len(sizes) + tessera.reduce_scatter(x, op="avg").sum()

    fast = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)

    def rank_main(comm):
        results = []
        for function in (step, fast):
            x = torch.ones(8, 2, requires_grad=True)
            loss = function(x)
            loss.backward()
            results.append((loss.item(), x.grad[0, 0].item()))
        return results

    for ranks in (3, 2):
        for eager, compiled in tessera.run(ranks, rank_main, timeout=200):
            assert compiled == eager
