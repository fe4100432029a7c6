"""Models with more around their norms: tied and quantized weights, hooks, adapters, replicas and shards."""

import copy

import convert_worker
import pytest
import torch
from norm_models import Gemma, Llama, Residual, rows, shaken
from processes import run_in_processes
from torch import nn

from evenkeel.convert import plan, swap


class Tied(nn.Module):
    """Embeddings that are the head's weights too."""

    def __init__(self):
        super().__init__()
        self.embed, self.block, self.norm = nn.Embedding(11, 8), Residual(Llama(8)), Gemma(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embed(tokens))))


def test_tied_weights_stay_tied():
    model, tokens = shaken(Tied()), torch.arange(11)[None]
    certificate = swap(model, verify=tokens, quiet=True)
    assert certificate.swapped == 2
    assert model.head.weight is model.embed.weight
    assert [name for name, _ in model.named_parameters()] == ["embed.weight", "block.norm.weight", "norm.weight"]


def test_a_block_in_two_places_is_verified():
    block = Residual(Llama(8))
    model = shaken(nn.Sequential(nn.Linear(8, 8), block, nn.Linear(8, 8), block))
    certificate = swap(model, verify=torch.randn(3, 8), quiet=True)
    assert certificate.swapped == 1
    assert model[1] is model[3]


def test_parametrized_layers_around_norms():
    model = rows(Llama)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.orthogonal(model[2])
    nn.utils.parametrize.register_parametrization(model[3], "weight", nn.Softplus())
    x = torch.randn(4, 17)
    wanted = model(x)
    certificate = swap(model, verify=x, quiet=True)
    assert certificate.swapped == 2
    torch.testing.assert_close(model(x), wanted)
    assert nn.utils.parametrize.is_parametrized(model[3], "weight")
    model(x).sum().backward()
    assert model[3].parametrizations.weight.original.grad is not None


def test_hooks_that_change_what_norms_get_and_give():
    model, x = rows(Gemma), torch.randn(4, 17)
    model[1].norm.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model[3].register_forward_hook(lambda module, given, result: result + 1)
    model[3].register_full_backward_hook(lambda module, dx, dy: (dx[0] * 0.5,))
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(model(leaf).square().sum(), leaf)
    y = model(x)
    assert swap(model, verify=x, quiet=True).swapped == 2
    torch.testing.assert_close(model(x), y)
    torch.testing.assert_close(torch.autograd.grad(model(leaf).square().sum(), leaf)[0], wanted)


class Adapter(nn.Module):
    """A frozen linear map with a trainable part of low rank beside it, as adapters wrap it."""

    def __init__(self, base_layer, rank=2):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + 2.0 * self.lora_B(self.lora_A(x))


class Saved(nn.Module):
    """A norm that is trained beside its frozen original."""

    def __init__(self, norm):
        super().__init__()
        self.original_module = norm
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(norm).requires_grad_()})
        norm.requires_grad_(False)

    def forward(self, *arguments, **keywords):
        return self.modules_to_save["default"](*arguments, **keywords)


def test_adapters_around_frozen_weights():
    model, x = rows(Llama), torch.randn(4, 17)
    model.requires_grad_(False)
    model[0], model[2], model[3] = Adapter(model[0]), Adapter(model[2]), Saved(model[3])
    certificate = swap(model, verify=x, quiet=True)
    named = {entry.site: [check.what for check in entry.checks] for entry in certificate.entries}
    assert named == {
        "1.norm": ["the result", "the gradient of the stream"],
        "3.original_module": [],
        "3.modules_to_save.default": ["the result", "the gradient of the stream", "the gradient of weight"],
    }
    model(x).square().sum().backward()
    assert model[3].modules_to_save["default"].weight.grad is not None
    assert model[3].original_module.weight.grad is None


@pytest.mark.filterwarnings("ignore")  # of torch, that this goes
def test_norms_between_quantized_linears():
    original = rows(Llama)
    model = torch.ao.quantization.quantize_dynamic(original, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(4, 17)
    wanted = model(x)
    certificate = swap(model, verify=x, quiet=True)
    assert (certificate.swapped, certificate.reference) == (2, "float32")
    torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["exact", "accurate"])
def test_half_precision_with_float32_norms_beside(dtype, mode):
    model = nn.Sequential(rows(Llama).to(dtype), nn.LayerNorm(17, dtype=dtype), nn.Linear(17, 17, dtype=dtype))
    certificate = plan(model, mode=mode).apply(verify=torch.randn(4, 17, dtype=dtype))
    assert certificate.swapped == 3
    assert all(check.passed for check in certificate.model)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("wrapper", list(convert_worker.WRAPPERS))
def test_replicated_and_sharded_models(wrapper, parallel):
    for found in (run[wrapper] for run in parallel):
        assert found["swapped"] == 3
        assert found["checks"] == [True, True]
        assert found["sites"] == [3, 3, 3]
        for a, b in zip(found["before"], found["after"], strict=True):
            torch.testing.assert_close(a, b)
        assert found["identity"]
        assert found["reverted"]
    assert all(torch.equal(a, b) for a, b in zip(*(run[wrapper]["after"][1:] for run in parallel), strict=True))


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    return run_in_processes(convert_worker.worker, 2, tmp_path_factory.mktemp("convert"))
