"""Channel kernels at the ends of float's range, beside infinite parameters, and with masks of any byte."""

import itertools

import pytest
import torch
from bits import digest
from channel_calls import GROUPS, LAYOUTS, MEASURED, call, errors, results, rows, same_bits, tensors
from settings import on_threads

from evenkeel import functional as F
from evenkeel.testing import ulp_error

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
# planes of many positions and of few; columns; groups of few positions
SHAPES = ((6, 32, 20, 19), (40, 32, 5, 3), (70, 32, 1, 1))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
TINY = 1e-80  # an eps of no weight


def gradients(function, x, weight, bias, cotangent):
    """y and the gradients: by the kernel, and in float64 by plain code."""
    found = []
    for dtype, backend in ((x.dtype, "cpu"), (torch.float64, "reference")):
        leaves = [t.to(dtype).detach().requires_grad_() for t in (x, weight, bias)]
        y = function(*leaves, backend=backend)
        found.append((y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(dtype))))
    return found


def batch_norm(**options):
    return lambda x, weight, bias, backend: F.batch_norm(
        x, None, None, weight, bias, training=True, backend=backend, **options
    )


@every_layout
@every_shape
@pytest.mark.parametrize(("spread", "slope"), [(1e10, 1e30), (1e17, 1e35), (1e-6, 1e-35), (1e-10, 1e-33)])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("norm", ["batch_norm", "group_norm"])
def test_gradients_whose_products_with_the_spread_are_no_floats(norm, activation, spread, slope, shape, layout):
    if norm == "group_norm" and shape[2] == 1:
        shape = (6, 32, 9, 9)
    x = (spread * torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    weight, bias, cotangent = tensors(x)
    cotangent = slope * cotangent.clamp(-3, 3) / 3
    function = lambda *a, backend: call(norm, *a, backend=backend, eps=TINY, activation=activation)  # noqa: E731
    mine, exact = gradients(function, x, weight, bias / 9, cotangent)
    assert all(t.isfinite().all() for t in mine)
    assert max(errors(norm, mine, exact)) <= 3.0


@every_layout
@every_shape
@pytest.mark.parametrize("spread", [1e-60, 1e25, 1e60])
@pytest.mark.parametrize("norm", ["batch_norm", "group_norm", "instance_norm"])
def test_doubles_beyond_the_range_of_floats(norm, spread, shape, layout):
    if shape[2] == 1:
        shape = (6, 32, 9, 9)
    x = (spread * torch.randn(shape, dtype=torch.float64)).contiguous(memory_format=LAYOUTS[layout])
    weight, bias, cotangent = tensors(x)
    function = lambda *a, backend: call(norm, *a, backend=backend, eps=0.0 if norm != "batch_norm" else 1e-300)  # noqa: E731
    for ours, exact in zip(*gradients(function, x, weight, bias, cotangent), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-11 * exact.abs().max().item())


@every_layout
def test_a_column_beyond_float_leaves_the_others_alone(layout):
    x, cotangent = torch.randn(40, 32, 5, 3), torch.randn(40, 32, 5, 3)
    x = x.contiguous(memory_format=LAYOUTS[layout])
    grown = torch.ones(32)
    grown[7] = 1e15
    weight = torch.randn(32)
    usual = gradients(batch_norm(), x, weight, weight, cotangent)[0]
    steep = torch.where(grown > 1, 1e30, 1.0).reshape(1, 32, 1, 1)
    beyond = gradients(batch_norm(), x * grown.reshape(1, 32, 1, 1), weight, weight, cotangent * steep)[0]
    others = torch.arange(32) != 7
    assert torch.equal(usual[1][:, others], beyond[1][:, others])
    assert torch.equal(usual[2][others], beyond[2][others])


@every_layout
@pytest.mark.parametrize(
    "shape", [(8, 4, 20, 20), (40, 4, 1, 1), (40, 20, 5, 3), (9, 64, 5, 5), (2, 12, 6, 6)], ids=str
)
@pytest.mark.parametrize(("spread", "size"), [(1e17, 1e-30), (1e-14, 1e25), (1e-14, 2e30), (1e17, 1e-37)])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("norm", ["batch_norm", "group_norm"])
def test_weights_over_the_scale_are_no_floats(norm, activation, spread, size, shape, layout):
    """One weight in two is so; dy is such that dx is a float."""
    if norm == "group_norm" and shape[2] == 1:
        shape = (40, 4, 3, 1)  # side by side
    x = (spread * torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    weight, _, cotangent = tensors(x)
    sizes = torch.where(torch.arange(shape[1]) % 2 == 0, size, size**0.5)
    weight = (weight.sign() * (0.5 + torch.rand(shape[1]))) * sizes
    cotangent = cotangent * (1e36 * spread / size if size > 1 else 1e12)
    function = lambda *a, backend: call(norm, *a, backend=backend, eps=TINY, activation=activation)  # noqa: E731
    mine, exact = gradients(function, x, weight, weight / 3, cotangent)
    assert max(errors(norm, mine, exact)) <= 3.0


@every_layout
@pytest.mark.parametrize("shape", [(8, 4, 20, 20), (40, 4, 1, 1)], ids=str)
@pytest.mark.parametrize(("deviation", "size"), [(1e17, 1e-30), (1e-14, 1e25)])
def test_weights_over_a_given_scale_are_no_floats(deviation, size, shape, layout):
    x = (deviation * torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    weight, running_var = size * (1 + torch.rand(4)), torch.full((4,), deviation**2)
    running_mean = torch.zeros(4)
    mine, exact = (
        F.batch_norm(x.to(d), running_mean.to(d), running_var.to(d), weight.to(d), eps=1e-40, backend=b)
        for d, b in ((torch.float32, "cpu"), (torch.float64, "reference"))
    )
    torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=0)


@every_layout
@pytest.mark.parametrize("positions", [1, 4, 30])
@pytest.mark.parametrize("norm", MEASURED)
def test_values_far_below_an_eps_outside_the_root(norm, positions, layout):
    """The bend of the scale is then more than a float."""
    x = 1e-44 * torch.randn(20, 4, positions, 2).sign().contiguous(memory_format=LAYOUTS[layout])
    mine = results(norm, x, eps=1e-5, eps_mode="outside")
    exact = results(norm, x, torch.float64, eps=1e-5, eps_mode="outside", backend="reference")
    assert ulp_error(rows(norm, mine[1]), rows(norm, exact[1])) <= 3.0
    for a, b in zip((mine[0], *mine[2:]), (exact[0], *exact[2:]), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("which", ["weight", "bias"])
@pytest.mark.parametrize(
    ("norm", "activation", "positions"),
    [
        *(
            ("group_norm", activation, positions)
            for activation in (None, "relu", "silu")
            for positions in (1, 3, 8, 49)
        ),
        *(("instance_norm", None, positions) for positions in (3, 8, 49)),
    ],
)
def test_a_parameter_stays_with_its_group(norm, activation, positions, which, bad):
    shape = (33, 8, positions)
    x = torch.randn(shape)
    extras = {} if norm == "instance_norm" else {"activation": activation}
    parameters = dict(zip(("weight", "bias", "cotangent"), tensors(x), strict=True))
    cotangent = parameters.pop("cotangent")
    spoilt = {**parameters, which: parameters[which].index_fill(0, torch.tensor([7]), bad)}
    found = []
    for own in (parameters, spoilt):
        leaves = [t.detach().requires_grad_() for t in (x, own["weight"], own["bias"])]
        y = call(norm, *leaves, **extras)
        found.append((y.detach(), *torch.autograd.grad(y, leaves, cotangent)))
    group = shape[1] // (GROUPS if norm == "group_norm" else shape[1])
    usual, beside = ((y[:, :-group], dx[:, :-group], dw[:-group], db[:-group]) for y, dx, dw, db in found)
    assert same_bits(usual, beside)


@every_layout
@pytest.mark.parametrize("byte", [2, 128, 255])
@pytest.mark.parametrize("shape", [(6, 8, 20, 19), (6, 8, 1, 1), (40, 6, 7, 7)], ids=str)
@pytest.mark.parametrize("norm", [*MEASURED, "inference"])
def test_a_mask_is_true_at_every_byte_but_zero(norm, shape, byte, layout):
    if norm == "instance_norm" and shape[2] == 1:
        shape = (6, 8, 2, 1)
    x = torch.randn(shape).contiguous(memory_format=LAYOUTS[layout])
    mask = torch.rand(shape[0], *shape[2:]) < 0.6
    mask[:2] = True
    same = torch.where(mask, byte, 0).to(torch.uint8).view(torch.bool)
    assert same_bits(results(norm, x, mask=mask), results(norm, x, mask=same))


@every_layout
@pytest.mark.parametrize("norm", MEASURED)
def test_channels_without_numbers_cost_the_others_nothing(norm, layout):
    """NaN in a channel or group: NaN there, dbias but that of no input; the other results keep their bits."""
    x = torch.randn(12, 20, 5, 3).contiguous(memory_format=LAYOUTS[layout])
    spoilt = x.clone(memory_format=torch.preserve_format)
    spoilt[:, 10:] = torch.nan
    usual, mine = results(norm, x), results(norm, spoilt)
    assert same_bits([t[:, :10] for t in usual[:2]], [t[:, :10] for t in mine[:2]])
    assert same_bits([t[:10] for t in usual[2:]], [t[:10] for t in mine[2:]])
    assert all(t[:, 10:].isnan().all() for t in mine[:2])
    assert mine[2][10:].isnan().all()
    torch.testing.assert_close(mine[3][10:], usual[3][10:])


def digests():
    """Digests of what leaves float's range in sums, scales and bends: name -> y and the gradients."""
    found = {}
    for norm, shape, layout in itertools.product(("batch_norm", "group_norm"), SHAPES[:2], LAYOUTS):
        for spread, slope, size in ((1e10, 1e30, 1), (1e-6, 1e-35, 1), (1e17, 1e12, 1e-30), (1e-14, 1e-6, 1e25)):
            x = spread * torch.randn(shape, generator=torch.Generator().manual_seed(6))
            x = x.contiguous(memory_format=LAYOUTS[layout])
            weight, bias, cotangent = tensors(x)
            leaves = [t.detach().requires_grad_() for t in (x, size * weight, size * bias)]
            y = call(norm, *leaves, eps=TINY, activation="relu")
            gradients = torch.autograd.grad(y, leaves, slope * cotangent)
            found[f"{norm} {shape} {layout} {spread} {size}"] = digest([y, *gradients])
    return found


def test_threads_do_not_change_a_bit():
    one, three = on_threads(digests, (1, 3))
    assert one == three


# products with the weight are above float's range; products with x are below it, their sums over the scale are not
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize(
    ("of_x", "of_dy", "of_weight"), [(1e10, 1e21, 1e25), (2.0**-46, 2.0**-100, 2.0**12), (2.0**-46, 2.0**-90, 1.0)]
)
@pytest.mark.parametrize("shape", [(5, 32, 5, 3), (3, 64, 4, 4)], ids=str)
def test_sums_of_channels_that_floats_do_not_hold(shape, of_x, of_dy, of_weight, activation):
    """Contiguous groups whose channels are summed at once: in double where products leave float's range."""
    x, dy = torch.randn(shape) * of_x, torch.randn(shape) * of_dy
    x[1] = torch.randn(shape[1:])  # beside a sample of another size
    parameters = (torch.rand(shape[1]) + 0.5) * of_weight, torch.zeros(shape[1])

    def gradients(dtype, backend):
        leaves = [t.to(dtype).detach().requires_grad_() for t in (x, *parameters)]
        y = F.group_norm(leaves[0], 2, *leaves[1:], eps=1e-80, activation=activation, backend=backend)
        return torch.autograd.grad(y, leaves, dy.to(dtype))

    (dx, *mine), (exact_dx, *exact) = gradients(torch.float32, "cpu"), gradients(torch.float64, "reference")
    is_held = exact_dx.flatten(1).abs().amax(1) < 3e38
    assert is_held.sum() >= shape[0] - 1
    assert ulp_error(dx.flatten(1)[is_held], exact_dx.flatten(1)[is_held]) <= 3.0
    assert all(ulp_error(a, b) <= 3.0 for a, b in zip(mine, exact, strict=True))
