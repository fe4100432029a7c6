"""The channels' plain code over the whole range of floats: it keeps the kernels' accuracy where squares leave it."""

import pytest
import torch
from channel_calls import MEASURED, call, errors, results, rows, tensors

from evenkeel import functional as F
from evenkeel.testing import ulp_error

SHAPE = (8, 4, 6, 11)
EPS = 1e-80  # positive, and of no weight beside any of these variances
every_measured = pytest.mark.parametrize("norm", MEASURED)


def padding(shape):
    return torch.arange(shape[2] * shape[3]).reshape(shape[2:]).expand(shape[0], -1, -1) % 5 == 0


@every_measured
@pytest.mark.parametrize("power", [-110, -73, 63, 100])
@pytest.mark.parametrize("eps_mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_power_of_two_changes_no_bit(norm, power, eps_mode, masked):
    x, factor = torch.randn(SHAPE), 2.0**power
    mask = ~padding(SHAPE) if masked else None
    if masked:
        x = torch.where(padding(SHAPE)[:, None], torch.nan, x)
    options = {"eps": EPS, "eps_mode": eps_mode, "mask": mask, "backend": "reference"}
    usual, moved = results(norm, x, **options), results(norm, factor * x, **options)
    for a, b, slope in zip(usual, moved, (1.0, factor, 1.0, 1.0), strict=True):
        assert torch.equal(a, b * slope)


@every_measured
@pytest.mark.parametrize("scale", [1e-30, 1e19, 1e37])
def test_the_reference_at_every_scale(norm, scale):
    x = scale * torch.randn(SHAPE)
    mine = results(norm, x, backend="reference", eps=EPS)
    exact = results(norm, x, torch.float64, backend="reference", eps=EPS)
    assert max(errors(norm, mine, exact)[:2]) <= 3.0


@every_measured
@pytest.mark.parametrize("scale", [1e19, 1e37])
def test_rounded_early(norm, scale):
    x = (scale * torch.randn(SHAPE)).bfloat16()
    exact = call(norm, x.double(), backend="reference")
    assert ulp_error(rows(norm, call(norm, x, cast="early", backend="auto")), rows(norm, exact)) <= 0.51


@every_measured
@pytest.mark.parametrize("scale", [1e-22, 1e19])
def test_samples_by_vmap(norm, scale):
    x = scale * torch.randn(3, *SHAPE)
    together = torch.func.vmap(lambda one: call(norm, one, backend="auto", eps=EPS))(x)
    exact = torch.stack([call(norm, one, backend="reference", eps=EPS) for one in x.double()])
    assert max(ulp_error(rows(norm, a), rows(norm, b)) for a, b in zip(together, exact, strict=True)) <= 3.0


@every_measured
@pytest.mark.parametrize("scale", [1e-22, 1e19])
def test_derivatives_that_can_be_differentiated(norm, scale):
    x = scale * torch.randn(SHAPE)
    weight, bias, cotangent = tensors(x)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        y = call(norm, *leaves, backend="auto" if dtype == torch.float32 else "reference", eps=EPS)
        gradients = torch.autograd.grad(y, leaves, cotangent.to(dtype), create_graph=True)
        found.append([y.detach(), *(g.detach() for g in gradients)])
    assert max(errors(norm, *found)[:2]) <= 3.0  # plain sums of floats make the others
    for mine, wanted in zip(found[0][2:], found[1][2:], strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("scale", [1e-15, 1e18])
def test_running_statistics_at_every_scale(scale, backend):
    x = scale * torch.randn(SHAPE)
    remembered = [torch.zeros(4), torch.zeros(4)]
    exact = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    F.batch_norm(x, *remembered, training=True, backend=backend)
    F.batch_norm(x.double(), *exact, training=True, backend="reference")
    for mine, wanted in zip(remembered, exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_mean_over_samples_whose_sum_is_no_float(backend):
    running_mean, running_var = torch.zeros(3), torch.ones(3)
    F.instance_norm(torch.full((33, 3, 4), 3e37), running_mean, running_var, backend=backend)
    torch.testing.assert_close(running_mean, torch.full((3,), 3e36))
    torch.testing.assert_close(running_var, torch.full((3,), 0.9))


CONSTANT = {
    "layer_norm": lambda x, **options: F.layer_norm(x, x.shape[1:], **options),
    "batch_norm": lambda x, **options: F.batch_norm(x, None, None, training=True, **options),
    "instance_norm": F.instance_norm,
    "group_norm": lambda x, **options: F.group_norm(x, 1, **options),
}


@pytest.mark.parametrize("size", [1e-30, 3.0, 8e26, 3e38])
@pytest.mark.parametrize("eps_mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("norm", CONSTANT)
def test_a_constant_of_any_size_is_0_in_plain_code(norm, eps_mode, size):
    x = torch.full((2, 3, 4), size)
    options = {"eps": 1e-12, "eps_mode": eps_mode}
    assert not CONSTANT[norm](x, backend="reference", **options).any()
    assert not torch.func.vmap(lambda t: CONSTANT[norm](t[None], **options))(x[:, None]).any()
    early = CONSTANT[norm](x.bfloat16(), cast="early", **options)
    assert not early.any()
