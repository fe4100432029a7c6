"""Masks, fused activations and given statistics of the channel kernels."""

import itertools
import subprocess
import sys

import pytest
import torch
from bits import digest
from channel_calls import FLOATS, LAYOUTS, MEASURED, NORMS, call, errors, results, rows, same_bits, tensors
from settings import on_threads

from evenkeel import InvalidArgumentError, nn
from evenkeel import functional as F
from evenkeel.testing import ulp_error

ACTIVATED = [
    (norm, activation) for norm in ("batch_norm", "inference", "group_norm") for activation in ("relu", "silu")
]
SHAPES = ((6, 8, 5, 3), (6, 8, 20, 19), (40, 6, 7, 7), (2, 4, 70, 67), (3, 70, 9, 5))
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def some_mask(shape):
    """A mask in which every sample has a few valid positions at least."""
    mask = torch.rand(shape[0], *shape[2:], generator=torch.Generator().manual_seed(5)) < 0.6
    mask[:, 0] = True
    return mask


def poisoned(x, mask):
    """The input with NaN and infinity where it is padding, in its layout."""
    value = torch.where(torch.arange(x.shape[0]) % 2 == 0, float("nan"), float("inf"))
    spoilt = torch.where(mask[:, None], x, value.reshape(-1, 1, 1, 1).to(x.dtype))
    layout = torch.contiguous_format if x.is_contiguous() else torch.channels_last
    return spoilt.contiguous(memory_format=layout)


@every_layout
@every_shape
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_masked_results(norm, shape, layout, mean):
    mask = some_mask(shape)
    x = (mean + torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    if norm == "inference":
        x -= mean
    mine = results(norm, poisoned(x, mask), mask=mask)
    exact = results(norm, torch.where(mask[:, None], x, 0), torch.float64, mask=mask, backend="reference")
    assert max(errors(norm, mine, exact)) <= 3.0
    for t in mine[:2]:
        assert (t.movedim(1, -1)[~mask] == 0).all()


@every_layout
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_a_full_mask_changes_nothing(norm, dtype, layout):
    x = torch.randn(6, 8, 20, 19).to(dtype).contiguous(memory_format=LAYOUTS[layout])
    # 16-bit: the order of the sums differs, so a float may round the other way
    torch.testing.assert_close(results(norm, x, mask=torch.ones(6, 20, 19, dtype=torch.bool)), results(norm, x))


@every_layout
@pytest.mark.parametrize("norm", MEASURED)
@pytest.mark.parametrize("samples", [slice(None), slice(1, 2)], ids=["all", "one sample"])
def test_nothing_valid_gives_zeros(norm, samples, layout):
    x = torch.randn(3, 4, 9, 11).contiguous(memory_format=LAYOUTS[layout])
    mask = torch.ones(3, 9, 11, dtype=torch.bool)
    mask[samples] = False
    y, dx, dweight, dbias = results(norm, poisoned(x, mask), mask=mask, eps=1e-30)
    assert (y[samples] == 0).all()
    assert (dx[samples] == 0).all()
    assert all(t.isfinite().all() for t in (y, dx, dweight, dbias))


# statistics of few values and of many, of less than 16 channels and of more; groups side by side, in runs, in rows
# whose y comes from planes and from rows, in planes
RECTIFIED = (
    *(((4, 90, 2, 2), 0), ((4, 90, 4, 4), 0), ((2, 15, 5, 5), 0), ((4, 15, 1, 1), 0), ((3, 40, 10, 10), 0)),
    *(((4, 90, 2, 2), 90), ((4, 90, 2, 2), 45), ((4, 15, 2, 2), 3), ((4, 96, 2, 2), 3), ((4, 32, 2, 2), 2)),
    *(((9, 15, 8, 8), 3), ((2, 12, 6, 6), 2), ((2, 64, 9, 9), 16), ((9, 64, 5, 5), 2), ((4, 90, 10, 10), 9)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@every_layout
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("shape", "groups"), RECTIFIED, ids=str)
def test_a_gradient_passes_through_relu_where_y_is_positive(shape, groups, masked, layout, dtype):
    def norm(x, bias, **options):
        if groups:
            return F.group_norm(x, groups, weight.to(bias.dtype), bias, **options)
        return F.batch_norm(x, None, None, weight.to(bias.dtype), bias, training=True, **options)

    def by_channels(t):
        return t.transpose(0, 1).flatten(1)

    x = torch.randn(shape).to(dtype).contiguous(memory_format=LAYOUTS[layout])
    extras = {"mask": torch.ones(shape[0], *shape[2:], dtype=torch.bool)} if masked else {}
    sizes = 10.0 ** torch.randint(-21, 26, shape[1:2], dtype=torch.float64)
    weight = (torch.rand_like(sizes) + 0.5) * torch.where(torch.rand_like(sizes) < 0.5, 1.0, sizes)
    without_bias = by_channels(norm(x.double(), torch.zeros_like(weight)))
    place = torch.randint(without_bias.shape[1], (shape[1], 1))  # in each channel an element whose y is about 0
    cotangent = torch.zeros_like(without_bias).scatter(1, place, 1.0)
    cotangent = cotangent.unflatten(1, (shape[0], *shape[2:])).transpose(0, 1).to(dtype)
    zero = -without_bias.gather(1, place)[:, 0].to(torch.promote_types(dtype, torch.float32))
    for bias in (zero, *(zero.nextafter(torch.full_like(zero, end)) for end in (-torch.inf, torch.inf))):
        y = norm(x, bias.requires_grad_(), activation="relu", backend="cpu", **extras)
        (passed,) = torch.autograd.grad(y, bias, cotangent)
        assert torch.equal(passed > 0, by_channels(y).gather(1, place)[:, 0] > 0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_threads_do_not_change_a_bit(norm, dtype, masked):
    extras = {} if norm == "instance_norm" else {"activation": "silu"}
    shapes = (*SHAPES, (5, 2048, 4, 2))
    inputs = [torch.randn(s).to(dtype).contiguous(memory_format=m) for s in shapes for m in LAYOUTS.values()]
    masks = [some_mask(shape) if masked else None for shape in shapes for _ in LAYOUTS]
    pairs = list(zip(inputs, masks, strict=True))
    found = on_threads(lambda: [t for x, mask in pairs for t in results(norm, x, mask=mask, **extras)])
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


def digests():
    """A digest of the results with a mask, an activation and both, for each norm, dtype and shape."""
    torch.manual_seed(0)
    found = {}
    for norm, dtype, masked in itertools.product(NORMS, FLOATS, (False, True)):
        extras = {} if norm == "instance_norm" else {"activation": "silu"}
        for shape, layout in itertools.product(SHAPES, LAYOUTS.values()):
            x = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
            mine = results(norm, x, mask=some_mask(shape) if masked else None, **extras)
            found[f"{norm} {dtype} {masked} {shape} {layout}"] = digest(mine)
    return found


FORK_PROGRAM = """
import os, sys, torch, evenkeel
operators = torch.ops.evenkeel
layouts = (torch.contiguous_format, torch.channels_last)
pairs = [[torch.randn(16, 64, 40, 40).contiguous(memory_format=m) for _ in range(2)] for m in layouts]
def run():
    found = []
    for (x, dy), groups, activation in [(pair, groups, 2 * (groups > 0)) for pair in pairs for groups in (0, 8)]:
        options = (groups, 1e-5, 0, 0.0, activation)
        y, statistics, _ = operators.channels_forward(x, None, None, None, None, None, *options)
        dx = operators.channels_backward(dy, x, None, None, statistics, None, False, *options, True, False, False)[0]
        found += [t.numpy().tobytes() for t in (y, statistics, dx)]
    return found
expected = run()  # starts the threads
child = os.fork()
if child == 0:  # nothing of torch that runs in parallel here: that would hang
    os._exit(0 if run() == expected else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_does_not_hang():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_PROGRAM], timeout=60, check=False)
    assert done.returncode == 0


def torch_activation(activation):
    return torch.relu if activation == "relu" else torch.nn.functional.silu


# the last four: short runs of channels, eight at a time with and without a rest; SiLU's slope in floats errs by up to
# 3.6 ulps there
@every_layout
@pytest.mark.parametrize(
    ("shape", "limit"),
    [
        *(((6, 8, 20, 19), 3.0), ((40, 6, 7, 7), 3.0)),
        *(((11, 32, 7, 7), 4.0), ((8, 42, 5, 5), 4.0), ((19, 64, 14, 9), 4.0), ((3, 18, 16, 16), 4.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("norm", "activation"), ACTIVATED)
def test_activations(norm, activation, masked, shape, limit, layout):
    """In ulps of what the norm alone gives, too: an activation may leave a row only its smallest values."""
    x = torch.randn(shape).contiguous(memory_format=LAYOUTS[layout])
    mask = some_mask(shape) if masked else None
    mine = results(norm, x, mask=mask, activation=activation)
    exact = results(norm, x, torch.float64, mask=mask, activation=activation, backend="reference")
    alone = results(norm, x, mask=mask)
    for index in range(4):
        a, b, scale = (rows(norm, t[index]) if index < 2 else t[index] for t in (mine, exact, alone))
        assert ulp_error(torch.cat([a, scale], -1), torch.cat([b, scale.double()], -1)) <= limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("norm", "activation"), ACTIVATED)
def test_an_activated_result_is_rounded_once(norm, activation, dtype):
    x = torch.randn(6, 8, 20, 19).to(dtype)
    mine = results(norm, x, activation=activation)
    exact = results(norm, x, torch.float64, activation=activation, backend="reference")
    assert max(errors(norm, mine, exact)) <= 0.51


@pytest.mark.parametrize(("norm", "activation"), ACTIVATED)
def test_an_activation_is_torchs_after_the_norm(norm, activation):
    x = torch.randn(4, 6, 9, 11, dtype=torch.float64)
    weight, bias, cotangent = tensors(x)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    fused = call(norm, *leaves, activation=activation)
    apart = torch_activation(activation)(call(norm, *leaves))
    torch.testing.assert_close(fused, apart)
    wanted = torch.autograd.grad(apart, leaves, cotangent)
    torch.testing.assert_close(torch.autograd.grad(fused, leaves, cotangent), wanted)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_silu_far_from_zero(dtype, backend):
    pre = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([-1e30, 1e30, -0.0, 0.0])]).to(dtype)
    x = pre.reshape(1, 1, -1).requires_grad_()
    y = F.batch_norm(x, torch.zeros(1), torch.ones(1), eps=0.0, activation="silu", backend=backend)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = pre.double().requires_grad_()
    wanted = torch.nn.functional.silu(exact)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), exact)
    precision = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.flatten().double(), wanted.detach(), rtol=precision, atol=1e-30)
    torch.testing.assert_close(slope.flatten().double(), wanted_slope, rtol=precision, atol=4 * precision)


@pytest.mark.parametrize("eps_mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("scale", [1e18, 1e-20])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_activations_outside_the_range_of_float(activation, scale, eps_mode):
    x = scale * torch.randn(6, 8, 5, 7)
    options = {"eps": 1e-60, "eps_mode": eps_mode, "activation": activation}
    mine = results("group_norm", x, **options)
    exact = results("group_norm", x, torch.float64, **options, backend="reference")
    assert max(errors("group_norm", mine, exact)) <= 3.0


@every_layout
@pytest.mark.parametrize("shape", [(8, 6, 5, 3), (8, 6, 20, 19)], ids=str)
@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_given_means_far_above_the_spread(mean, shape, layout):
    """The running mean in float64, and inputs near it: no digit is lost that the result needs."""
    x = (mean + torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    running_mean = mean + torch.randn(6, dtype=torch.float64)
    running_var = 1 + torch.rand(6, dtype=torch.float64)
    weight = torch.rand(6) + 0.5
    for bias in (torch.randn(6), (mean * weight / running_var.sqrt()).float()):
        mine = F.batch_norm(x, running_mean, running_var, weight, bias, eps=0.0, backend="cpu")
        exact = F.batch_norm(
            x.double(), running_mean, running_var, weight.double(), bias.double(), eps=0.0, backend="reference"
        )
        assert ulp_error(rows("inference", mine), rows("inference", exact)) <= 3.0


@every_layout
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("shape", [(8, 6, 5, 3), (8, 6, 20, 19)], ids=str)
@pytest.mark.parametrize("mean", [1e2, 1e3, 1e4, 1e6])
def test_inputs_far_from_the_given_means(mean, shape, activation, layout):
    """The bias takes back what the inputs are off: terms cancel to a result that a factor in float would spoil."""
    x = (mean + torch.randn(shape)).contiguous(memory_format=LAYOUTS[layout])
    running_mean, running_var = torch.randn(6, dtype=torch.float64), 1 + torch.rand(6, dtype=torch.float64)
    weight, cotangent = torch.rand(6) + 0.5, torch.randn(shape)
    bias = ((running_mean - mean) * weight / running_var.sqrt()).float()
    found = []
    for backend, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        options = {"eps": 0.0, "activation": activation, "backend": backend}
        y = F.batch_norm(leaves[0], running_mean, running_var, *leaves[1:], **options)
        found.append((y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(dtype))))
    assert max(errors("inference", *found)) <= 3.0


@every_layout
@pytest.mark.parametrize("shape", [(16, 6, 5, 3), (6, 8, 20, 19)], ids=str)
@pytest.mark.parametrize("mean", [2.0**14, 2.0**20])
@pytest.mark.parametrize("norm", MEASURED)
def test_a_large_mean_costs_float64_no_digit(norm, mean, shape, layout):
    """The shift is exact, so the results are those of the input without it, up to the roundings of either."""
    near = (torch.randn(shape, dtype=torch.float64) * 2**20).round() / 2**20
    near = near.contiguous(memory_format=LAYOUTS[layout])
    assert max(errors(norm, results(norm, near + mean), results(norm, near))) <= 16.0


@pytest.mark.parametrize("channels", [2, 3, 7, 20])
@pytest.mark.parametrize("positions", [(8, 16), (5, 7)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_few_channels_last(norm, positions, channels):
    channels = 2 * channels if norm == "group_norm" else channels
    x = torch.randn(4, channels, *positions).contiguous(memory_format=torch.channels_last)
    mine, exact = results(norm, x), results(norm, x, torch.float64, backend="reference")
    assert max(errors(norm, mine, exact)) <= 3.0


def test_masked_running_statistics_weigh_every_valid_position():
    x, mask = 1e3 + torch.randn(5, 4, 9), torch.rand(5, 9) < 0.5
    running = [torch.zeros(4), torch.ones(4)]
    F.batch_norm(x, *running, training=True, momentum=1.0, mask=mask, backend="cpu")
    valid = x.transpose(1, 2)[mask].double()
    torch.testing.assert_close(running[0].double(), valid.mean(0), rtol=1e-7, atol=0)
    torch.testing.assert_close(running[1].double(), valid.var(0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["batch", "group"])
@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (4, 6)], ids=str)
def test_modules_take_an_activation(kind, shape):
    if kind == "batch":
        module = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(6, activation="silu")
    else:
        module = nn.GroupNorm(3, 6, activation="silu")
    plain = type(module)(*((6,) if kind == "batch" else (3, 6)))
    x = torch.randn(shape)
    torch.testing.assert_close(module(x), torch.nn.functional.silu(plain(x)))
    assert "activation=silu" in repr(module)
    assert "activation" not in repr(plain)
    with pytest.raises(InvalidArgumentError, match="activation must be None, 'relu' or 'silu', but got 'gelu'"):
        type(module)(*((6,) if kind == "batch" else (3, 6)), activation="gelu")
    with pytest.raises(InvalidArgumentError, match=r"group_norm: activation must be .* but got 'tanh'"):
        F.group_norm(x, 3, activation="tanh")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 128, 9, 10), (2, 16, 3, 4, 2), (1, 512, 48, 48)], ids=str)
def test_instance_norm_of_channels_last_tensors_has_the_bits_of_contiguous_ones(shape, dtype):
    torch.manual_seed(0)
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    tensors = [torch.randn(shape).to(dtype), *(torch.randn(shape[1]).to(dtype) for _ in range(2))]
    dy = torch.randn(shape).to(dtype)

    def outcome(laid_out):
        x, *parameters = (t.detach().requires_grad_() for t in (laid_out(tensors[0]), *tensors[1:]))
        y = F.instance_norm(x, None, None, *parameters)
        assert y.is_contiguous()
        return [y, *torch.autograd.grad(y, (x, *parameters), laid_out(dy))]

    found, expected = outcome(lambda t: t.contiguous(memory_format=layout)), outcome(lambda t: t)
    assert all(map(torch.equal, found, expected))
