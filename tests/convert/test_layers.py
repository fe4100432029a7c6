"""The layer repository for `kernels`: loaded and checked as that package does, without it and without a network."""

import copy
import importlib.util
import inspect
import json
import sys
from types import MethodType

import pytest
import torch
from norm_models import Gemma, Llama, Residual, shaken
from torch import nn

from evenkeel import InvalidArgumentError, functional
from evenkeel.convert import kernel_repository, serve


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """The layers of a local repository, loaded as `kernels.get_local_kernel` does."""
    variant = kernel_repository(tmp_path_factory.mktemp("kernels") / "norms") / "build" / "torch-universal"
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module.layers
    del sys.modules[name], sys.modules[f"{name}.layers"]


def kernelize(model, layers, keys):
    """What `kernels.kernelize` does: the forward of a layer takes the place of the one of each module of a class."""
    for module in model.modules():
        for kind, key in keys.items():
            if type(module) is kind:
                module.forward = MethodType(getattr(layers, key).forward, module)
    return model


KEYS = {Llama: "RMSNorm", Gemma: "RMSNorm", nn.LayerNorm: "LayerNorm", nn.RMSNorm: "RMSNormZeroCentered"}


def test_layers_have_a_forward_and_nothing_else(layers):
    plain = {name for name, _ in inspect.getmembers(nn.Module)}
    for key in ("RMSNorm", "RMSNormZeroCentered", "LayerNorm", "RMSNormGated"):
        layer = getattr(layers, key)
        assert issubclass(layer, nn.Module)
        assert layer.__init__ is nn.Module.__init__
        assert {name for name, _ in inspect.getmembers(layer)} <= plain
        for kind in (Gated,) if key == "RMSNormGated" else KEYS:
            theirs, ours = (list(inspect.signature(c.forward).parameters.values()) for c in (kind, layer))
            assert [p.kind for p in theirs] == [p.kind for p in ours]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_of_one_name_are_served_as_what_they_are(layers, dtype, monkeypatch):
    model = shaken(nn.Sequential(Llama(8), Residual(Gemma(8)), nn.RMSNorm(8))).to(dtype)
    original, x = copy.deepcopy(model), torch.randn(4, 8).to(dtype)
    kernelize(model, layers, KEYS)
    seen = []
    right = functional.rms_norm
    monkeypatch.setattr(functional, "rms_norm", lambda *a, **k: (seen.append(1), right(*a, **k))[1])
    model(x)
    del seen[:]
    y, wanted = model(x), original(x)
    assert len(seen) == 3
    torch.testing.assert_close(y, wanted)
    for net in (model, original):
        net(x).float().square().sum().backward()
    for a, b in zip(model.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0.05 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)


class Gated(Llama):
    def forward(self, hidden_states, gate=None):
        y = super().forward(hidden_states)
        return y if gate is None else (y * nn.functional.silu(gate.float())).to(y.dtype)


class Masked(Llama):
    def forward(self, hidden_states, mask=None):
        y = super().forward(hidden_states)
        return y if mask is None else y * mask


@pytest.mark.parametrize(("kind", "count"), [(Gated, 1), (Masked, 0)])
def test_a_gate_is_served_and_a_mask_is_left(kind, count, layers, monkeypatch):
    norm = shaken(kind(8)).bfloat16()
    original, x, gate = copy.deepcopy(norm), *torch.randn(2, 4, 8).bfloat16()
    kernelize(norm, layers, {kind: "RMSNormGated"})
    seen = []
    right = functional.gated_rms_norm
    monkeypatch.setattr(functional, "gated_rms_norm", lambda *a, **k: (seen.append(1), right(*a, **k))[1])
    assert torch.equal(norm(x, gate), original(x, gate))
    assert torch.equal(norm(x), original(x))
    del seen[:]
    norm(x, gate=gate) if kind is Gated else norm(x, gate)
    assert len(seen) == count


def test_what_is_not_recognised_runs_as_before(layers):
    class Shifted(Llama):
        def forward(self, x):
            return super().forward(x) + 1e-3

    model = kernelize(nn.Sequential(Shifted(8)), layers, {Shifted: "RMSNorm"})
    x = torch.randn(4, 8)
    assert torch.equal(model(x), Shifted(8)(x))
    assert "forward" in vars(model[0])


def test_ranks_that_were_not_tried_run_as_before():
    norm, x = nn.LayerNorm(4), torch.randn(1, 2, 1, 2, 1, 2, 4)
    assert torch.equal(serve(norm, x), norm(x))


def test_other_files_stay(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(InvalidArgumentError, match="holds other files; name a new directory"):
        kernel_repository(tmp_path)
    assert kernel_repository(kernel_repository(tmp_path / "new")) == tmp_path / "new"
