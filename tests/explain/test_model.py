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


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Renamed(nn.Module):
    """An RMSNorm with ε in the code, whose parameter and class have any names."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 3e-4).rsqrt() * self.gain


class Grouped(nn.Module):
    """Statistics of parts of a row, which no walk shows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_eps, self.weight = 1e-5, nn.Parameter(torch.randn(8))

    def forward(self, x):
        parts = x.unflatten(-1, (2, 4))
        return (parts * (parts.square().mean(-1, keepdim=True) + self.norm_eps).rsqrt()).flatten(-2) * self.weight


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
        (ChannelsFirst(8), (2, 8, 3, 3), "layer", {"shared": [1]}),
        (Renamed(), (2, 5, 8), "rms", {"eps": 3e-4}),
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
        (
            nn.Sequential(Grouped()),
            "0",
            torch.randn(4, 8),
            r"none of the norms known \(a walk knows no norm with these",
        ),
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


@pytest.mark.parametrize("seed", range(8))
def test_where_epsilon_cannot_be_told_apart_the_usual_way_is_told(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(randomize(nn.LayerNorm(32, eps=1e-12)))
    assert walk_layer(model, "0", torch.randn(14, 32)).options["eps_mode"] == "inside"


def test_any_call_of_a_shared_layer_is_explained():
    norm = nn.LayerNorm(8)
    model = nn.Sequential(norm, nn.Linear(8, 8), norm)
    x = torch.randn(3, 8)
    second = walk_layer(model, "0", x, call=1)
    assert torch.equal(torch.from_numpy(second.step("input").value).float(), model[1](norm(x)).detach())
    assert second.notes[0] == "0 is a LayerNorm, called 2 times; call 1 (counted from 0) is explained."
    assert walk_layer(model, "0", x).step("input").value == pytest.approx(x.numpy())
    for call in (2, -1):
        with pytest.raises(ek.EvenkeelError, match=f"no call {call} of 0: the model calls it 2 times"):
            walk_layer(model, "0", x, call=call)


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = {
    "Llama": (SMALL | {"intermediate_size": 48}, "rms", 0.0, 5),
    "GPT2": ({"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}, "layer", 0.0, 5),
    "Bert": (SMALL | {"intermediate_size": 48}, "layer", 0.0, 5),
    "Gemma": (SMALL | {"intermediate_size": 48, "head_dim": 8, "num_key_value_heads": 2}, "rms", 1.0, 5),
    "Olmo": (SMALL | {"intermediate_size": 48}, "layer", 0.0, 5),  # its ε stands in the code
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package's own making
@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_of_a_language_model_is_recognised(family):
    import transformers

    options, norm, offset, count = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(
        getattr(transformers, f"{family}Config")(bos_token_id=1, eos_token_id=2, **options)
    )
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.5)
    layers = norm_layers(model)
    assert len(layers) == count
    for layer in layers:
        e = walk_layer(model, layer, torch.randint(0, 63, (2, 7)), backward=True)
        assert (e.norm, e.options["eps_mode"], e.options["weight_offset"]) == (norm, "inside", offset)
        assert e.step("input").value.shape == (2, 7, 32)
        assert [c for c in e.checks if not c.passed] == []
