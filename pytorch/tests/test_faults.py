"""The faults of the files that tessera.compat stands in for: gone here, and still there.

fault_cases.py runs each case on both, in processes of its own: some of those files' end badly. Where a test says that
the copied file is right, it has been mended.
"""

import os
import subprocess
import sys

import pytest
import torch
from test_compat import needs_seeds

HERE = os.path.dirname(os.path.abspath(__file__))
pytestmark = needs_seeds


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(who, case) -> what came of it on each rank"""
    out = str(tmp_path_factory.mktemp("faults") / "outcomes")
    subprocess.run([sys.executable, os.path.join(HERE, "fault_cases.py"), out], check=True, timeout=300, cwd=HERE)
    return torch.load(out)


def both(outcomes, case):
    return outcomes["Tessera", case], outcomes["Copied", case]


def test_1_three_of_four_lack_a_name(outcomes):
    ours, theirs = both(outcomes, "as_shipped")
    assert ours == [dict.fromkeys(["mirasol", "musiclm", "spear_tts", "st_moe"], 3)] * 2
    assert all(str(rank[package]).startswith("NameError") for rank in theirs for package in rank if package != "st_moe")


def test_2_what_other_ranks_losses_contribute_is_lost(outcomes):
    ours, theirs = both(outcomes, "lost_gradient")
    assert max(ours) < 1e-6
    assert min(theirs) > 0.3


def test_3_the_gradient_of_a_sum_corrupts_the_heap(outcomes):
    ours, theirs = both(outcomes, "expanded_gradient")
    assert ours == [[2.0]] * 2
    assert theirs != [[2.0]] * 2


def test_3_a_sibling_gets_twice_its_gradient(outcomes):
    ours, theirs = both(outcomes, "sibling")
    assert ours == [[3.0]] * 2
    assert theirs == [[6.0]] * 2


def test_3_wrong_where_gradients_lie_differently(outcomes):
    right = [[[0.0, 2.0]], [[4.0, 6.0], [8.0, 10.0]]]
    ours, theirs = both(outcomes, "layouts")
    assert ours == right
    assert theirs != right


def test_3_double_backward(outcomes):
    right = [[12.0], [12.0, 24.0]]
    ours, theirs = both(outcomes, "double_backward")
    assert ours == right
    assert theirs != right


def test_3_a_rank_that_needs_no_gradient(outcomes):
    ours, theirs = both(outcomes, "one_needs_none")
    assert ours == [[2.0, 2.0], None]
    assert isinstance(theirs[0], str)  # an error, when the other has gone or the time is over


def test_4_made_before_there_is_a_group(outcomes):
    ours, theirs = both(outcomes, "made_before")
    assert ours == [(3, True)] * 2
    assert theirs == [(1, False), (2, False)]


def test_5_wrong_sizes(outcomes):
    ours, theirs = both(outcomes, "wrong_sizes")
    assert all("rank 0 gave sizes [2, 1]" in rank[0] and "[3, 2]" in rank[1] for rank in ours)
    assert theirs == [[[1.0, 0.0, 2.0], [1.0, 0.0, 0.0, 2.0, 2.0]]] * 2  # rows of zeros, and one cut off


def test_6_ranks_that_differ_in_dtype(outcomes):
    ours, theirs = both(outcomes, "other_dtype")
    assert all(rank.startswith("MismatchError") and "dtype is float64, rank 0 has float32" in rank for rank in ours)
    assert all(not isinstance(rank, str) and rank != [[1.0] * len(rank[0])] * 4 for rank in theirs)  # garbage


def test_6_ranks_that_differ_in_shape(outcomes):
    ours, theirs = both(outcomes, "other_shape")
    assert all(rank.startswith("MismatchError") and "dim 1 is 4, rank 0 has 2" in rank for rank in ours)
    assert theirs == [[4, 2, 4], [4, 4, 2]]  # each takes the other's rows for such as its own


def test_7_a_scalar(outcomes):
    ours, theirs = both(outcomes, "scalar")
    assert ours == [[0.0, 1.0]] * 2
    assert all(rank.startswith("IndexError") for rank in theirs)


def test_8_rows_to_columns_where_chunks_run_out(outcomes):
    """The original is PyTorch's, whose 2.13 has enough chunks by now and still needs as many rows on every rank."""
    columns = torch.arange(25.0).reshape(5, 5).split([2, 2, 1, 0], 1)
    right = [("Tensor", part.tolist()) for part in columns]
    ours, theirs = both(outcomes, "all_to_all")
    assert ours == right
    assert theirs != right
