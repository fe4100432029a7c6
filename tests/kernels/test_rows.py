"""The row kernels: bits, regimes, strides, dtypes, edge shapes."""

import itertools

import pytest
import torch
from bits import digest
from regimes import ROWS
from settings import on_threads

from evenkeel import BackendError, InvalidArgumentError, kernels_available
from evenkeel import functional as F
from evenkeel.testing import ulp_error

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NORMS = ("layer_norm", "rms_norm")
every_norm = pytest.mark.parametrize("norm", NORMS)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def call(norm, x, weight=None, bias=None, **options):
    options = {"backend": "cpu", "eps": 1e-5, **options}
    affine = (weight, bias) if norm == "layer_norm" else (weight,)
    return getattr(F, norm)(x, x.shape[-1:], *affine, **options)


def results(norm, x, dtype=None, **options):
    """y, dx, dweight (and dbias) under a fixed random cotangent; ``dtype`` converts everything first."""
    features = x.shape[-1]
    generator = torch.Generator().manual_seed(1)
    weight, bias = (torch.randn(features, generator=generator).to(x.dtype) for _ in range(2))
    cotangent = torch.randn(x.shape, generator=generator).to(x.dtype)
    tensors = [t.to(dtype) if dtype else t for t in (x, weight, bias)]
    leaves = [t.detach().requires_grad_() for t in tensors[: 3 if norm == "layer_norm" else 2]]
    y = call(norm, *leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(y.dtype)))


def same_bits(a, b):
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def test_the_kernels_are_here():
    assert kernels_available()["cpu"].startswith("available: rows")


# The limit is the contract's: 3 ulps of the row's largest value.
REGIMES = ROWS | {"1e-36, eps 0": (lambda shape: 1e-36 * torch.randn(shape), 0.0)}


@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("regime", REGIMES)
@every_norm
def test_regimes(norm, regime, mode):
    sample, eps = REGIMES[regime]
    x = sample((48, 768))
    mine = results(norm, x, eps=eps, eps_mode=mode)
    exact = results(norm, x, torch.float64, eps=eps, eps_mode=mode, backend="reference")
    errors = [ulp_error(a, b) for a, b in zip(mine, exact, strict=True)]
    assert max(errors) <= 3.0, errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_norm
def test_16_bit_results_are_rounded_once(norm, dtype):
    x = torch.randn(64, 768).to(dtype)
    mine, exact = results(norm, x), results(norm, x, torch.float64, backend="reference")
    assert max(ulp_error(a, b) for a, b in zip(mine, exact, strict=True)) <= 0.51


@every_norm
def test_long_rows(norm):
    x = 1e4 + torch.randn(2, 1_000_000)
    mine, exact = results(norm, x), results(norm, x, torch.float64, backend="reference")
    assert max(ulp_error(a, b) for a, b in zip(mine, exact, strict=True)) <= 3.0


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1234.567, 1e4, 3e30])
@pytest.mark.parametrize("features", [1, 2, 7, 768, 5000])
@every_dtype
def test_constant_rows_give_exactly_zero(dtype, features, value):
    x = torch.full((3, features), value).to(dtype)
    assert (call("layer_norm", x) == 0).all() or not x.isfinite().all()


FEATURES = (1, 2, 7, 15, 16, 17, 31, 33, 511, 512, 513, 1023, 4096)  # around the widths at which the code changes path


@pytest.mark.parametrize("features", FEATURES)
@every_norm
def test_a_row_does_not_depend_on_the_others(norm, features):
    x = torch.randn(70, features)  # more than one task of rows (64)
    y, dx, *_ = results(norm, x)
    generator = torch.Generator().manual_seed(1)
    weight, bias = (torch.randn(features, generator=generator) for _ in range(2))
    cotangent = torch.randn(x.shape, generator=generator)
    for row in (0, 16, 69):
        alone = x[row : row + 1].clone().requires_grad_()
        y_alone = call(norm, alone, weight, bias)
        (dx_alone,) = torch.autograd.grad(y_alone, alone, cotangent[row : row + 1])
        assert torch.equal(y[row], y_alone[0])
        assert torch.equal(dx[row], dx_alone[0])


# a row of another kind lies among them: of a large mean
@pytest.mark.parametrize("features", [7, 33, 96, 640])
@every_dtype
@every_norm
def test_gradients_of_parameters_do_not_depend_on_whether_x_has_one(norm, dtype, features):
    x, dy = (torch.randn(203, features).to(dtype) for _ in range(2))
    x[50] += 1000
    dy[-1] = x[-1] = 0
    parameters = [torch.randn(features).to(dtype).requires_grad_() for _ in range(2 if norm == "layer_norm" else 1)]

    def found(leaf):
        return torch.autograd.grad(call(norm, leaf, *parameters), parameters, dy)

    several = on_threads(lambda: found(x))
    assert same_bits(several[0], several[1])
    with_x = torch.autograd.grad(call(norm, x.requires_grad_(), *parameters), (*parameters, x), dy)
    assert same_bits(several[0], with_x[:-1])


@every_dtype
@every_norm
def test_threads_do_not_change_a_bit(norm, dtype):
    x = torch.randn(700, 513).to(dtype)
    found = on_threads(lambda: results(norm, x))
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


def digests():
    """A digest of the results for each norm, dtype and length."""
    torch.manual_seed(0)
    found = {}
    for dtype, features in itertools.product(FLOATS, (7, 33, 1023)):
        x = (torch.randn(40, features) * torch.logspace(-9, 4, 40)[:, None]).to(dtype)
        found |= {f"{norm} {dtype} {features}": digest(results(norm, x, eps=1e-8)) for norm in NORMS}
    return found


def strided(x):
    """The same values as slices of something larger, all with a dense last axis: name -> tensor."""
    rows, features = x.shape
    wide = torch.zeros(rows, 3 * features, dtype=x.dtype)
    wide[:, features : 2 * features] = x
    offset = torch.zeros(x.numel() + 3, dtype=x.dtype)
    offset[3:] = x.flatten()
    every_other = torch.zeros(2 * rows, features, dtype=x.dtype)
    every_other[::2] = x
    transposed = x.reshape(rows // 2, 2, features).transpose(0, 1).contiguous().transpose(0, 1)
    return {
        "slice of a fused projection": wide[:, features : 2 * features],
        "misaligned offset": offset[3:].view(rows, features),
        "every other row": every_other[::2],
        "transposed leading axes": transposed,
        "last axis not dense": x.T.contiguous().T,
    }


@pytest.mark.parametrize("features", [7, 48])
@every_dtype
@every_norm
def test_strides_do_not_change_a_bit(norm, dtype, features):
    x = torch.randn(20, features).to(dtype)
    expected = results(norm, x)
    for name, view in strided(x).items():
        found = results(norm, view)
        assert torch.equal(found[0].reshape(x.shape), expected[0]), name
        if view.ndim == 2:
            assert same_bits(found[1:], expected[1:]), name


def test_slices_are_read_in_place():
    fused = torch.randn(4, 6, 3 * 16)
    query = fused[..., 16:32].unflatten(-1, (2, 8))  # (batch, time, heads, head features)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call("rms_norm", query)
    names = {event.key for event in profile.key_averages()}
    assert "evenkeel::rows_inference" in names
    assert not names & {"aten::contiguous", "aten::clone", "aten::copy_"}


@every_norm
def test_expanded_inputs_and_cotangents(norm):
    row = torch.randn(1, 33)
    x = row.expand(5, 33).detach().requires_grad_()
    y = call(norm, x)
    assert torch.equal(y, call(norm, row.repeat(5, 1)))
    (dx,) = torch.autograd.grad(y, x, torch.tensor(2.0).expand(5, 33))
    dense = row.repeat(5, 1).requires_grad_()
    assert torch.equal(dx, torch.autograd.grad(call(norm, dense), dense, torch.full((5, 33), 2.0))[0])


def test_upstream_gradient_and_input_are_left_alone():
    x = torch.randn(20, 33, requires_grad=True)
    cotangent = torch.randn(20, 33)
    kept, kept_x = cotangent.clone(), x.detach().clone()
    y = call("rms_norm", x)
    torch.autograd.grad(y, x, cotangent)
    assert torch.equal(cotangent, kept)
    assert torch.equal(x, kept_x)


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "bias_dtype"), list(itertools.product(FLOATS, FLOATS, FLOATS[:2])), ids=str
)
def test_mixed_dtypes(x_dtype, weight_dtype, bias_dtype):
    x, weight, bias = torch.randn(20, 33).to(x_dtype), torch.randn(33).to(weight_dtype), torch.randn(33).to(bias_dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = call("layer_norm", *leaves)
    cotangent = torch.randn(20, 33).to(x_dtype)
    grads = torch.autograd.grad(y, leaves, cotangent)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    exact = call("layer_norm", *exact_leaves, backend="reference")
    wanted = torch.autograd.grad(exact, exact_leaves, cotangent.double())
    assert [t.dtype for t in (y, *grads)] == [x_dtype, x_dtype, weight_dtype, bias_dtype]
    # float64: 8 where the reference rounds as often as the kernel; else the 3 ulps are those of float32 arithmetic
    limits = {torch.float64: 8.0 if x_dtype == torch.float64 else 3.0 * 2**29, torch.float32: 3.0}
    for mine, expected in zip((y, *grads), (exact, *wanted), strict=True):
        assert ulp_error(mine.detach(), expected.detach()) <= limits.get(mine.dtype, 0.51)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weight_offset_is_added_in_float32(dtype):
    weight = torch.full((16,), 2.0**-12).to(dtype)  # lost by 1 + weight in 16 bits
    x = torch.randn(4, 16)
    y = call("rms_norm", x, weight, weight_offset=1.0)
    assert torch.equal(y, call("rms_norm", x, weight.float() + 1.0))
    assert not torch.equal(y, call("rms_norm", x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_eps_none_is_the_epsilon_of_the_arithmetic(dtype):
    expected = 2.0**-52 if dtype == torch.float64 else 2.0**-23
    x = torch.full((2, 16), 1e-4).to(dtype)
    assert torch.equal(F.rms_norm(x, (16,), backend="cpu"), call("rms_norm", x, eps=expected))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (0, 0), (2, 0, 8), (8,), (1, 1), (2, 3, 4, 5)], ids=str)
@every_norm
def test_edge_shapes(norm, shape):
    x = torch.randn(shape, requires_grad=True)
    weight = torch.randn(shape[-1:], requires_grad=True)
    y = call(norm, x, weight)
    assert y.shape == x.shape
    dx, dweight = torch.autograd.grad(y, [x, weight], torch.ones_like(y))
    assert dx.shape == x.shape
    assert dweight.shape == weight.shape
    if x.numel() == 0:
        assert (dweight == 0).all()


@pytest.mark.parametrize("shape", [(70_000, 3), (2, 70_000)], ids=str)
@every_norm
def test_more_rows_and_features_than_16_bits_count(norm, shape):
    x = torch.randn(shape)
    mine, exact = results(norm, x), results(norm, x, torch.float64, backend="reference")
    for label, a, b in zip(("y", "dx"), mine, exact, strict=False):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5, msg=label)


@every_norm
def test_more_axes_than_the_layout_holds(norm):
    x = torch.randn(*[2] * 10, 3).permute(9, 7, 5, 3, 1, 8, 6, 4, 2, 0, 10)
    assert torch.equal(call(norm, x), call(norm, x.contiguous()))


@every_norm
def test_several_normalized_axes(norm):
    x, weight = torch.randn(5, 3, 4), torch.randn(3, 4)
    y = getattr(F, norm)(x, (3, 4), weight, backend="cpu")
    assert torch.equal(y.flatten(1), getattr(F, norm)(x.flatten(1), (12,), weight.flatten(), backend="cpu"))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@every_dtype
@every_norm
def test_inf_and_nan_stay_in_their_row(norm, dtype, bad):
    x = torch.randn(6, 33).to(dtype)
    clean = results(norm, x)
    x[2, 5] = bad
    spoiled = results(norm, x)
    others = [0, 1, 3, 4, 5]
    for mine, wanted in zip(spoiled[:2], clean[:2], strict=True):
        assert torch.equal(mine[others], wanted[others])
        assert mine[2].isnan().any()


@every_norm
def test_signed_zeros_and_subnormals(norm):
    x = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, 1e-40, 0.0, 0.0, -1e-41]])
    mine, exact = call(norm, x, eps=0.0), call(norm, x.double(), eps=0.0, backend="reference")
    assert ulp_error(mine, exact) <= 3.0
    assert (call(norm, torch.zeros(1, 8)) == 0).all()


@every_norm
@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
def test_requires_grad_combinations(norm, needs):
    x, weight = torch.randn(20, 33), torch.randn(33)
    full = [t.clone().requires_grad_() for t in (x, weight)]
    cotangent = torch.randn(20, 33)
    expected = torch.autograd.grad(call(norm, *full), full, cotangent)
    leaves = [t.clone().requires_grad_(need) for t, need in zip((x, weight), needs, strict=True)]
    y = call(norm, *leaves)
    assert y.requires_grad == any(needs)
    if y.requires_grad:
        y.backward(cotangent)
    for leaf, wanted, need in zip(leaves, expected, needs, strict=True):
        assert torch.equal(leaf.grad, wanted) if need else leaf.grad is None


@every_norm
def test_operators_pass_opcheck(norm):
    for dtype, mode in itertools.product((torch.float32, torch.bfloat16), (0, 1)):
        x, weight, dy = torch.randn(5, 33).to(dtype), torch.randn(33), torch.randn(5, 33).to(dtype)
        options = (1, int(norm == "layer_norm"), 1e-5, mode, 0.0, False, False)
        forward, backward = torch.ops.evenkeel.rows_forward, torch.ops.evenkeel.rows_backward
        torch.library.opcheck(forward, (x, None, weight, None, *options, False))
        torch.library.opcheck(torch.ops.evenkeel.rows_inference, (x, weight, None, *options))
        statistics = forward(x, None, weight, None, *options, False)[2]
        needed = (True, False, True, False)
        torch.library.opcheck(backward, (dy, None, x, None, weight, None, statistics, *options, *needed, False))


@pytest.mark.parametrize("norm", NORMS)
def test_early_cast_is_the_order_of_hugging_face(norm):
    x, weight = torch.randn(64, 96).bfloat16(), torch.randn(96).bfloat16()
    y = call(norm, x, weight, cast="early", backend="auto", eps=1e-6)
    wide = x.float()
    if norm == "layer_norm":
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide - wide.mean(-1, keepdim=True)
    normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(y, weight * normalized.to(x.dtype))
    assert not torch.equal(y, call(norm, x, weight, eps=1e-6))
    promoted = call(norm, x, weight.float(), cast="early", backend="auto", eps=1e-6)
    assert promoted.dtype == torch.float32


def test_asking_for_what_is_missing_says_so():
    x = torch.randn(4, 8)
    with pytest.raises(BackendError, match=r"backend='cpu' cannot run this call: it has no kernel for this norm yet"):
        F.normalize(x, dim=0, backend="cpu")
    with pytest.raises(BackendError, match="no kernel for cast='early'"):
        call("layer_norm", x.bfloat16(), cast="early")
    with pytest.raises(BackendError, match="a tensor is on meta"):
        call("rms_norm", x.to("meta"))
    with pytest.raises(
        InvalidArgumentError, match="backend must be one of auto, reference, cpu, triton, but got 'gpu'"
    ):
        call("rms_norm", x, backend="gpu")
    assert call("rms_norm", x.to("meta"), backend="auto").device.type == "meta"
