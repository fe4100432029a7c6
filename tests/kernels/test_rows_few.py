"""The backward of a few long rows goes through blocks of features: the bits are those of the way by rows."""

import pytest
import torch
from settings import on_threads

from evenkeel import functional as F
from evenkeel.testing import ulp_error

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FEATURES = (4096, 5001, 12345)  # whole blocks, and parts of vectors
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_norm = pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])


def tensors(rows, features, dtype):
    generator = torch.Generator().manual_seed(rows)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return [draw(rows, features).add(2), 1 + draw(features), draw(features), draw(rows, features)]


def gradients(norm, x, weight, bias, dy, backend="cpu"):
    leaves = [t.detach().requires_grad_() for t in ((x, weight) if "rms" in norm else (x, weight, bias))]
    other = dy.flip(-1)
    residual = [other] if norm.startswith("add") else []
    y = getattr(F, norm)(leaves[0], *residual, x.shape[-1:], *leaves[1:], backend=backend)
    return torch.autograd.grad(y, leaves, (dy, other) if residual else dy)


@every_dtype
@every_norm
def test_a_rows_gradient_is_that_among_many(norm, dtype):
    """Of 200 rows tasks are made."""
    for features in FEATURES:
        x, weight, bias, dy = (t.to(dtype) for t in tensors(200, features, dtype))
        among_many = gradients(norm, x, weight, bias, dy)[0]
        for rows in (1, 2, 7, 16):
            assert torch.equal(gradients(norm, x[:rows], weight, bias, dy[:rows])[0], among_many[:rows])


@every_dtype
@every_norm
def test_threads_do_not_change_a_bit(norm, dtype):
    """One thread takes 19 rows as tasks, two and three by blocks."""
    for rows in (3, 16, 19, 48):
        given = [t.to(dtype) for t in tensors(rows, 5001, dtype)]
        one, two, three = on_threads(lambda: gradients(norm, *given))  # noqa: B023
        for others in (two, three):
            assert all(torch.equal(a, b) for a, b in zip(one, others, strict=True))


@every_norm
def test_the_gradients_are_exact(norm):
    for rows in (1, 5, 16, 19):
        given = [t.float() for t in tensors(rows, 5001, torch.float32)]
        exact = gradients(norm, *(t.double() for t in given), backend="reference")
        for found, wanted in zip(gradients(norm, *given), exact, strict=True):
            assert ulp_error(found, wanted) <= 4


@pytest.mark.parametrize("norm", ["layer_norm", "add_layer_norm"])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30, float("inf"), float("nan")])
def test_a_row_that_floats_do_not_hold(size, norm):
    """All rows of the call take the other way then."""
    x, weight, bias, dy = (t.float() for t in tensors(200, 4096, torch.float32))
    x[1] = x[1] * size
    among_many = gradients(norm, x, weight, bias, dy)[0]
    for found in on_threads(lambda: gradients(norm, x[:3], weight, bias, dy[:3])):
        assert torch.equal(found[0].nan_to_num(7), among_many[:3].nan_to_num(7))


@every_norm
def test_no_rows(norm):
    x, weight, bias, dy = (t.float() for t in tensors(0, 4096, torch.float32))
    dx, *others = gradients(norm, x, weight, bias, dy)
    assert dx.shape == (0, 4096)
    assert all(torch.equal(g, torch.zeros(4096)) for g in others)


def test_slices_and_gradients_that_nobody_asks_for():
    x, weight, bias, dy = (t.float() for t in tensors(5, 8192, torch.float32))
    apart = torch.cat([x, x], 1)[:, :8192]
    whole = gradients("layer_norm", x, weight, bias, dy)
    assert all(torch.equal(a, b) for a, b in zip(gradients("layer_norm", apart, weight, bias, dy), whole, strict=True))
    leaf = weight.clone().requires_grad_()
    y = F.layer_norm(x, (8192,), leaf, bias, backend="cpu")
    assert torch.equal(torch.autograd.grad(y, leaf, dy)[0], whole[1])
    alone = x.clone().requires_grad_()
    y = F.layer_norm(alone, (8192,), weight, bias, backend="cpu")
    assert torch.equal(torch.autograd.grad(y, alone, dy)[0], whole[0])
    wide = weight.double().requires_grad_()
    y = F.layer_norm(x, (8192,), wide, bias.double(), backend="cpu")
    assert torch.autograd.grad(y, wide, dy)[0].dtype == torch.float64
