"""The channel kernels: bits, regimes, layouts, dtypes, edge shapes."""

import itertools

import pytest
import torch
from bits import digest
from channel_calls import FLOATS, LAYOUTS, MEASURED, NORMS, call, errors, results, rows, same_bits, tensors
from regimes import CHANNELS
from settings import on_threads

from evenkeel import BackendError
from evenkeel import functional as F

every_norm = pytest.mark.parametrize("norm", NORMS)
every_measured = pytest.mark.parametrize("norm", MEASURED)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
# Few positions and many, odd ones, several items per statistic, few statistics and many, groups whose rows are summed
# over samples in floats, more columns than a strip has: each takes another path.
SHAPES = (
    *((4, 6, 5, 3), (3, 4, 9, 11), (40, 6, 7, 7), (2, 4, 70, 67), (9, 8), (2, 34, 600), (3, 2, 3, 4, 5)),
    *((21, 32, 7, 7), (7, 544, 3, 3)),
)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def has_positions(norm, shape):
    return norm != "instance_norm" or len(shape) > 2


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("regime", CHANNELS)
@every_measured
def test_regimes(norm, regime, mode, last):
    sample, eps = CHANNELS[regime]
    for shape in ((16, 6, 5, 3), (6, 8, 20, 19), (11, 16, 7, 7)):
        x = sample(shape).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        mine = results(norm, x, eps=eps, eps_mode=mode)
        exact = results(norm, x, torch.float64, eps=eps, eps_mode=mode, backend="reference")
        found = errors(norm, mine, exact)
        assert max(found) <= 3.0, (shape, found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_shape
@every_norm
def test_16_bit_results_are_rounded_once(norm, shape, dtype):
    if has_positions(norm, shape):
        x = torch.randn(shape).to(dtype)
        assert max(errors(norm, results(norm, x), results(norm, x, torch.float64, backend="reference"))) <= 0.51


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1234.567, 1e4, 3e30])
@every_dtype
@every_measured
def test_constant_channels_give_exactly_zero(norm, dtype, value):
    for shape in ((4, 6, 3, 3), (2, 4, 70, 67)):
        x = torch.full(shape, value).to(dtype)
        assert (call(norm, x) == 0).all() or not x.isfinite().all()


@every_dtype
@every_norm
def test_threads_do_not_change_a_bit(norm, dtype):
    inputs = [torch.randn(shape).to(dtype) for shape in SHAPES if has_positions(norm, shape)]
    inputs.append(torch.randn(4, 6, 60, 60).to(dtype).contiguous(memory_format=torch.channels_last))
    wide = [torch.randn(shape).to(dtype) for shape in ((5, 2048, 4, 2), (5, 960, 6, 5), (20, 512, 3, 3))]
    inputs += [x.contiguous(memory_format=layout) for x in wide for layout in LAYOUTS.values()]
    found = on_threads(lambda: [t for x in inputs for t in results(norm, x)], (1, 2, 3, 3))
    assert all(same_bits(found[0], other) for other in found[1:])


@every_shape
@pytest.mark.parametrize("norm", ["instance_norm", "group_norm", "inference"])
def test_a_sample_does_not_depend_on_the_others(norm, shape):
    if not has_positions(norm, shape):
        return
    x = torch.randn(shape)
    y, dx, *_ = results(norm, x)
    weight, bias, cotangent = tensors(x)
    alone = x[1:2].clone().requires_grad_()
    y_alone = call(norm, alone, weight, bias)
    assert torch.equal(y[1:2], y_alone)
    assert torch.equal(dx[1:2], torch.autograd.grad(y_alone, alone, cotangent[1:2])[0])


def digests():
    """A digest of the results for each norm, dtype and shape."""
    torch.manual_seed(0)
    found = {}
    for dtype, shape, norm in itertools.product(FLOATS, SHAPES, NORMS):
        if has_positions(norm, shape):
            scale = torch.logspace(-9, 4, shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
            x = (torch.randn(shape) * scale).to(dtype)
            layouts = [x, x.contiguous(memory_format=torch.channels_last)] if x.ndim == 4 else [x]
            found[f"{norm} {dtype} {shape}"] = digest([t for v in layouts for t in results(norm, v, eps=1e-8)])
    return found


@every_dtype
@every_norm
def test_strides_do_not_change_a_bit(norm, dtype):
    x = torch.randn(6, 8, 5, 7).to(dtype)
    offset = torch.zeros(x.numel() + 3, dtype=dtype)
    offset[3:] = x.flatten()
    wide = torch.zeros(6, 8, 5, 21, dtype=dtype)
    wide[..., 7:14] = x
    expected = results(norm, x)
    for view in (offset[3:].view(x.shape), wide[..., 7:14], x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        assert same_bits(results(norm, view), expected)


@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (3, 4, 9, 20), (2, 4, 3, 4, 5)], ids=str)
@every_norm
def test_layouts_are_torchs(norm, shape):
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).contiguous(memory_format=layout)
    y, dx, *_ = results(norm, x)
    contiguous = results(norm, x.contiguous())
    torch.testing.assert_close((y, dx), contiguous[:2], rtol=1e-5, atol=1e-5)
    theirs = torch.nn.functional.instance_norm(x) if norm == "instance_norm" else torch.nn.functional.group_norm(x, 2)
    assert y.stride() == theirs.stride()
    assert contiguous[0].is_contiguous()


# fewer positions than a panel, more, one left over; channels that fill a square, and not; the whole row past a panel
@pytest.mark.parametrize(
    "shape", [(3, 5, 2, 1), (2, 40, 31, 33), (1, 7, 129, 127), (2, 66, 9, 11, 10), (1, 9000, 3, 7)]
)
@every_dtype
def test_the_layout_of_a_gradient_does_not_change_a_bit(shape, dtype):
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).to(dtype).requires_grad_()
    y, cotangent = F.instance_norm(x, backend="cpu"), torch.randn(shape).to(dtype)
    (expected,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
    (found,) = torch.autograd.grad(y, x, cotangent.contiguous(memory_format=layout))
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@every_measured
def test_expanded_inputs_and_untouched_gradients(norm):
    x = torch.randn(1, 4, 6, 1).expand(3, 4, 6, 5).detach().requires_grad_()
    cotangent = torch.randn(3, 4, 6, 5)
    kept = cotangent.clone()
    y = call(norm, x)
    (dx,) = torch.autograd.grad(y, x, cotangent)
    dense = x.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    assert torch.equal(y, call(norm, dense))
    assert torch.equal(dx, torch.autograd.grad(call(norm, dense), dense, cotangent)[0])
    assert torch.equal(cotangent, kept)


@pytest.mark.parametrize(("x_dtype", "weight_dtype"), list(itertools.product(FLOATS, FLOATS)), ids=str)
def test_mixed_dtypes(x_dtype, weight_dtype):
    x, weight, bias = torch.randn(5, 4, 6, 6).to(x_dtype), torch.randn(4).to(weight_dtype), torch.randn(4)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y = call("batch_norm", *leaves)
    cotangent = torch.randn(x.shape).to(x_dtype)
    grads = torch.autograd.grad(y, leaves, cotangent)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    exact = call("batch_norm", *exact_leaves, backend="reference")
    wanted = torch.autograd.grad(exact, exact_leaves, cotangent.double())
    assert [t.dtype for t in (y, *grads)] == [x_dtype, x_dtype, weight_dtype, torch.float32]
    # 8: in float64 the reference rounds as often as the kernel; a float64 gradient of a float32 x has its accuracy
    limits = {torch.float64: 8.0 if x_dtype == torch.float64 else 2**30, torch.float32: 3.0}
    found = errors("batch_norm", (y.detach(), *grads), (exact.detach(), *wanted))
    for mine, error in zip((y, *grads), found, strict=True):
        assert error <= limits.get(mine.dtype, 0.51)


@every_dtype
@every_norm
def test_weight_offset_and_missing_parameters(norm, dtype):
    x, weight, bias = torch.randn(3, 4, 5, 5).to(dtype), torch.full((4,), 2.0**-12), torch.randn(4)
    y = call(norm, x.float(), weight.to(dtype), weight_offset=1.0)
    assert torch.equal(y, call(norm, x.float(), weight + 1.0))
    assert not torch.equal(y, call(norm, x.float()))
    assert torch.equal(call(norm, x, torch.ones(4), torch.zeros(4)), call(norm, x))
    assert torch.equal(call(norm, x, None, bias), call(norm, x, torch.ones(4), bias))


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 5), (3, 4, 0), (2, 4, 1), (1, 4, 3), (2, 2, 2, 1)], ids=str)
@every_norm
def test_edge_shapes(norm, shape):
    if norm == "instance_norm" and (len(shape) == 2 or shape[2:] == (1,)):
        return
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(shape[1], requires_grad=True)
    y = call(norm, x, weight)
    dx, dweight = torch.autograd.grad(y, [x, weight], torch.ones_like(y))
    assert y.shape == dx.shape == x.shape
    exact = call(norm, x.detach().double(), weight.detach().double(), backend="reference")
    torch.testing.assert_close(y.double(), exact)
    assert x.numel() or (dweight == 0).all()


@pytest.mark.parametrize("training", [True, False])
@every_dtype
def test_running_statistics(dtype, training):
    x = (1e3 + torch.randn(6, 4, 5, 5)).to(dtype)
    found = {}
    for backend, wide in (("cpu", x), ("reference", x.double())):
        for name in ("batch", "instance"):
            running = [torch.linspace(0, 1, 4), torch.linspace(1, 2, 4)]
            norm = F.batch_norm if name == "batch" else F.instance_norm
            y = norm(wide, *running, None, None, training, 0.3, backend=backend)
            found[name, backend] = (*running, y.to(dtype))
    for name in ("batch", "instance"):
        mine, theirs = found[name, "cpu"], found[name, "reference"]
        torch.testing.assert_close(mine[:2], theirs[:2], rtol=1e-6, atol=0)
        torch.testing.assert_close(mine[2], theirs[2])


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@every_measured
@every_shape
def test_inf_and_nan_stay_in_their_statistic(norm, shape, bad):
    if not has_positions(norm, shape):
        return
    x = torch.randn(shape)
    clean = results(norm, x)
    x[(1, 1, *[0] * (len(shape) - 2))] = bad
    spoiled = results(norm, x)
    for mine, wanted in zip(spoiled[:2], clean[:2], strict=True):
        changed = rows(norm, mine != wanted).any(-1)
        assert changed.sum() == 1
        assert rows(norm, mine)[changed].isnan().any()


@every_norm
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("needs", list(itertools.product([True, False], repeat=3)), ids=str)
def test_requires_grad_combinations(norm, layout, needs):
    """torch 2.13 ends the process where a channels-last input of GroupNorm has no gradient and the parameters have."""
    x = torch.randn(4, 6, 5, 4).contiguous(memory_format=LAYOUTS[layout])
    weight, bias, cotangent = tensors(x)
    expected = results(norm, x)[1:]
    leaves = [t.clone().requires_grad_(need) for t, need in zip((x, weight, bias), needs, strict=True)]
    y = call(norm, *leaves)
    assert y.requires_grad == any(needs)
    if any(needs):
        y.backward(cotangent)
    for leaf, wanted, need in zip(leaves, expected, needs, strict=True):
        assert torch.equal(leaf.grad, wanted) if need else leaf.grad is None


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_operators_pass_opcheck(groups, last, masked):
    layout = torch.channels_last if last else torch.contiguous_format
    forward, backward = torch.ops.evenkeel.channels_forward, torch.ops.evenkeel.channels_backward
    mask = torch.rand(3, 1, 5, 6) < 0.5 if masked else None
    dtype, mode, activation = (torch.bfloat16, 1, 0) if masked else (torch.float32, 0, 2)
    x, dy = (torch.randn(3, 4, 5, 6).to(dtype).contiguous(memory_format=layout) for _ in range(2))
    weight, options = torch.randn(4), (groups, 1e-5, mode, 0.0, activation)
    torch.library.opcheck(forward, (x, weight, None, None, None, mask, *options))
    statistics = forward(x, weight, None, None, None, mask, *options)[1]
    torch.library.opcheck(backward, (dy, x, weight, None, statistics, mask, False, *options, True, True, False))
    torch.library.opcheck(forward, (x, weight, None, torch.zeros(4), torch.ones(4), mask, 0, 1e-5, 0, 0.0, 1))


def test_what_has_no_kernel_says_so():
    x = torch.randn(4, 6, 5)
    for norm in MEASURED:
        with pytest.raises(BackendError, match="no kernel for cast='early'"):
            call(norm, x.bfloat16(), cast="early")
