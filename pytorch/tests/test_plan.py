"""Meshes, layouts and plans in Python; they talk to no rank."""

import json
import pickle
import subprocess
import sys

import numpy
import pytest
import tessera
import torch

MESH = tessera.Mesh("dp=2,tp=4")


def test_meshes():
    assert MESH == tessera.Mesh({"dp": 2, "tp": 4}) == tessera.Mesh([("dp", 2), ("tp", 4)])
    assert MESH != tessera.Mesh("dp=4,tp=2") and MESH != "dp=2,tp=4" and len({MESH, tessera.Mesh(str(MESH))}) == 1
    assert MESH.axes == [("dp", 2), ("tp", 4)] and MESH.ndim == 2 and MESH.size == 8 and MESH.ranks == list(range(8))
    assert MESH.coordinate(6) == (1, 2) and MESH.coordinate(8) is None and MESH.rank_at([1, 2]) == 6
    assert MESH.submesh(["tp"], 6).ranks == [4, 5, 6, 7]
    other = tessera.Mesh("tp=2", ranks=[3, 1])
    assert str(other) == "tp=2@3,1" and pickle.loads(pickle.dumps(other)) == other
    with pytest.raises(tessera.ShapeError, match="dp"):
        tessera.Mesh("dp=0")


def test_layouts():
    layout = tessera.Layout(MESH, "S0,R")
    assert layout == tessera.Layout("dp=2,tp=4", ["S0", "R"]) and layout.mesh == MESH
    assert layout.placements == ["S0", "R"] and layout.text == "S0,R on dp=2,tp=4" and not layout.is_replicated
    assert layout.box([5, 3], 6) == ((3, 0), (2, 3)) and layout.box([5, 3], 9) is None
    assert str(layout.dual("local")) == "S0,P(sum)" and str(layout.dual("global")) == "S0,R"
    ragged = tessera.Layout(MESH, "P(max),S-1[3,0,5,1]")
    assert ragged.cuts == [(-1, [1], [3, 0, 5, 1])] and str(ragged.resolved([2, 9])) == "P(max),S1[3,0,5,1]"
    nested = tessera.Layout(MESH, "S0@tp,dp")
    assert nested.cuts == [(0, [1, 0], [])] and nested.box([8], 1) == ((2,), (1,))
    assert pickle.loads(pickle.dumps(nested)) == nested
    with pytest.raises(tessera.ShapeError, match="sizes|add up"):
        ragged.resolved([2, 10])
    with pytest.raises(tessera.Error, match="convention"):
        layout.dual("both")


def test_a_plan_prints_and_draws_itself():
    plan = tessera.plan(tessera.Layout(MESH, "S0,R"), "R,S1", [4096, 4096], torch.bfloat16)
    assert str(plan) == plan.explain() and "S0,R → R,S1" in str(plan) and plan.dtype == "bfloat16"
    assert plan.cost_us() == pytest.approx(sum(step.cost_us for step in plan.steps()))
    assert plan.bytes_moved() == sum(step.bytes for step in plan.steps()) > 0
    assert plan.peak_bytes() == max(step.peak_bytes for step in plan.steps())
    assert plan.dtensor_us() == pytest.approx(plan.cost_us())  # a gather and a slice: DTensor's way, too
    assert plan.steps()[0].before == plan.source and plan.steps()[-1].after == plan.target
    again = tessera.Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json() == pickle.loads(pickle.dumps(plan)).to_json()
    assert json.loads(plan.to_json())["from"] == "S0,R"
    drawn = plan._repr_html_()
    assert drawn.startswith("<iframe srcdoc=") and "&lt;svg" in drawn and drawn.count('"') == 8
    wide = tessera.plan(tessera.Layout("x=65", "S0"), "R", [65])._repr_html_()
    assert wide.startswith("<pre>") and "S0 → R" in wide
    back = plan.adjoint()
    assert (str(back.source), str(back.target)) == ("R,S1", "S0,R")
    assert tessera.plan(tessera.Layout("x=4", "P(avg)"), "R", [8]).adjoint("local").scale == 0.25


@pytest.mark.parametrize("dtype", ["f32", "float32", torch.float32, numpy.float32, numpy.dtype("float32")])
def test_dtypes(dtype):
    assert tessera.plan(tessera.Layout("x=2", "S0"), "R", [4], dtype).dtype == "float32"


def test_limits_and_prices():
    source = tessera.Layout("x=4", "S0")
    with pytest.raises(tessera.Error, match="max_bytes = 100.*least that would do"):
        tessera.plan(source, "R", [64, 64], max_bytes=100)
    far = tessera.Topology.dtensor("x=4", devices_per_host=2)
    assert tessera.Topology.from_json(far.to_json()) == far != tessera.Topology.dtensor("x=4")
    assert tessera.plan(source, "R", [64, 64], topology=far).cost_us() > tessera.plan(source, "R", [64, 64]).cost_us()
    with pytest.raises(TypeError, match="shape"):
        tessera.plan(source, "R")
    with pytest.raises(TypeError, match="Layout"):
        tessera.plan("S0", "R", [4])
    with pytest.raises(tessera.DTypeError, match="no dtype"):
        tessera.plan(source, "R", [4], "float33")


def test_numpy_arrays_move_by_a_plan():
    plan = tessera.plan(tessera.Layout("x=3", "S0[1,0,4]"), "S1", [5, 7], "i64")
    outside = tessera.plan(tessera.Layout("x=2@0,2", "S0"), "At(1)", [5, 7], "i64")
    whole = numpy.arange(35).reshape(5, 7)

    def rank_main(comm):
        rows = numpy.split(whole, [1, 1])[comm.rank]
        moved = tessera.arrays.redistribute(rows, plan)
        numpy.testing.assert_array_equal(moved, whole[:, 3 * comm.rank : 3 * comm.rank + 3])
        mine = [whole[:3], None, whole[3:]][comm.rank]
        moved = tessera.arrays.redistribute(mine, outside)
        assert (moved is None) == (comm.rank != 2)
        same = tessera.arrays.redistribute(rows, tessera.plan(plan.source, plan.source, [5, 7], "i64"))
        assert not numpy.shares_memory(same, rows)

    tessera.run(3, rank_main)


def test_without_torch():
    program = """
import sys
sys.modules["torch"] = None
import tessera
print(tessera.plan(tessera.Layout("x=2", "S0"), "R", [4]).explain())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "all_gather(x)" in done.stdout
