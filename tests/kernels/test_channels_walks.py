"""Where the channel kernels change their way through memory: groups of few positions, outputs past the caches."""

import random

import pytest
import torch
from channel_calls import FLOATS, GROUPS, LAYOUTS, MEASURED, NORMS, call, errors, results, rows, same_bits, tensors
from settings import on_threads

from evenkeel import functional as F
from evenkeel.testing import ulp_error

# A matrix, a sequence, images; one vector, several, a part of one; one sample to a block, several, fewer in the last.
FEW_POSITIONS = (
    *((5, 32), (40, 12), (49, 34, 3), (3, 6, 7, 7), (33, 8, 5, 3), (2, 256, 8, 7)),
    *((21, 32, 7, 7), (35, 64, 5, 5), (3, 24, 9, 11), (3, 1100, 5, 4), (9, 512)),  # gradients in floats
    *((9, 360, 3, 3), (2, 1280, 4, 4), (19, 96, 4, 4)),  # sums of channels, eight at a time, with some left over
)
# The same channels-last: a vector of channels, several, with a part of one; gradients in double, then in floats. Then
# vectors not much more than half full.
FEW_RUNS = (
    *((19, 32, 2, 2), (3, 32, 2, 2), (33, 96, 2, 1), (33, 96, 2, 2), (5, 66, 3, 5), (20, 1024, 3, 3)),
    *((21, 20, 2, 2), (9, 20, 3, 3), (12, 48, 3, 3)),
)
# Groups side by side: one chunk of lanes, several, with a part of one; several samples at a time; 16, 32 and 33 lanes;
# one channel to a group, a part of a vector, more than a vector; the largest groups that are treated so.
SMALL_GROUPS = (
    *(((5, 320, 2, 2), 40), ((9, 200, 3, 3), 25), ((21, 36, 2, 2), 9), ((19, 24, 4, 4), 4), ((5, 96, 3, 3), 96)),
    *(((3, 66, 1, 2), 33), ((4, 384, 1, 2), 16), ((7, 640, 2, 2), 32), ((2, 96, 4, 4), 16), ((40, 20, 2, 2), 1)),
)
LARGE = (17, 64, 65, 65)  # more than 16 MB: written past the caches


def drawn(shape, dtype=torch.float32):
    layout = LAYOUTS["channels_last" if shape in FEW_RUNS else "contiguous"]
    return torch.randn(shape).to(dtype).contiguous(memory_format=layout)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [*FEW_POSITIONS, *FEW_RUNS], ids=str)
def test_groups_of_few_positions(shape, dtype, activation):
    x = drawn(shape, dtype)
    mine = results("group_norm", x, activation=activation)
    exact = results("group_norm", x, torch.float64, activation=activation, backend="reference")
    alone = results("group_norm", x)  # an activation may leave a row only its smallest values
    # float64 is compared with float64: neither of the two is exact
    limit = {torch.float32: 4.0 if shape in FEW_RUNS else 3.0, torch.float64: 16.0}.get(dtype, 0.51)
    for a, b, scale in zip(mine[:2], exact[:2], alone[:2], strict=True):
        a, b, scale = (rows("group_norm", t) for t in (a, b, scale))
        assert ulp_error(torch.cat([a, scale], -1), torch.cat([b, scale.double()], -1)) <= limit
    for a, b in zip(mine[2:], exact[2:], strict=True):
        # of terms about 1, and of the largest sum of them; of few terms that are floats the roundings show
        tolerance = max((3 if shape in FEW_RUNS else 1) * torch.finfo(dtype).eps, 1e-14)
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance * max(1, b.abs().max().item()))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        *(("group_norm", shape) for shape in (*FEW_POSITIONS, *FEW_RUNS)),
        *(("instance_norm", shape) for shape in FEW_POSITIONS if len(shape) > 2),  # a single position has no spread
    ],
    ids=str,
)
def test_a_group_of_few_positions_depends_on_neither_the_batch_nor_the_threads(norm, shape):
    x = drawn(shape)
    weight, bias, cotangent = tensors(x)
    found, *others = on_threads(lambda: results(norm, x))
    assert all(same_bits(found, other) for other in others)
    y, dx, *_ = found
    alone = x[1:2].clone().requires_grad_()
    y_alone = call(norm, alone, weight, bias)
    assert torch.equal(y[1:2], y_alone)
    assert torch.equal(dx[1:2], torch.autograd.grad(y_alone, alone, cotangent[1:2])[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        *(("batch_norm", shape) for shape in ((8, 512), (21, 77), (32, 65), (3, 130, 3, 3), (2, 40, 4, 4))),
        *(("instance_norm", shape) for shape in ((6, 130, 3, 3), (21, 24, 4, 4), (5, 40, 5, 4))),
        *(("group_norm", (60, GROUPS, *sides)) for sides in ((3, 3), (4, 4), (5, 4))),  # of each channel
    ],
    ids=str,
)
def test_gradients_of_few_elements_are_the_exact_ones_rounded(norm, shape, layout):
    """However far they cancel: the statistics that the forward saves must not be those of sums of floats."""
    x = torch.randn(shape)
    x = x.contiguous(memory_format=LAYOUTS[layout]) if x.ndim == 4 else x
    for activation in (None, "relu", "silu") if norm == "batch_norm" else (None,):
        extras = {"activation": activation} if activation else {}
        found = results(norm, x, **extras)[1]
        exact = results(norm, x, torch.float64, backend="reference", **extras)[1]
        assert ulp_error(rows(norm, found), rows(norm, exact)) <= 0.51


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), SMALL_GROUPS, ids=str)
def test_small_groups_side_by_side(shape, groups, dtype, activation):
    """Channels-last: a sample has the bits that it has alone, and those of any number of threads."""
    x = torch.randn(shape).to(dtype)
    leaves = (x.contiguous(memory_format=torch.channels_last), *tensors(x)[:2])
    cotangent = torch.randn(shape).to(dtype)

    def gradients(x, weight, bias, cotangent=cotangent, dtype=dtype, activation=activation, backend="cpu"):
        own = [t.detach().to(dtype).requires_grad_() for t in (x, weight, bias)]
        y = F.group_norm(own[0], groups, *own[1:], activation=activation, backend=backend)
        return (y.detach(), *torch.autograd.grad(y, own, cotangent.to(dtype)))

    found, *others = on_threads(lambda: gradients(*leaves))
    assert all(same_bits(found, other) for other in others)
    assert same_bits([t[1:2] for t in found[:2]], gradients(leaves[0][1:2], *leaves[1:], cotangent[1:2])[:2])
    wide = {"dtype": torch.float64, "backend": "reference"}
    exact, alone = (gradients(*leaves, activation=applied, **wide) for applied in (activation, None))
    limit = {torch.float32: 3.0, torch.float64: 32.0}.get(dtype, 0.51)
    for a, b, scale in zip(found[:2], exact[:2], alone[:2], strict=True):  # an activation may leave a row its smallest
        a, b, scale = (t.unflatten(1, (groups, -1)).flatten(2).double() for t in (a, b, scale))
        assert ulp_error(torch.cat([a, scale], -1).to(dtype), torch.cat([b, scale], -1)) <= limit
    slope = 2 if activation == "silu" and dtype == torch.float32 else 1  # of more than 64 elements in floats
    for a, b in zip(found[2:], exact[2:], strict=True):
        tolerance = slope * max(torch.finfo(dtype).eps, 1e-14) * max(1, b.abs().max().item())
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("positions", [(4, 4), (5, 3), (8, 8), (13, 5)], ids=str)  # up to 64 are summed in floats
@pytest.mark.parametrize("norm", ["batch_norm", "group_norm"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_gradients_of_short_runs(activation, norm, positions, dtype):
    """Eight runs are summed at a time, and what is left of a statistic's or a thread's one by one."""
    x = (3 + torch.randn(19, 74, *positions)).to(dtype)
    found = on_threads(lambda: results(norm, x, activation=activation))
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])
    exact = results(norm, x, torch.float64, backend="reference", activation=activation)
    limit = {torch.float32: 3.0, torch.float64: 32.0}.get(dtype, 0.51)
    off = errors(norm, found[0], exact)
    assert max(off[1:] if activation else off) <= limit  # an activation may leave a row of y only its smallest values


@pytest.mark.parametrize("seed", range(40))
def test_channels_last_groups_of_small_maps(seed):
    """A group's channels are measured about one number, which its first position may place badly."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    share = dice.choice((1, 2, 3, 5, 8, 10, 16, 24, 40, 96, 300))
    shape = (dice.randint(1, 20), 2 * share, dice.randint(1, 8), dice.randint(2, 8))
    dtype = dice.choice(FLOATS)
    x = torch.randn(shape).to(dtype) * dice.choice((1, 0.01)) + dice.choice((0, 0, 1, 100))
    if dice.random() < 0.5:
        x[:, :, 0, 0] += dice.choice((3, 1000))
    mine = results("group_norm", x.contiguous(memory_format=torch.channels_last))
    exact = results("group_norm", x, torch.float64, backend="reference")
    limit = {torch.float32: 3.0, torch.float64: 16.0}.get(dtype, 0.51)
    for a, b in zip(mine[:2], exact[:2], strict=True):
        assert ulp_error(rows("group_norm", a), rows("group_norm", b)) <= limit


@pytest.mark.parametrize("shape", [(49, 34, 3), (49, 32, 7, 7), *FEW_RUNS], ids=str)
@pytest.mark.parametrize("scale", [1e30, 1e-25])
def test_groups_of_few_positions_outside_of_what_float_squares_hold(scale, shape):
    """Some samples of a block are done again, and add to the sums of the others."""
    x = drawn(shape)
    x[::3] *= scale
    mine = results("group_norm", x, eps=0.0)
    exact = results("group_norm", x, torch.float64, eps=0.0, backend="reference")
    assert max(errors("group_norm", mine, exact)) <= 3.0


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(
    ("share", "positions"),
    [(10, (2, 2)), (10, (3, 3)), (13, (2, 2)), (13, (3, 2)), (16, (3, 2)), (24, (3, 3)), (30, (2, 1)), (40, (3, 2))],
)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30, 0.0])
def test_a_group_of_channels_knows_nothing_of_its_neighbours(value, share, positions, activation):
    """A group's last vector reaches into the next one's channels."""
    x = torch.randn(9, 3 * share, *positions).contiguous(memory_format=torch.channels_last)
    others = torch.arange(3 * share) // share != 1
    cotangent = torch.randn(x.shape)

    def gradients(x):
        leaves = [t.detach().requires_grad_() for t in (x, torch.ones(3 * share), torch.zeros(3 * share))]
        y = F.group_norm(leaves[0], 3, *leaves[1:], activation=activation, backend="cpu")
        y, dx, *affine = (y, *torch.autograd.grad(y, leaves, cotangent))
        return [*(t[:, others] for t in (y.detach(), dx)), *(t[others] for t in affine)]

    alone = gradients(x)
    x[:, ~others] = value
    assert same_bits(gradients(x), alone)


@pytest.mark.parametrize(
    "options",
    [{}, {"eps_mode": "outside"}, {"eps_mode": "clamp"}, {"weight_offset": 1.0}, {"activation": "silu"}],
    ids=str,
)
@pytest.mark.parametrize("shape", FEW_RUNS, ids=str)
def test_runs_of_channels_with_and_without_parameters(shape, options):
    """Each gradient alone has the bits that it has among all."""
    x = drawn(shape)
    weight, bias, cotangent = tensors(x)
    for affine in ((weight, bias), (weight, None), (None, None)):
        leaves = [t.detach().requires_grad_() for t in (x, *(p for p in affine if p is not None))]
        plain = options if affine[0] is not None else {k: v for k, v in options.items() if k != "weight_offset"}

        def gradients(dtype=torch.float32, wanted=slice(None), leaves=leaves, plain=plain, **backend):
            own = [t.detach().to(dtype).requires_grad_() for t in leaves]
            return torch.autograd.grad(call("group_norm", *own, **plain, **backend), own[wanted], cotangent.to(dtype))

        found, exact = gradients(), gradients(torch.float64, backend="reference")
        assert ulp_error(rows("group_norm", found[0]), rows("group_norm", exact[0])) <= 4.0
        for i, gradient in enumerate(found):
            assert torch.equal(gradients(wanted=slice(i, i + 1))[0], gradient)


@pytest.mark.parametrize(
    ("size", "activation", "tolerance"),
    [(2e38, None, 1e-5), (2e38, "relu", 1e-5), (2e38, "silu", 1e-5), (1e-43, None, 0.015)],  # 0.015: the smallest float
)
@pytest.mark.parametrize(
    ("shape", "first"), [((20, 1024, 3, 3), 1), ((21, 32, 7, 7), 1), ((35, 64, 5, 5), 0), ((9, 512), 0)]
)
def test_sums_of_groups_that_floats_do_not_hold(shape, first, activation, size, tolerance):
    """The affine's gradients, and dx where it follows from such sums alone (first: of what is compared)."""
    x = drawn(shape)
    weight, bias, cotangent = tensors(x)
    cotangent = cotangent.sign() * size
    found, exact = [], []
    for results_of, dtype, backend in ((found, torch.float32, "cpu"), (exact, torch.float64, "reference")):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        y = call("group_norm", *leaves, activation=activation, backend=backend)
        results_of.extend(torch.autograd.grad(y, leaves[first:], cotangent.to(dtype)))
    for a, b in zip(found, exact, strict=True):
        assert torch.equal(a.isfinite(), b.float().isfinite())
        torch.testing.assert_close(a.double() / size, b.float().double() / size, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 10])
def test_groups_of_many_channels_with_few_positions(groups, dtype):
    """Channels-last: runs of a group's channels; samples far from zero and below what float squares hold."""
    for shape in ((5, 640, 3, 2), (3, 17 * 1280, 2, 1)):
        x = torch.randn(shape).to(dtype).contiguous(memory_format=torch.channels_last)
        x[1] += 100
        x[2] *= 1e-30 if dtype != torch.float16 else 1e-6
        weight, bias, _ = tensors(x)

        def apply(x, weight, bias, backend):
            return F.group_norm(x, groups, weight, bias, eps=0.0, activation="silu", backend=backend)

        mine = apply(x, weight, bias, "cpu")
        exact = apply(x.double(), weight.double(), bias.double(), "reference")
        assert ulp_error(mine.flatten(1), exact.flatten(1)) <= {torch.float32: 3.0, torch.float64: 16.0}.get(
            dtype, 0.51
        )
        alone = x[1:2].clone(memory_format=torch.preserve_format)
        assert torch.equal(apply(alone, weight, bias, "cpu"), mine[1:2])


@pytest.mark.parametrize("norm", NORMS)
def test_more_columns_than_a_strip_has(norm):
    """A partial strip, rows that do not divide into the items that are summed nor into those that are written."""
    x = torch.randn(19, 520, 5, 3).contiguous(memory_format=torch.channels_last)
    exact = results(norm, x, torch.float64, backend="reference")
    assert max(errors(norm, results(norm, x), exact)) <= 3.0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", MEASURED)
def test_large_outputs(norm, layout):
    """Bits of a sample alone where statistics are its own; accuracy where they are not."""
    x = torch.randn(LARGE).contiguous(memory_format=LAYOUTS[layout])
    weight, bias, cotangent = tensors(x)
    extras = {} if norm == "instance_norm" else {"activation": "silu"}
    mine = results(norm, x, **extras)
    if norm == "batch_norm":
        plain = results(norm, x)
        exact = results(norm, x, torch.float64, backend="reference")
        assert max(errors(norm, plain, exact)) <= 3.0
        expected = torch.nn.functional.silu(exact[0])
        assert ulp_error(mine[0].transpose(0, 1).flatten(1), expected.transpose(0, 1).flatten(1)) <= 3.0
        return
    alone = x[:1].clone(memory_format=torch.preserve_format).requires_grad_()
    y = call(norm, alone, weight, bias, **extras)
    dx = torch.autograd.grad(y, alone, cotangent[:1].contiguous(memory_format=LAYOUTS[layout]))[0]
    assert same_bits((mine[0][:1], mine[1][:1]), (y.detach(), dx))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("few", range(2, 10))
def test_matrices_of_few_rows_or_columns_are_turned(few, dtype):
    """Maps of few channels are laid channel by channel; of channels with few positions a sample is turned and back."""
    for side in (1, 3, 8, 23):
        x = torch.randn(3, few, side, side + 1).to(dtype)
        last = x.contiguous(memory_format=torch.channels_last)
        assert torch.equal(F.instance_norm(last, backend="cpu"), F.instance_norm(x, backend="cpu"))
    wide = torch.randn(2, 600 + few, 9, 9).to(dtype)  # several panels of positions, the last one a short one
    last = wide.contiguous(memory_format=torch.channels_last)
    assert torch.equal(F.instance_norm(last, backend="cpu"), F.instance_norm(wide, backend="cpu"))
    for channels in (40, 132):
        x = torch.randn(4, channels, few).to(dtype)
        mine = results("batch_norm", x)
        exact = results("batch_norm", x, torch.float64, backend="reference")
        assert max(errors("batch_norm", mine, exact)) <= {torch.float32: 3.0, torch.float64: 16.0}.get(dtype, 0.51)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(13, 64, 60, 60), (11, 33, 8, 8), (9, 20, 7, 7), (64, 128, 13, 13)], ids=str)
def test_gradients_of_whole_runs(shape, dtype, activation):
    """Runs of a channel, each summed whole: long ones past small caches, short ones in batches or sample by sample."""
    x = torch.randn(shape).to(dtype)
    mine, *others = on_threads(lambda: results("batch_norm", x, activation=activation))
    assert all(same_bits(mine, other) for other in others)
    exact = results("batch_norm", x, torch.float64, activation=activation, backend="reference")
    limit = 3.0 if dtype == torch.float32 else 0.51
    assert max(errors("batch_norm", mine, exact)[1:]) <= limit  # an activation may leave y only its smallest values


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6])
def test_weight_offset_where_terms_cancel(mean, layout):
    """1 + weight is not rounded: far from the given mean the bias takes back what the factor makes of it."""
    x = torch.randn(6, 8, 20, 19).contiguous(memory_format=LAYOUTS[layout])
    weight = torch.randn(8)
    bias = (mean * (weight.double() + 1)).float()
    given = torch.full((8,), mean, dtype=torch.float64), torch.ones(8, dtype=torch.float64)

    def inference(backend, *tensors):
        return F.batch_norm(tensors[0], *given, *tensors[1:], eps=0.0, weight_offset=1.0, backend=backend)

    mine = inference("cpu", x, weight, bias)
    exact = inference("reference", x.double(), weight.double(), bias.double())
    assert ulp_error(mine.transpose(0, 1).flatten(1), exact.transpose(0, 1).flatten(1)) <= 3.0
