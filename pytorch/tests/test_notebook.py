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


def drawn(notebook):
    return [output.data["text/html"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]


def test_it_prints_and_draws_what_stands_in_it():
    notebook = nbformat.read(NOTEBOOK, 4)
    before, pages_before = printed(notebook), drawn(notebook)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert all(before) and printed(notebook) == before
    # What a page looks like may change; that it is the drawing of this plan may not.
    for pages in (pages_before, drawn(notebook)):
        (page,) = pages
        assert page.startswith("<iframe srcdoc=") and "&lt;svg" in page and "S0[3,5],R" in page and "R,S1" in page
