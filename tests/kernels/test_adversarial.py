"""Inputs that break kernels, for every public norm: special values, edge sizes, odd memory, gradients left out."""

import itertools

import pytest
import torch

from evenkeel import functional as F
from evenkeel.testing import ulp_error

CHANNELS, SHAPE = 6, (4, 6, 3, 8)


def remembered(x):
    channels = torch.arange(x.shape[1], dtype=torch.float64)
    return (channels / 4).to(x.dtype), (1 + channels / 8).to(x.dtype)


# name -> ((functions, x, weight, bias) -> y, axes that share a statistic, axis of the parameters, parameters)
NORMS = {
    "layer_norm": (lambda f, x, w, b: f.layer_norm(x, x.shape[-1:], w, b), (3,), 3, 2),
    "layer_norm over two axes": (
        lambda f, x, w, b: f.layer_norm(
            x, x.shape[-2:], *(None if p is None else p.expand(x.shape[-2:]) for p in (w, b))
        ),
        (2, 3),
        3,
        2,
    ),
    "rms_norm": (lambda f, x, w, b: f.rms_norm(x, x.shape[-1:], w, 1e-5), (3,), 3, 1),
    "normalize": (lambda f, x, w, b: f.normalize(x, dim=-1, eps=1e-3), (3,), 3, 0),
    "batch_norm": (lambda f, x, w, b: f.batch_norm(x, None, None, w, b, True), (0, 2, 3), 1, 2),
    "batch_norm inference": (lambda f, x, w, b: f.batch_norm(x, *remembered(x), w, b), (), 1, 2),
    "instance_norm": (lambda f, x, w, b: f.instance_norm(x, None, None, w, b), (2, 3), 1, 2),
    "group_norm": (lambda f, x, w, b: f.group_norm(x, x.shape[1], w, b), (2, 3), 1, 2),
}
every_norm = pytest.mark.parametrize("norm", NORMS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)


def parameters(norm, x):
    """Weight and bias, or None for what the norm does not take."""
    generator = torch.Generator().manual_seed(3)
    _, _, axis, count = NORMS[norm]
    sizes = (x.shape[axis],)
    return [torch.randn(sizes, generator=generator).to(x.dtype) if i < count else None for i in range(2)]


def cotangent_for(x):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).to(x.dtype)


def results(norm, x, weight, bias, cotangent, functions=F):
    """y, dx and the parameters' gradients."""
    present = [t for t in (x, weight, bias) if t is not None]
    leaves = {id(t): t.detach().requires_grad_() for t in present}  # views of the same memory, strides and all
    x, weight, bias = (None if t is None else leaves[id(t)] for t in (x, weight, bias))
    y = NORMS[norm][0](functions, x, weight, bias)
    return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), cotangent)]


def usual(norm, x):
    return results(norm, x, *parameters(norm, x), cotangent_for(x))


def together_with(norm, where):
    """True at the elements that share a statistic with one of those marked."""
    axes = NORMS[norm][1]
    return where.float().amax(axes, keepdim=True).bool().expand_as(where) if axes else where


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@every_dtype
@every_norm
def test_what_is_not_finite_stays_with_its_statistic(norm, dtype, bad):
    x = torch.randn(SHAPE).to(dtype)
    where = torch.zeros(SHAPE, dtype=torch.bool)
    where[1, 2, 0, 5] = where[3, 4, 2, 0] = True
    clean, spoiled = usual(norm, x), usual(norm, x.masked_fill(where, bad))
    touched = together_with(norm, where)
    for mine, wanted in zip(spoiled[:2], clean[:2], strict=True):
        assert torch.equal(mine[~touched], wanted[~touched])
    assert not spoiled[0][where].isfinite().any()


@every_norm
def test_an_upstream_gradient_that_is_not_finite_stays_with_its_statistic(norm):
    x = torch.randn(SHAPE)
    where = torch.zeros(SHAPE, dtype=torch.bool)
    where[1, 2, 0, 5] = True
    cotangent = cotangent_for(x)
    clean = results(norm, x, *parameters(norm, x), cotangent)
    spoiled = results(norm, x, *parameters(norm, x), cotangent.masked_fill(where, torch.nan))
    touched = together_with(norm, where)
    assert torch.equal(spoiled[0], clean[0])
    assert torch.equal(spoiled[1][~touched], clean[1][~touched])
    assert spoiled[1][where].isnan().all()


@every_dtype
@every_norm
def test_zeros_of_either_sign(norm, dtype):
    weight, bias = parameters(norm, torch.zeros(SHAPE, dtype=dtype))
    found = [
        results(norm, zeros, weight, bias, cotangent_for(zeros))
        for zeros in (torch.zeros(SHAPE, dtype=dtype), -torch.zeros(SHAPE, dtype=dtype))
    ]
    assert all(t.isfinite().all() for t in found[0])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    if norm != "batch_norm inference":
        shift = torch.zeros(()) if bias is None else bias.reshape([-1 if d == NORMS[norm][2] else 1 for d in range(4)])
        assert torch.equal(found[0][0], shift.to(dtype).expand(SHAPE))


@every_norm
def test_subnormal_values(norm):
    x = torch.randn(SHAPE) * 1e-40
    x[0, 0, 0, :4] = torch.tensor([1e-45, -1e-45, 0.0, -0.0])
    mine = usual(norm, x)
    weight, bias = parameters(norm, x)
    wide = [None if t is None else t.double() for t in (weight, bias)]
    exact = results(norm, x.double(), *wide, cotangent_for(x).double())
    for label, a, b in zip(("y", "dx", "dweight", "dbias"), mine, exact, strict=False):
        # a mean of 1e-40 is a subnormal of 16 bits, and so is what remains without it, which dweight is made of
        near = (a - b).abs().max() <= 1e-4 * b.abs().max()
        assert near if label == "dweight" else ulp_error(a.flatten(), b.flatten()) <= 4.0, label


@every_norm
@pytest.mark.parametrize("shape", [(0, 6, 3, 8), (4, 6, 0, 8), (2, 6, 3, 0), (1, 6, 1, 1), (4, 6, 1, 1), (2, 1, 1, 1)])
def test_empty_and_single_elements_as_torch(norm, shape):
    """The shapes and values that torch gives, or an error of the kind that torch raises."""
    found = []
    for functions in (torch.nn.functional, F):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        try:
            found.append(results(norm, x, *parameters(norm, x), cotangent_for(x), functions))
        except (ValueError, RuntimeError, IndexError) as error:
            found.append(error)
    theirs, mine = found
    if isinstance(theirs, Exception) and not isinstance(theirs, IndexError):
        assert isinstance(mine, type(theirs)), mine
        return
    if x.numel() == 0:  # torch's instance_norm stumbles over an empty batch, its group_norm gives NaN for dweight
        assert [t.shape for t in mine[:2]] == [shape, shape]
        assert all((t == 0).all() for t in mine[2:])
        return
    for a, b in zip(mine, theirs, strict=True):
        # torch's statistics of a single element are off by its rounding, and 1/sqrt(eps) enlarges that
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-4)


def in_odd_memory(t):
    """The same values where no vector is aligned, as every other element, and as a transposed view: name -> view."""
    shifted = torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape)
    spread = torch.zeros((*t.shape[:-1], 2 * t.shape[-1]), dtype=t.dtype)[..., ::2]
    turned = torch.zeros(t.shape[::-1], dtype=t.dtype).permute(*range(t.ndim)[::-1])
    views = {"misaligned": shifted, "every other element": spread, "transposed": turned}
    for view in views.values():
        view.copy_(t)
    return views


@pytest.mark.parametrize("place", ["misaligned", "every other element", "transposed"])
@every_dtype
@every_norm
def test_memory_layout_does_not_change_a_bit(norm, dtype, place):
    x = torch.randn(SHAPE).to(dtype)
    weight, bias = parameters(norm, x)
    cotangent = cotangent_for(x)
    expected = results(norm, x, weight, bias, cotangent)
    moved = [None if t is None else in_odd_memory(t)[place] for t in (x, weight, bias, cotangent)]
    for a, b in zip(results(norm, *moved), expected, strict=True):
        if norm == "normalize":  # plain code: torch's sums take another order for another layout
            assert ulp_error(a.flatten(), b.double().flatten()) <= 2.0
        else:
            assert torch.equal(a, b)


@every_norm
def test_overlapping_and_expanded_inputs(norm):
    windows = torch.randn(200).as_strided(SHAPE, (40, 7, 3, 2))  # elements that belong to several rows
    expanded = torch.randn(4, 1, 3, 8).expand(SHAPE)
    for x in (windows, expanded):
        kept = x.clone()
        weight, bias = parameters(norm, x)
        cotangent = torch.randn(4, 6, 1, 1).expand(SHAPE)
        mine = results(norm, x, weight, bias, cotangent)
        for a, b in zip(mine, results(norm, x.contiguous(), weight, bias, cotangent.contiguous()), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(x, kept)


@every_norm
def test_a_gradient_left_out_changes_no_other(norm):
    x = torch.randn(SHAPE)
    tensors = [t for t in (x, *parameters(norm, x)) if t is not None]
    full = results(norm, *tensors, *[None] * (3 - len(tensors)), cotangent_for(x))
    for needs in itertools.product((True, False), repeat=len(tensors)):
        leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
        y = NORMS[norm][0](F, *leaves, *[None] * (3 - len(tensors)))
        assert y.requires_grad == any(needs)
        assert torch.equal(y, full[0])
        if any(needs):
            y.backward(cotangent_for(x))
        for leaf, wanted, need in zip(leaves, full[1:], needs, strict=True):
            assert torch.equal(leaf.grad, wanted) if need else leaf.grad is None


@every_dtype
@every_norm
def test_nothing_passed_in_is_written_to_or_returned(norm, dtype):
    x = torch.randn(SHAPE).to(dtype)
    given = [x, *parameters(norm, x), cotangent_for(x)]
    kept = [None if t is None else t.clone() for t in given]
    addresses = {t.untyped_storage().data_ptr() for t in given if t is not None}
    found = results(norm, *given)
    for t, before in zip(given, kept, strict=True):
        assert t is None or torch.equal(t, before)
    assert not addresses & {t.untyped_storage().data_ptr() for t in found}


def test_remembered_statistics_are_left_alone_in_inference():
    x, (mean, variance) = torch.randn(SHAPE), remembered(torch.zeros(SHAPE))
    kept = mean.clone(), variance.clone()
    F.batch_norm(x, mean, variance)
    assert torch.equal(mean, kept[0])
    assert torch.equal(variance, kept[1])


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, float("inf"), float("nan")])
def test_dyt_of_special_values_is_torchs_tanh(value):
    x = torch.full((2, 3), value)
    torch.testing.assert_close(F.dyt(x, 0.5), torch.tanh(0.5 * x), equal_nan=True, rtol=0, atol=0)
