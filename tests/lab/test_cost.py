import functools

import pytest
import torch

from evenkeel.lab import Transformer, find_arm
from evenkeel.lab.training import measure_cost, measure_in_turn, norm_calls


@pytest.mark.parametrize(("name", "has_norms"), [("none", False), ("olmo2", True), ("pre-batch", True)])
def test_cost(name, has_norms):
    model = Transformer(find_arm(name), depth=2, width=12, heads=2, context=5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    cost = measure_cost(model, torch.randint(256, (2, 6)), rounds=3)
    assert cost["step_seconds"] > 0
    assert (cost["norm_seconds"] > 0) is has_norms
    assert (cost["norm_share"] > 0) is has_norms
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_costs_in_turn_are_a_value_a_round_for_every_model():
    arms = ("none", "pre-rms")
    size = {"depth": 1, "width": 12, "heads": 2, "context": 5}
    models = {name: functools.partial(Transformer, find_arm(name), **size) for name in arms}
    costs = measure_in_turn(models, torch.randint(256, (2, 6)), rounds=2)
    assert list(costs) == ["none", "pre-rms"]
    assert all(len(values) == 2 for cost in costs.values() for values in cost.values())
    assert min(costs["none"]["step_seconds"]) > 0
    assert costs["none"]["norm_seconds"] == [0, 0]
    assert min(costs["pre-rms"]["norm_seconds"]) > 0


def test_every_norm_is_counted():
    model = Transformer(find_arm("olmo2"), depth=3, width=12, heads=2, context=5)
    assert sum(count for _, count in norm_calls(model, torch.randint(256, (2, 5)))) == len(model.norms())
