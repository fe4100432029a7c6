"""Verify: what is compared with the original, what is refused, and what a check leaves behind: nothing."""

import copy

import pytest
import torch
from norm_models import Images, Llama, rows
from torch import nn

import evenkeel as ek
from evenkeel import ConversionError
from evenkeel.convert import plan


def wrong_forward(self, x):
    return ek.functional.rms_norm(x, self.normalized_shape, self.weight, self.eps) * 1.001


class WritesIntoTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy.mul_(2.0)


def greedy_forward(self, x):
    y = ek.functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
    return WritesIntoTheGradient.apply(y)


@pytest.mark.parametrize(
    ("forward", "what"), [(wrong_forward, "the result"), (greedy_forward, "the gradient of the stream")]
)
def test_a_wrong_norm_is_named_and_nothing_is_swapped(forward, what, monkeypatch):
    model = rows(nn.RMSNorm)
    x = torch.randn(4, 17)
    wanted = model(x)
    found = plan(model)
    monkeypatch.setattr(ek.nn.RMSNorm, "forward", forward)
    with pytest.raises(ConversionError, match=rf"1\.norm: {what} is .* ulps from float64, the original's"):
        found.apply(verify=x)
    assert [type(model[1].norm), type(model[3])] == [nn.RMSNorm, nn.RMSNorm]
    assert torch.equal(model(x), wanted)
    assert found.certificate is None


def test_a_norm_that_loses_its_gradient_is_named(monkeypatch):
    model = rows(nn.RMSNorm)
    found = plan(model)
    monkeypatch.setattr(
        ek.nn.RMSNorm, "forward", lambda self, x: ek.functional.rms_norm(x, (17,), self.weight.detach(), self.eps)
    )
    with pytest.raises(ConversionError, match=r"1\.norm: the gradient of weight is inf ulps"):
        found.apply(verify=torch.randn(4, 17))


def test_verification_leaves_no_marks():
    model = Images().train()
    model.convs[0].weight.grad = torch.ones_like(model.convs[0].weight)
    before, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    x = torch.randn(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    plan(model, x).apply(verify=x)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.convs[0].weight.grad, torch.ones_like(model.convs[0].weight))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


class NoDouble(nn.Module):
    """An operator that has no float64."""

    def forward(self, x):
        assert x.dtype != torch.float64
        return x.tanh()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_that_does_not_run_in_float64(dtype):
    model = nn.Sequential(rows(), NoDouble(), nn.Linear(17, 17)).to(dtype)
    certificate = plan(model).apply(verify=torch.randn(6, 17).to(dtype))
    assert certificate.reference == "float32"
    assert all(check.theirs > 0 and check.passed for check in certificate.model)


def test_a_batch_that_does_not_run_is_one_line():
    model = rows()
    with pytest.raises(ConversionError, match="does not run on the inputs to verify it on: mat1 and mat2") as caught:
        plan(model).apply(verify=torch.randn(4, 5))
    assert "\n" not in str(caught.value)
    assert type(model[3]) is Llama
