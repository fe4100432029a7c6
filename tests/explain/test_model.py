"""Norms inside models: which one it is, told by what it computes, and the activation that reaches it."""

import pytest
import torch
from torch import nn

import evenkeel as ek
from evenkeel.explain import norm_layers, walk_layer


class Scaled(nn.Module):
    """An RMSNorm of a language model, under names of its own."""

    def __init__(self, offset: float = 0.0, *, outside: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.variance_epsilon = 1e-3
        self.offset, self.outside = offset, outside

    def forward(self, x):
        square = x.float().square().mean(-1, keepdim=True)
        eps = self.variance_epsilon
        size = square.sqrt() + eps if self.outside else (square + eps).sqrt()
        return (x.float() / size * (self.offset + self.weight.float())).to(x.dtype)


class Impostor(nn.LayerNorm):
    """A LayerNorm by type that does something else as well."""

    def forward(self, x):
        return torch.relu(super().forward(x))


def randomize(module):
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.dtype.is_floating_point:
            with torch.no_grad():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    return module


@pytest.mark.parametrize(
    ("layer", "shape", "norm", "expected"),
    [
        (nn.LayerNorm(8, eps=1e-3), (2, 5, 8), "layer", {"eps": 1e-3}),
        (nn.LayerNorm((5, 8)), (2, 5, 8), "layer", {"shared": [1, 2]}),
        (nn.LayerNorm(8, elementwise_affine=False), (3, 8), "layer", {"weight": None}),
        (nn.RMSNorm(8, eps=1e-3), (2, 5, 8), "rms", {"eps": 1e-3}),
        (Scaled(), (2, 5, 8), "rms", {"weight_offset": 0.0, "eps_mode": "inside"}),
        (Scaled(1.0), (2, 5, 8), "rms", {"weight_offset": 1.0}),
        (Scaled(outside=True), (2, 5, 8), "rms", {"eps_mode": "outside"}),
        (ek.nn.RMSNorm(8, eps=0.1, eps_mode="clamp", weight_offset=1.0), (4, 8), "rms", {"weight_offset": 1.0}),
        (ek.nn.DyT(8), (2, 5, 8), "dyt", {}),
        (nn.BatchNorm1d(8), (4, 8), "batch", {}),
        (nn.BatchNorm2d(8, track_running_stats=False), (2, 8, 3, 3), "batch", {"mean": None}),
        (nn.InstanceNorm1d(8, affine=True), (2, 8, 5), "instance", {"mean": None}),
        (nn.GroupNorm(4, 8), (2, 8, 3, 3), "group", {"num_groups": 4}),
    ],
)
def test_a_layer_is_known_by_what_it_computes(layer, shape, norm, expected):
    model = nn.Sequential(randomize(layer))
    e = walk_layer(model, "0", torch.randn(shape), backward=True)
    assert e.norm == norm
    assert {name: e.options[name] for name in expected} == expected
    assert [c for c in e.checks if not c.passed] == []
    assert e.checks[-1].id == "layer"


def test_the_activation_that_reaches_the_layer_is_explained_and_the_model_left_as_it_was():
    first, norm = nn.Linear(8, 8), nn.LayerNorm(8)
    model = nn.Sequential(first, nn.Dropout(0.5), norm).train()
    x = torch.randn(3, 8)
    e = walk_layer(model, "2", x)
    assert torch.equal(torch.from_numpy(e.step("input").value).float(), first(x).detach())  # dropout was off
    assert model.training
    assert norm.training
    assert not norm._forward_hooks
    assert not norm._forward_pre_hooks


def test_token_ids_reach_an_embedding():
    model = nn.Sequential(nn.Embedding(10, 8), Scaled(1.0))
    e = walk_layer(model, "1", torch.tensor([[1, 2, 3]]), row=2)
    assert (e.norm, e.shown) == ("rms", 2)


def test_one_row_of_a_very_large_activation_is_explained(monkeypatch):
    monkeypatch.setattr("evenkeel.explain._model.WHOLE", 100)
    x = torch.randn(30, 8)
    e = walk_layer(nn.Sequential(nn.LayerNorm(8)), "0", x, row=7)
    assert "Of its 30 × 8 input, row 7 is explained." in e.notes[0]
    assert torch.equal(torch.from_numpy(e.step("input").value).float(), x[7])
    with pytest.raises(ek.EvenkeelError, match="there is no row 30"):
        walk_layer(nn.Sequential(nn.LayerNorm(8)), "0", x, row=30)


class Unused(nn.Module):
    """A model that never calls its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("model", "layer", "x", "message"),
    [
        (
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
            "norm",
            torch.ones(1, 8),
            "no layer 'norm'; layers .*: 1",
        ),
        (nn.Sequential(nn.Linear(8, 8)), "norm", torch.ones(1, 8), "none of its layers looks like a norm"),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), "0", torch.randn(4, 8), "0 is a Linear, which does none"),
        (nn.Sequential(Impostor(8)), "0", torch.randn(4, 8), "0 is a Impostor, which does none .* is off by"),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), "1", torch.ones(1, 7), "does not take this input"),
        (Unused(), "norm", torch.ones(1, 8), "was never reached"),
    ],
)
def test_what_cannot_be_explained_is_told(model, layer, x, message):
    with pytest.raises(ek.EvenkeelError, match=message):
        walk_layer(model, layer, x)


def test_candidates_are_found_by_type_or_epsilon():
    model = nn.Sequential(nn.Linear(8, 8), Scaled(), nn.BatchNorm1d(8), nn.GELU())
    assert norm_layers(model) == ["1", "2"]
