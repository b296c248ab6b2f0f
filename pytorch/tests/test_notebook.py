"""The notebook, executed again: it prints what stands in it."""

import os
import re

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/pytorch/ragged.ipynb")


def printed(notebook):
    """By cell. The file that a cell is said to be in has a number for its name."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [re.sub(r"\d+\.py", "cell.py", "".join(output.get("text", "") for output in cell.outputs)) for cell in cells]


def test_it_prints_what_stands_in_it():
    notebook = nbformat.read(NOTEBOOK, 4)
    before = printed(notebook)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert all(before) and printed(notebook) == before
