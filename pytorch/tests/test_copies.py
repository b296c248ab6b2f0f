"""copy, pickle and torch.save of what a model may have in it."""

import copy
import io
import pickle

import pytest
import tessera
import torch


def test_a_communicator_is_shared_by_copies():
    def rank_main(comm):
        assert copy.copy(comm) is comm and copy.deepcopy([comm])[0] is comm
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), tessera.AllGather(group=comm))
        again = copy.deepcopy(model)
        assert again[0].weight is not model[0].weight and again[1].group is comm
        gathered, sizes = again(torch.ones(comm.rank, 2))
        assert gathered.shape == (3, 3) and sizes.tolist() == [0, 1, 2]
        for save in (pickle.dumps, lambda it: torch.save(it, io.BytesIO())):
            with pytest.raises(TypeError, match=r'name="?\W?losses.*cannot be pickled.*state_dict\(\)'):
                save(model)
        model.load_state_dict(pickle.loads(pickle.dumps(model.state_dict())))

    tessera.run(3, rank_main, name="losses")


@pytest.mark.parametrize("placement", ["S0[1,3]", "R", "P(sum)"])
def test_sharded_tensors(placement):
    def rank_main(comm):
        rows = [1, 3][comm.rank] if placement.startswith("S") else 4
        sharded = tessera.ShardedTensor.from_local(torch.full((rows, 2), 1.0), tessera.Layout("x=2", placement))
        for again in (copy.copy(sharded), copy.deepcopy(sharded)):
            assert again.layout == sharded.layout and again.shape == sharded.shape and again.comm is comm
            assert torch.equal(again.full_tensor(), sharded.full_tensor())
        assert again.local is not sharded.local
        with pytest.raises(TypeError, match="ShardedTensor.local and .layout"):
            pickle.dumps(sharded)

    tessera.run(2, rank_main)


def test_values():
    mesh = tessera.Mesh("dp=2,tp=4")
    plan = tessera.plan(tessera.Layout(mesh, "S0,R"), "R,S1", [4096, 4096], "f64")
    values = [mesh, plan.source, plan.topology, plan, *plan.steps()]
    assert len(values) > 5
    for value in values:
        for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert type(again) is type(value) and repr(again) == repr(value) or isinstance(value, tessera.Topology)
            fields = [name for name in dir(value) if not name.startswith("_") and not callable(getattr(value, name))]
            assert all(getattr(again, name) == getattr(value, name) for name in fields)
