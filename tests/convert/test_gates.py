"""Norms with a gate, and of parts of a row: recognised, told from look-alikes, swapped and proved."""

import re

import pytest
import torch
from norm_models import Llama, rms, shaken
from torch import nn

import evenkeel as ek
from evenkeel import NormSpec
from evenkeel.convert import plan, recognize, swap

LAYER = {"statistic": "moments", "shares": "token"}
RMS = {"statistic": "rms", "shares": "token", "center": False, "eps": 1e-6, "bias": False}
silu = nn.functional.silu


class Gate(nn.Module):
    """A norm of two inputs with a weight, whose arithmetic a test writes."""

    def __init__(self, function, size=16, eps=1e-6):
        super().__init__()
        self.function, self.eps, self.gain = function, eps, nn.Parameter(torch.ones(size))

    def forward(self, x, gate=None):
        return self.function(self, x, gate)


class Parts(nn.Module):
    """A norm of four parts of a row that adds 1 to its weight."""

    def __init__(self, size=16, eps=1e-6):
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return (of_parts(x, self.eps) * (1.0 + self.gain.float())).type_as(x)


def of_parts(x, eps, groups=4):
    return rms(x.unflatten(-1, (groups, -1)), eps).flatten(-2)


def mamba(m, x, gate):
    wide = x.float() if gate is None else x.float() * silu(gate.float())
    return m.gain * of_parts(wide, m.eps).to(x.dtype)


class Heads(nn.LayerNorm):
    """A LayerNorm of each head's features, with weights of each head."""

    def forward(self, x):
        wide = nn.functional.layer_norm(x.float(), x.shape[-1:], None, None, self.eps)
        wide = wide * self.weight.float()
        return (wide if self.bias is None else wide + self.bias.float()).to(x.dtype)


FORMS = {
    "parts, 1 + weight": (
        Parts(),
        RMS | {"groups": 4, "weight_offset": 1.0},
    ),
    "heads": (Heads((3, 8), bias=False), LAYER | {"groups": 3, "bias": False}),
    "Mamba 2": (Gate(mamba), RMS | {"groups": 4, "cast": "early", "gating": "silu_before"}),
    "Falcon H1": (
        Gate(lambda m, x, gate: (m.gain * rms(x, m.eps) * silu(gate.float())).to(x.dtype)),
        RMS | {"gating": "silu_after"},
    ),
    "Qwen3-Next": (
        Gate(lambda m, x, gate: (m.gain * rms(x, m.eps).to(x.dtype) * silu(gate.float())).to(x.dtype)),
        RMS | {"cast": "early", "gating": "silu_after"},
    ),
    "GLM 5": (
        Gate(lambda m, x, gate: (m.gain.float() * rms(x, m.eps) * gate.float().sigmoid()).to(x.dtype)),
        RMS | {"gating": "sigmoid_after"},
    ),
}

LOOK_ALIKES = {
    "a gate without SiLU": (Gate(lambda m, x, gate: m.gain * rms(x * gate, m.eps).to(x.dtype)), "inputs: gate$"),
    "a gate that changes what it gates": (
        Gate(lambda m, x, gate: m.gain * rms(x, m.eps + (gate.mean() > 0) * 1e-4).to(x.dtype) * silu(gate.float())),
        "inputs: gate$",
    ),
    "a gate without a gradient": (
        Gate(lambda m, x, gate: m.gain * rms(x, m.eps) * silu(gate.float().detach())),
        "inputs: gate$",
    ),
    "a gate that is written into": (
        Gate(lambda m, x, gate: m.gain * rms(x, m.eps) * gate.copy_(silu(gate))),
        "inputs: gate$",
    ),
    "another norm without its gate": (
        Gate(lambda m, x, gate: m.gain * rms(x, m.eps) * (2.0 if gate is None else silu(gate.float()))),
        "inputs: gate$",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_gates_and_parts_are_recognised(name):
    module, answers = FORMS[name]
    found = recognize(module)
    assert found.reason == ""
    assert found.spec == NormSpec(**answers)
    assert all(found.rounds_alike(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_a_second_input_does_besides_is_seen(name):
    module, reason = LOOK_ALIKES[name]
    found = recognize(module)
    assert found.spec is None
    assert re.search(reason, found.reason), found.reason
    assert found.evidence[-1].startswith("with gate as a gate: ")


class SiLUGate(Llama):
    """Qwen3-Next's: the gate multiplies the result."""

    def forward(self, hidden_states, gate):
        y = super().forward(hidden_states)
        return (y * nn.functional.silu(gate.float())).to(hidden_states.dtype)


class Mixer(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.up, self.norm, self.activation = nn.Linear(16, 32), norm, "silu"
        norm.activation = "silu"  # an attribute of theirs, which is not our option

    def forward(self, x):
        x, gate = self.up(x).chunk(2, -1)
        return self.norm(x, gate=gate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_with_a_gate(dtype):
    model, x = shaken(Mixer(SiLUGate(16))).to(dtype), torch.randn(3, 5, 16).to(dtype)
    wanted = model(x)
    found = plan(model, x)
    certificate = found.apply(verify=x)
    assert certificate.swapped == 1
    told = [check.what for check in certificate.entries[0].checks]
    assert told == ["the result", "the gradient of the stream", "the gradient of the gate", "the gradient of weight"]
    assert isinstance(model.norm, ek.nn.GatedRMSNorm)
    assert certificate.entries[0].spec.endswith("gated by silu after")
    assert model.norm.spec.activation is None
    if dtype == torch.bfloat16:
        assert torch.equal(model(x), wanted)
    else:
        torch.testing.assert_close(model(x), wanted)
    found.revert()
    assert type(model.norm) is SiLUGate
    assert torch.equal(model(x), wanted)


def test_a_gate_of_another_name_is_left():
    class Other(SiLUGate):
        def forward(self, hidden_states, z):
            return super().forward(hidden_states, z)

    (site,) = plan(nn.Sequential(Other(16))).sites
    assert site.reason == "its gate is called z, and callers may name it"


def test_norms_of_heads():
    model = shaken(nn.Sequential(nn.Linear(8, 24), nn.Unflatten(-1, (3, 8)), Heads((3, 8))))
    x = torch.randn(5, 8)
    wanted = model(x)
    assert swap(model, verify=x, quiet=True).swapped == 1
    assert model[2].groups == 3
    torch.testing.assert_close(model(x), wanted)
