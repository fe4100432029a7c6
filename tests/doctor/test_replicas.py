"""The weights of processes in two numbers: alike for copies, whoever reads them, and never waited for."""

import types

import pytest
import torch
from doctor.faults.families import Cnn, program
from torch import distributed, nn

from evenkeel.doctor import probes


@pytest.fixture
def group(monkeypatch):
    """A store and the rank of who looks at it; no process but this one."""
    rank, store = [0], distributed.HashStore()
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank[0])
    monkeypatch.setattr(distributed, "group", group_of(store))
    return rank


def group_of(store):
    """The group of all processes, that met at a store."""
    return types.SimpleNamespace(WORLD=types.SimpleNamespace(get_group_store=lambda: store))


def replica(model, rank, group):
    """What a process of a rank holds: the watches of one model have one number in every process."""
    group[0] = rank
    norms = {"norm": model[1].weight}
    made = probes.Replicas(model, norms)
    made.name = made.name.rpartition("/")[0]
    return made


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))


def leave(replica, step, rank, group):
    group[0] = rank
    replica.leave(step, probes.to_numbers(replica.digest([])))


def test_copies_leave_the_same_numbers_and_others_do_not(group):
    models = [model() for _ in range(3)]
    with torch.no_grad():
        models[2][1].weight[5] = torch.nextafter(models[2][1].weight[5], torch.tensor(2.0))
    replicas = [replica(made, rank, group) for rank, made in enumerate(models)]
    for rank, made in enumerate(replicas):
        leave(made, 10, rank, group)
    for made in replicas:
        found = made.found()
        assert [r.rank for r in found] == [0, 1, 2]
        assert found[0].digest == found[1].digest != found[2].digest
        assert all(0 <= number < 2**24 for r in found for number in r.digest)


def test_nobody_waits_and_the_store_stays_small(group):
    replicas = [replica(model(), rank, group) for rank in range(2)]
    for step in range(1, 21):
        leave(replicas[0], step, 0, group)
    assert replicas[0].found() == ()
    leave(replicas[1], 18, 1, group)
    assert [(r.rank, r.step) for r in replicas[0].found()] == [(0, 18), (1, 18)]
    assert replicas[0].read(1, 0) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_place_of_a_value_counts(group, dtype):
    first, second = model().to(dtype), model().to(dtype)
    with torch.no_grad():
        first[1].weight[:2] = torch.tensor([2.0, 3.0])
        second[1].weight[:2] = torch.tensor([3.0, 2.0])
    numbers = [probes.to_numbers(replica(made, 0, group).digest([])) for made in (first, second)]
    assert numbers[0] != numbers[1]


def test_a_store_that_is_gone_ends_no_training(group, monkeypatch):
    def refuse(*_):
        raise distributed.DistNetworkError("connection reset by peer")

    class Gone:
        set = check = refuse

    monkeypatch.setattr(distributed, "group", group_of(Gone()))
    made = replica(model(), 0, group)
    made.steps.append(1)
    assert made.found() == ()
    leave(made, 2, 0, group)
    assert made.digest([]) == []


def test_one_process_leaves_nothing():
    report = program(Cnn, 1).watched(steps=4, every=2)
    assert report.measured.replicas == ()
    assert "replicas-differ" not in report.applied
