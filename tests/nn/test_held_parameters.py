"""Modules find their parameters wherever torch.nn's modules do."""

import pytest
import torch
from torch.nn.utils import parametrize, prune

from evenkeel import nn

every_norm = pytest.mark.parametrize("build", [nn.LayerNorm, nn.RMSNorm, nn.AddLayerNorm, nn.AddRMSNorm])


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def output(norm):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    arguments = (x, torch.zeros_like(x)) if isinstance(norm, nn.AddLayerNorm | nn.AddRMSNorm) else (x,)
    with torch.no_grad():
        y = norm(*arguments)
    return y[0] if isinstance(y, tuple) else y


@every_norm
def test_a_parametrization_is_applied(build):
    norm, plain = build(4), output(build(4))
    parametrize.register_parametrization(norm, "weight", Doubled())
    assert torch.equal(output(norm), 2 * plain)


@every_norm
def test_a_pruned_weight_is_used(build):
    norm = build(4)
    prune.custom_from_mask(norm, "weight", torch.tensor([1, 0, 1, 0]))
    assert torch.equal(output(norm)[:, 1::2], torch.zeros(3, 2))


@every_norm
def test_functional_call_replaces_the_weight(build):
    norm = build(4)
    x = torch.ones(2, 4)
    arguments = (x, x) if build in (nn.AddLayerNorm, nn.AddRMSNorm) else (x,)
    y = torch.func.functional_call(norm, {"weight": torch.zeros(4)}, arguments)
    assert torch.equal(y[0] if isinstance(y, tuple) else y, torch.zeros(2, 4))


@every_norm
def test_an_attribute_of_the_instance_comes_first(build):
    norm = build(4)
    norm.__dict__["weight"] = torch.zeros(4)
    assert torch.equal(output(norm), torch.zeros(3, 4))


@every_norm
def test_a_search_of_a_subclass_is_asked(build):
    seen = []

    class Watching(build):
        def __getattr__(self, name):
            seen.append(name)
            return super().__getattr__(name)

    norm = Watching(4)
    seen.clear()
    assert torch.equal(output(norm), output(build(4)))
    assert "weight" in seen


def test_a_removed_bias_is_none():
    norm = nn.LayerNorm(4)
    norm.bias = None
    assert torch.equal(output(norm), output(nn.LayerNorm(4, bias=False)))
