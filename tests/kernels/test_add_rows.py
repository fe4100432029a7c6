"""add_layer_norm and add_rms_norm: against adding and normalizing one after the other, and the contract's regimes."""

import itertools
from functools import partial

import pytest
import torch
from bits import digest
from settings import on_threads

from evenkeel import EvenkeelError, nn
from evenkeel import functional as F
from evenkeel.testing import Case, check_compiled, check_derivatives, check_transforms, ulp_error

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
NORMS = {"add_layer_norm": F.layer_norm, "add_rms_norm": F.rms_norm}
every_norm = pytest.mark.parametrize("norm", NORMS)
every_rounding = pytest.mark.parametrize("rounding", ["rounded", "unrounded"])
pairs = pytest.mark.parametrize(
    ("x_dtype", "residual_dtype"), [*itertools.product(FLOATS, FLOATS), (torch.float64, torch.float64)], ids=str
)


def parameters(norm, features, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    count = 2 if norm == "add_layer_norm" else 1
    return [torch.randn(features, generator=generator).to(dtype) for _ in range(count)]


def results(norm, x, residual, dtype=None, **options):
    """y, the stream, dx, dresidual and the parameters' gradients under random cotangents of both outputs."""
    tensors = [t.to(dtype or t.dtype) for t in (x, residual, *parameters(norm, x.shape[-1]))]
    leaves = [t.detach().requires_grad_() for t in tensors]
    y, stream = getattr(F, norm)(
        leaves[0], leaves[1], x.shape[-1:], *leaves[2:], **{"eps": 1e-5, "backend": "cpu", **options}
    )
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(x.shape, generator=generator).to(t.dtype) for t in (x, residual)]
    grads = torch.autograd.grad(
        (y, stream), leaves, [c.to(o.dtype) for c, o in zip(cotangents, (y, stream), strict=True)]
    )
    return (y.detach(), stream.detach(), *grads)


@every_norm
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_small_sums_have_the_bits_and_the_gradients_of_one_pass(norm, dtype):
    torch.manual_seed(0)
    for shape in ((64,), (1, 1, 96), (5, 77), (3, 40, 200)):
        x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        call = partial(getattr(F, norm), x, residual, shape[-1:], *parameters(norm, shape[-1], dtype), eps=1e-5)
        assert all(map(torch.equal, call(), call(backend="cpu")))
        small, one_pass = (results(norm, x, residual, backend=backend) for backend in ("auto", "cpu"))
        assert all(map(torch.equal, small, one_pass))


@pytest.mark.parametrize("features", [1, 7, 16, 33, 513, 768])
@pairs
@every_norm
def test_rounded_is_adding_then_normalizing_bit_for_bit(norm, x_dtype, residual_dtype, features):
    x, residual = torch.randn(200, features).to(x_dtype), torch.randn(200, features).to(residual_dtype)
    affine = parameters(norm, features)
    y, stream = getattr(F, norm)(x, residual, (features,), *affine, eps=1e-5, backend="cpu")
    wide = torch.promote_types(torch.promote_types(x_dtype, residual_dtype), torch.float32)
    total = (x.to(wide) + residual.to(wide)).to(residual_dtype)
    assert (y.dtype, stream.dtype) == (x_dtype, residual_dtype)
    assert torch.equal(stream, total)
    alone = total if x_dtype == residual_dtype else total.to(wide)
    assert torch.equal(y, NORMS[norm](alone, (features,), *affine, eps=1e-5, backend="cpu").to(x_dtype))
    if x_dtype == residual_dtype:
        assert torch.equal(stream, x + residual)


@every_rounding
@pairs
@every_norm
def test_gradients(norm, x_dtype, residual_dtype, rounding):
    x, residual = torch.randn(70, 96).to(x_dtype), torch.randn(70, 96).to(residual_dtype)
    mine = results(norm, x, residual, residual_rounding=rounding)
    dtypes = (x_dtype, residual_dtype, x_dtype, residual_dtype)
    assert tuple(t.dtype for t in mine[:4]) == dtypes
    limits = {torch.float32: 3.0, torch.float64: 16.0}
    exact = exact_gradients(norm, mine[1] if rounding == "rounded" else None, x, residual)
    for a, b in zip((mine[0], *mine[2:]), exact, strict=True):
        assert ulp_error(a, b) <= limits.get(a.dtype, 0.51)


def exact_gradients(norm, stream, x, residual):
    """y and the gradients in float64 at a given stream, or at the exact sum."""
    total = (x.double() + residual.double() if stream is None else stream.double()).requires_grad_()
    affine = [p.double().requires_grad_() for p in parameters(norm, x.shape[-1])]
    y = NORMS[norm](total, x.shape[-1:], *affine, eps=1e-5, backend="reference")
    generator = torch.Generator().manual_seed(2)
    dy, dstream = (torch.randn(x.shape, generator=generator).to(t.dtype).double() for t in (x, residual))
    dtotal, *rest = torch.autograd.grad(y, [total, *affine], dy)
    return (y.detach(), dtotal + dstream, dtotal + dstream, *rest)


# name: (rows, features) -> x, residual, eps
REGIMES = {
    "mean 1e4 spread 1": (lambda shape: (1e4 + torch.randn(shape), torch.randn(shape)), 1e-5),
    "they cancel": (lambda shape: (1e4 + torch.randn(shape), -1e4 + torch.randn(shape)), 1e-5),
    "1e18": (lambda shape: (1e18 * torch.randn(shape), torch.randn(shape)), 1e-5),
    "up to 1e38": (lambda shape: (1e38 * torch.rand(shape), 1e38 * torch.rand(shape)), 1e-5),
    "1e-30, eps 0": (lambda shape: (1e-30 * torch.randn(shape), 1e-30 * torch.randn(shape)), 0.0),
}


@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("regime", REGIMES)
@every_norm
def test_regimes(norm, regime, mode):
    """The float32 sum is rounded; what is checked is the rest, at that sum."""
    sample, eps = REGIMES[regime]
    x, residual = sample((48, 768))
    options = {"eps": eps, "eps_mode": mode}
    mine = results(norm, x, residual, **options)
    stream = mine[1]
    assert torch.equal(stream, x + residual)
    exact = results(norm, torch.zeros_like(stream), stream, torch.float64, backend="reference", **options)
    assert max(ulp_error(a, b) for a, b in zip(mine, exact, strict=True)) <= 3.0


@every_rounding
@pytest.mark.parametrize(
    "dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)], ids=str
)
@every_norm
def test_bits_depend_on_the_row_alone(norm, dtypes, rounding):
    for rows, features in ((700, 513), (70, 7), (70, 16), (70, 33)):
        x, residual = (torch.randn(rows, features).to(dtype) for dtype in dtypes)
        found = on_threads(partial(results, norm, x, residual, residual_rounding=rounding))
        fused = torch.zeros(rows, 2 * features, dtype=dtypes[0])
        fused[:, features:] = x
        found.append(results(norm, fused[:, features:], residual.T.contiguous().T, residual_rounding=rounding))
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
        row = slice(rows - 1, rows)
        alone = getattr(F, norm)(
            x[row], residual[row], (features,), *parameters(norm, features), eps=1e-5, residual_rounding=rounding
        )
        assert torch.equal(alone[0][0], found[0][0][-1])
        assert torch.equal(alone[1][0], found[0][1][-1])


def case(norm, rounding):
    reference = getattr(F, norm + "_reference")

    def bind(f, **more):
        return lambda x, *p: torch.stack(f(x[0], x[1], x.shape[-1:], *p, eps=1e-5, residual_rounding=rounding, **more))

    count = 2 if norm == "add_layer_norm" else 1
    return Case(
        name=norm,
        function=bind(getattr(F, norm), backend="cpu"),
        reference=bind(reference),
        shapes=((2, 3, 7), (2, 2, 2, 5)),
        parameters=lambda shape: (shape[-1:],) * count,
    )


@every_norm
def test_the_rounded_sum_has_every_derivative(norm):
    check_derivatives(case(norm, "rounded"))
    check_transforms(case(norm, "rounded"))
    check_compiled(case(norm, "rounded"), "aot_eager")


@every_rounding
@pytest.mark.parametrize("used", ["y", "stream"])
@pytest.mark.parametrize("create_graph", [False, True])
@every_norm
def test_one_output_alone(norm, rounding, used, create_graph):
    tensors = [torch.randn(4, 9, dtype=torch.float64) for _ in range(3)]
    found = []
    for backend in ("cpu", "reference"):
        x, residual = (t.clone().requires_grad_() for t in tensors[:2])
        outputs = getattr(F, norm)(x, residual, (9,), eps=1e-5, backend=backend, residual_rounding=rounding)
        y = outputs[0 if used == "y" else 1]
        found.append(torch.autograd.grad(y, (x, residual), tensors[2], create_graph=create_graph))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("needs", list(itertools.product([True, False], repeat=3))[:-1], ids=str)
@every_norm
def test_requires_grad_combinations(norm, needs):
    tensors = [torch.randn(20, 33), torch.randn(20, 33).bfloat16(), *parameters(norm, 33)]
    full = [t.clone().requires_grad_() for t in tensors]
    some = [t.clone().requires_grad_(need) for t, need in zip(tensors, (*needs, False), strict=False)]
    cotangents = torch.randn(20, 33), torch.randn(20, 33).bfloat16()
    for leaves in (full, some):
        y, stream = getattr(F, norm)(leaves[0], leaves[1], (33,), *leaves[2:], eps=1e-5)
        outputs = [(o, c) for o, c in zip((y, stream), cotangents, strict=True) if o.requires_grad]
        torch.autograd.backward([o for o, _ in outputs], [c for _, c in outputs])
    for a, b, need in zip(some, full, needs, strict=False):
        assert torch.equal(a.grad, b.grad) if need else a.grad is None


def test_gradients_of_both_addends_are_not_one_memory():
    x, residual = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    torch.autograd.backward(F.add_rms_norm(x, residual, (8,)), (torch.randn(4, 8), torch.randn(4, 8)))
    assert torch.equal(x.grad, residual.grad)
    assert x.grad.data_ptr() != residual.grad.data_ptr()


@every_norm
def test_nothing_but_the_stream_is_kept(norm):
    x, residual = (torch.randn(64, 256, requires_grad=True) for _ in range(2))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        _, stream = getattr(F, norm)(x * 1, residual * 1, (256,), eps=1e-5)
    large = {t.data_ptr() for t in kept if t.numel() >= stream.numel()}
    assert large == {stream.data_ptr()}


def test_a_float32_stream_stays_exact_under_bfloat16_branches():
    stream, branch = torch.full((1, 4), 256.0), torch.full((1, 4), 0.5).bfloat16()
    for _ in range(8):
        _, stream = F.add_rms_norm(branch, stream, (4,))
    assert (stream == 260).all()


@every_rounding
@every_norm
def test_mixed_with_float64(norm, rounding):
    x, residual = torch.randn(4, 9), torch.randn(4, 9, dtype=torch.float64)
    y, stream = getattr(F, norm)(x, residual, (9,), eps=1e-5, residual_rounding=rounding)
    assert (y.dtype, stream.dtype) == (torch.float32, torch.float64)
    assert torch.equal(stream, x + residual)
    with pytest.raises(EvenkeelError, match="adds float64 to float64 alone"):
        getattr(F, norm)(x, residual, (9,), backend="cpu")


@every_norm
def test_what_is_refused(norm):
    function, x = getattr(F, norm), torch.randn(4, 8)
    with pytest.raises(EvenkeelError, match=r"expected a residual of the input's shape \(4, 8\), but got \(8,\)"):
        function(x, x[0], (8,))
    with pytest.raises(EvenkeelError, match="residual_rounding must be one of rounded, unrounded"):
        function(x, x, (8,), residual_rounding="up")
    with pytest.raises(EvenkeelError, match="expected a floating-point residual"):
        function(x, x.long(), (8,))
    with pytest.raises(EvenkeelError, match="expected input with shape"):
        function(x, x, (7,))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (8,), (1, 1), (2, 3, 4, 5)], ids=str)
@every_norm
def test_edge_shapes(norm, shape):
    x, residual = (torch.randn(shape, requires_grad=True) for _ in range(2))
    y, stream = getattr(F, norm)(x, residual, shape[-1:], eps=1e-5)
    assert y.shape == stream.shape == x.shape
    grads = torch.autograd.grad((y, stream), (x, residual), (torch.randn(shape), torch.randn(shape)))
    assert all(g.shape == x.shape for g in grads)


@every_norm
def test_inf_and_nan_stay_in_their_row(norm):
    x, residual = torch.randn(6, 33), torch.randn(6, 33)
    clean = results(norm, x, residual)
    for bad in (float("inf"), float("nan")):
        spoiled_residual = residual.clone()
        spoiled_residual[2, 5] = bad
        spoiled = results(norm, x, spoiled_residual)
        for a, b in zip(spoiled[:4], clean[:4], strict=True):
            assert torch.equal(a[[0, 1, 3, 4, 5]], b[[0, 1, 3, 4, 5]])
        assert spoiled[0][2].isnan().any()


@pytest.mark.parametrize("name", ["AddLayerNorm", "AddRMSNorm"])
def test_modules(name):
    torch_name = name.removeprefix("Add")
    mine, theirs = getattr(nn, name)(8, eps=1e-5), getattr(torch.nn, torch_name)(8, eps=1e-5)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    mine.load_state_dict(theirs.state_dict())
    assert isinstance(mine, type(theirs))
    x, residual = torch.randn(4, 8), torch.randn(4, 8)
    y, stream = mine(x, residual)
    torch.testing.assert_close(y, theirs(x + residual))
    assert torch.equal(stream, x + residual)
    unrounded = getattr(nn, name)(8, residual_rounding="unrounded", weight_offset=1.0, backend="cpu")
    assert "residual_rounding=unrounded" in repr(unrounded)
    assert "residual_rounding" not in repr(mine)
    assert (unrounded.weight == 0).all()
    half = [t.bfloat16() for t in (x, residual)]
    assert not torch.equal(unrounded(*half)[0], getattr(nn, name)(8)(*half)[0])


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16, torch.float32)], ids=str)
@every_norm
def test_operators_pass_opcheck(norm, dtypes):
    x, residual = (torch.randn(5, 33).to(dtype) for dtype in dtypes)
    weight, dy, dstream = torch.randn(33), torch.randn(5, 33).to(dtypes[0]), torch.randn(5, 33).to(dtypes[1])
    forward, backward = torch.ops.evenkeel.rows_forward, torch.ops.evenkeel.rows_backward
    for rounded, needed in ((True, (True, True, True, False)), (False, (False, True, False, False))):
        options = (1, int(norm == "add_layer_norm"), 1e-5, 1, 0.0, False, rounded)
        torch.library.opcheck(forward, (x, residual, weight, None, *options, False))
        _, stream, statistics = forward(x, residual, weight, None, *options, False)
        source = (stream, None) if rounded else (x, residual)
        torch.library.opcheck(backward, (dy, dstream, *source, weight, None, statistics, *options, *needed, False))


def digests():
    """A digest of the results for each pair of dtypes and rounding, of an early cast, and of division by the length."""
    torch.manual_seed(0)
    found = {}
    some = (torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)
    for dtypes, rounding in itertools.product(some, ("rounded", "unrounded")):
        x, residual = (torch.randn(40, 1023).to(dtype).requires_grad_() for dtype in dtypes)
        outputs = F.add_layer_norm(x, residual, (1023,), backend="cpu", residual_rounding=rounding)
        grads = torch.autograd.grad(outputs, (x, residual), [torch.randn(40, 1023).to(o.dtype) for o in outputs])
        found[f"{dtypes} {rounding}"] = digest((*outputs, *grads))
    x = torch.randn(40, 1023).bfloat16()
    found["early"] = digest([F.rms_norm(x, (1023,), cast="early", backend="cpu")])
    found["length"] = digest([F.normalize(x.float(), backend="cpu")])
    return found
