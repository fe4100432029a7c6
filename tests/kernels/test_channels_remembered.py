"""Gradients with remembered statistics: the sums and dx come from one pass, in memory's order."""

import pytest
import torch
from channel_calls import FLOATS, rows, same_bits, tensors
from settings import on_threads

from evenkeel import functional as F
from evenkeel.testing import ulp_error

# runs of less than a vector, of one and more, of several parts; few channels; strips of columns; volumes; sequences;
# narrow rows that are taken for wide ones, of one strip and of several
SHAPES = (
    *((20, 24, 4, 4), (3, 40, 5, 5), (2, 18, 8, 9), (5, 32, 3, 3), (2, 20, 70, 67), (4, 6, 6, 6)),
    *((8, 48, 14, 14), (40, 17, 8, 8), (9, 8, 5, 5)),
    *((6, 600, 2), (50, 17), (3, 16, 3, 2, 4), (1, 530, 40)),
)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_layout = pytest.mark.parametrize("layout", ["contiguous", "channels innermost", "sliced"])
every_activation = pytest.mark.parametrize("activation", [None, "relu", "silu"])


def laid_out(x, layout):
    if layout == "sliced":
        return x.repeat(1, 2, *[1] * (x.ndim - 2))[:, x.shape[1] :]
    return x if layout == "contiguous" or x.ndim == 2 else x.movedim(1, -1).contiguous().movedim(-1, 1)


def statistics(channels, *, far=False):
    """Means and variances; ``far``: in every third channel the affine's terms cancel."""
    mean = torch.linspace(-1, 1, channels)
    mean[::3] += 30.0 * far
    return mean, 0.5 + mean.square()


def gradients(x, parameters, remembered, cotangent, activation, *, of="all", backend="cpu"):
    leaves = [t.detach().clone(memory_format=torch.preserve_format) for t in (x, *parameters)]
    trained = {"all": leaves, "input": leaves[:1], "parameters": leaves[1:]}[of]
    for leaf in trained:
        leaf.requires_grad_()
    y = F.batch_norm(leaves[0], *remembered, *leaves[1:], activation=activation, backend=backend)
    return torch.autograd.grad(y, trained, cotangent)


def both(x, activation, remembered, scale=1.0):
    """The gradients by the kernel and in float64 by plain code."""
    weight, bias, cotangent = tensors(x)
    cotangent = cotangent * scale
    found = gradients(x, (weight, bias), remembered, cotangent, activation)
    wide = [t.double() for t in (x, weight, bias, *remembered, cotangent)]
    exact = gradients(wide[0], wide[1:3], wide[3:5], wide[5], activation, backend="reference")
    return found, exact


@every_activation
@every_layout
@every_shape
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_gradients(dtype, shape, layout, activation):
    x = laid_out(torch.randn(shape).to(dtype), layout)
    found, exact = both(x, activation, statistics(shape[1]))
    through_silu = 6.0 if x[0, 0].numel() > 64 else 5.0
    limit = 0.51 if dtype != torch.float32 else through_silu if activation == "silu" else 3.0
    assert ulp_error(rows("batch_norm", found[0]), rows("batch_norm", exact[0])) <= limit
    for mine, theirs in zip(found[1:], exact[1:], strict=True):
        assert ulp_error(mine, theirs) <= (3.0 if dtype == torch.float32 else 0.51)


@pytest.mark.parametrize(("weight", "bias"), [(1, 0), (1, -2), (4, -12), (11, -40), (1, -40), (3, 5)])
@pytest.mark.parametrize("positions", [1, 3, 20])
@pytest.mark.parametrize("channels", [6, 64])
@every_layout
def test_the_slope_of_silu_is_precise_wherever_its_input_lies(layout, channels, positions, weight, bias):
    x = laid_out(torch.randn(20, channels, positions), layout)
    cotangent, remembered = torch.randn(x.shape), (torch.randn(channels) / 10, torch.rand(channels) + 0.5)
    parameters = weight + torch.randn(channels) / 5, bias + torch.randn(channels) / 3
    (found,) = gradients(x, parameters, remembered, cotangent, "silu", of="input")
    assert torch.equal(found, gradients(x, parameters, remembered, cotangent, "silu")[0])
    wide = [[t.double() for t in tensors] for tensors in (parameters, remembered)]
    (exact,) = gradients(x.double(), *wide, cotangent.double(), "silu", of="input", backend="reference")
    assert ulp_error(rows("batch_norm", found), rows("batch_norm", exact)) <= 5.0


@pytest.mark.parametrize("channels", [3, 15, 20])
@pytest.mark.parametrize("positions", [1, 6, 25, 70])
@every_layout
def test_a_gradient_passes_through_relu_where_y_is_positive(layout, positions, channels):
    mean, variance = statistics(channels)
    weight, bias = torch.rand(channels) + 0.5, torch.randn(channels)
    zero = mean.double() - bias * (variance.double() + 1e-5).sqrt() / weight  # where y is 0
    # neighbouring floats around it
    places = zero.float().view(torch.int32)[:, None] + torch.arange(8 * positions, dtype=torch.int32) - 4 * positions
    x = laid_out(places.view(torch.float32).view(channels, 8, positions).transpose(0, 1).contiguous(), layout)
    y = F.batch_norm(x, mean, variance, weight, bias, activation="relu", backend="cpu")
    found = gradients(x, (weight, bias), (mean, variance), torch.ones_like(x), "relu")
    assert torch.equal(found[0] > 0, y > 0)
    assert torch.equal(found[2], (y > 0).sum((0, 2)).float())


@every_activation
@every_layout
@every_shape
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_neither_threads_nor_the_batch_nor_what_is_trained_change_a_bit(dtype, shape, layout, activation):
    x, remembered = laid_out(torch.randn(shape).to(dtype), layout), statistics(shape[1], far=True)
    weight, bias, cotangent = tensors(x)

    def found(of="all", samples=slice(None)):
        return gradients(x[samples], (weight, bias), remembered, cotangent[samples], activation, of=of)

    several = on_threads(found, (1, 2, 3))
    assert all(same_bits(several[0], other) for other in several[1:])
    assert torch.equal(several[0][0], found("input")[0])
    assert same_bits(several[0][1:], found("parameters"))
    last = slice(shape[0] - 1, shape[0])
    assert torch.equal(several[0][0][last], found(samples=last)[0])


@every_layout
@every_shape
@pytest.mark.parametrize(("spread", "slope"), [(1e-20, 1e-25), (1e15, 1e25)])
def test_sums_that_leave_floats_range(spread, slope, shape, layout):
    x = laid_out(spread * torch.randn(shape), layout)
    mean, variance = statistics(shape[1])
    remembered = spread * mean, spread * spread * variance.double()
    weight, bias, cotangent = tensors(x)
    leaves = [t.clone().requires_grad_() for t in (weight, bias)]
    y = F.batch_norm(x, *remembered, *leaves, eps=1e-60, backend="cpu")
    found = torch.autograd.grad(y, leaves, slope * cotangent)
    wide = [t.double().requires_grad_() for t in (weight, bias)]
    exact = F.batch_norm(x.double(), *(t.double() for t in remembered), *wide, eps=1e-60, backend="reference")
    expected = torch.autograd.grad(exact, wide, (slope * cotangent).double())
    assert max(ulp_error(a, b) for a, b in zip(found, expected, strict=True)) <= 3.0


@pytest.mark.parametrize("shape", [(3, 20, 5, 5), (3, 20, 3, 3)], ids=str)
@every_activation
def test_masked_positions_have_no_gradient(activation, shape):
    x, remembered = torch.randn(shape), statistics(shape[1])
    weight, bias, cotangent = tensors(x)
    mask = torch.rand(shape[0], *shape[2:]) < 0.5
    leaf = torch.where(mask.unsqueeze(1), x, torch.nan).requires_grad_()
    y = F.batch_norm(leaf, *remembered, weight, bias, mask=mask, activation=activation, backend="cpu")
    (dx,) = torch.autograd.grad(y, leaf, cotangent)
    (expected,) = gradients(x, (weight, bias), remembered, cotangent, activation, of="input")
    assert torch.equal(dx, torch.where(mask.unsqueeze(1), expected, 0.0))
    assert not dx[~mask.unsqueeze(1).expand_as(dx)].signbit().any()  # no -0.0 either


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(64, 768), (8, 700, 2, 4)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_threads_divide_columns_where_they_like(activation, shape, weighted):
    x, dy, (mean, variance) = torch.randn(shape), torch.randn(shape), statistics(shape[1])
    mean[400] = 100.0  # of which neighbours must know nothing
    parameters = torch.rand(2, shape[1]) + 0.5 if weighted else (None, torch.zeros(shape[1]))

    def found():
        leaves = [t.clone().requires_grad_() for t in (x, *parameters) if t is not None]
        given = leaves[1:] if weighted else (None, leaves[1])
        y = F.batch_norm(leaves[0], mean, variance, *given, activation=activation, backend="cpu")
        return torch.autograd.grad(y, leaves, dy)

    several = on_threads(found, (1, 2, 3))
    assert all(same_bits(several[0], other) for other in several[1:])


@pytest.mark.parametrize("channels", [15, 16])
@pytest.mark.parametrize("positions", [3, 20])
def test_an_infinite_gradient_stays_in_its_channel(positions, channels):
    x = torch.randn(2, channels, positions)
    weight, bias, dy = tensors(x)
    dy[0, 0, 0] = torch.inf
    remembered = [t.double() for t in statistics(channels)]
    found = gradients(x, (weight, bias), remembered, dy, None)
    wide = (x.double(), (weight.double(), bias.double()), remembered, dy.double(), None)
    for mine, exact in zip(found, gradients(*wide, backend="reference"), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)
