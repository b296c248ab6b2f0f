"""The stubs: typical uses as mypy sees them, and beside what is there at run time."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("mypy")

HERE = os.path.dirname(os.path.abspath(__file__))
# What mypy's stubtest cannot look into, or is assigned by another module.
ALLOWED = r"""
tessera\._core\..*  # nanobind's functions and classes are of kinds that it does not know
tessera\._backend\.ProcessGroupTessera\.__init__
tessera\._by_schema\._names  # what functools.cache makes has no parameters
tessera\._functions\._none
tessera\.libtessera(_torch)?
tessera\.compat\._gather\._answer
tessera\.compat\.dtensor\.MeshTopoInfo\.build_from_mesh
"""
WITHOUT_TORCH = """
[mypy]
warn_unused_ignores = True
[mypy-torch.*]
follow_imports = skip
"""


def test_stubs(tmp_path):
    """All three at once: each takes seconds to read torch."""
    (tmp_path / "allowed").write_text(ALLOWED)
    (tmp_path / "without_torch.ini").write_text(WITHOUT_TORCH)
    python = [sys.executable, "-m"]

    def cache(name):  # of its own: two at once in one may end in an internal error of mypy's
        return ["--cache-dir", str(tmp_path / name)]

    commands = [
        [*python, "mypy.stubtest", "tessera", "--concise", "--ignore-unused-allowlist", "--allowlist", "allowed"],
        [*python, "mypy", *cache("uses"), "--warn-unused-ignores", os.path.join(HERE, "typed_uses.py")],
        [*python, "mypy", *cache("arrays"), "--config-file", "without_torch.ini", os.path.join(HERE, "typed_arrays.py")],
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(command, cwd=tmp_path, **pipes) for command in commands]
    said = [each.communicate(timeout=300)[0] for each in running]
    assert [each.returncode for each in running] == [0, 0, 0], "\n".join(said)


def test_the_stub_of_the_core_has_all_names():
    """Which stubtest is told not to look at."""
    import ast

    from tessera import _core

    with open(os.path.splitext(os.path.splitext(_core.__file__)[0])[0] + ".pyi") as file:
        stub = ast.parse(file.read())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    told = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert told == {name for name in dir(_core) if not name.startswith("_")}
    for name, node in classes.items():
        members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        members |= {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}
        there = {member for member in vars(getattr(_core, name)) if not member.startswith("_")}
        assert {member for member in members if not member.startswith("_")} == there, name
