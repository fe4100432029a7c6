import pytest
import torch

from evenkeel.lab import Transformer, find_arm
from evenkeel.lab.training import measure_cost, norm_calls


@pytest.mark.parametrize(("name", "has_norms"), [("none", False), ("olmo2", True), ("pre-batch", True)])
def test_cost(name, has_norms):
    model = Transformer(find_arm(name), depth=2, width=12, heads=2, context=5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    cost = measure_cost(model, torch.randint(256, (2, 6)), rounds=3)
    assert cost["step_seconds"] > 0
    assert (cost["norm_seconds"] > 0) is has_norms
    assert (cost["norm_share"] > 0) is has_norms
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_every_norm_is_counted():
    model = Transformer(find_arm("olmo2"), depth=3, width=12, heads=2, context=5)
    assert sum(count for _, count in norm_calls(model, torch.randint(256, (2, 5)))) == len(model.norms())
