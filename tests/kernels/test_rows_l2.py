"""`normalize` along the last axis: the row kernels with the length as statistic."""

from functools import partial

import pytest
import torch
from settings import on_threads

from evenkeel import functional as F
from evenkeel.testing import ulp_error

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MODES = ("inside", "outside", "clamp")
# name: (rows, features) -> x, eps
REGIMES = {
    "N(0,1)": (torch.randn, 1e-12),
    "eps decides": (lambda shape: 1e-4 * torch.randn(shape), 1e-2),
    "1e18": (lambda shape: 1e18 * torch.randn(shape), 1e-12),
    "up to 3e38": (lambda shape: 3e38 * (2 * torch.rand(shape) - 1), 1e-12),
    "1e-20": (lambda shape: 1e-20 * torch.randn(shape), 0.0),
    "1e-36": (lambda shape: 1e-36 * torch.randn(shape), 0.0),
}


def results(x, dtype=None, **options):
    """y and dx under a fixed random cotangent; ``dtype`` converts everything first."""
    cotangent = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    leaf = x.to(dtype or x.dtype).detach().requires_grad_()
    y = F.normalize(leaf, dim=-1, **options)
    return y.detach(), torch.autograd.grad(y, leaf, cotangent.to(y.dtype))[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("regime", REGIMES)
def test_regimes(regime, mode):
    sample, eps = REGIMES[regime]
    x = sample((48, 768))
    mine = results(x, eps=eps, eps_mode=mode, backend="cpu")
    exact = results(x, torch.float64, eps=eps, eps_mode=mode, backend="reference")
    assert max(ulp_error(a, b) for a, b in zip(mine, exact, strict=True)) <= 3.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_depend_on_the_row_alone(dtype):
    for features in (1, 7, 16, 17, 33, 512, 513, 1023):
        x = torch.randn(700 if features > 500 else 70, features).to(dtype)
        found = on_threads(partial(results, x, backend="cpu"))
        wide = torch.zeros(x.shape[0], 2 * features, dtype=dtype)
        wide[:, features:] = x
        found.append(results(wide[:, features:], backend="cpu"))
        for y, dx in found[1:]:
            assert torch.equal(y, found[0][0])
            assert torch.equal(dx, found[0][1])
        assert torch.equal(F.normalize(x[69:70], dim=-1, backend="cpu")[0], found[0][0][69])


def test_which_axes_the_kernel_takes():
    x = torch.randn(4, 5, 6)
    for dim in (-1, 2, (2,), (-1,)):
        torch.testing.assert_close(F.normalize(x, dim=dim, backend="cpu"), torch.nn.functional.normalize(x, dim=dim))
    for dim in (0, 1, (1, 2)):
        torch.testing.assert_close(F.normalize(x, dim=dim), torch.nn.functional.normalize(x, dim=dim))
    complex_row = torch.randn(4, 5, dtype=torch.complex64)
    torch.testing.assert_close(F.normalize(complex_row), torch.nn.functional.normalize(complex_row))


@pytest.mark.parametrize("mode", MODES)
def test_operators_pass_opcheck(mode):
    x, dy = torch.randn(5, 33), torch.randn(5, 33)
    options = (1, 2, 1e-12, MODES.index(mode), 0.0, False, False)
    forward = torch.ops.evenkeel.rows_forward
    torch.library.opcheck(forward, (x, None, None, None, *options, False))
    statistics = forward(x, None, None, None, *options, False)[2]
    needed = (True, False, False, False)
    torch.library.opcheck(
        torch.ops.evenkeel.rows_backward, (dy, None, x, None, None, None, statistics, *options, *needed, False)
    )


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_many_absolute_values_add_up_within_the_contracts_ulps(dim):
    x = torch.randn(3000, 50, generator=torch.Generator().manual_seed(3))
    y, expected = F.normalize(x, p=1.0, dim=dim), F.normalize_reference(x.double(), 1.0, dim)
    assert ulp_error(y.reshape(1, -1), expected.reshape(1, -1)) < 3.0
