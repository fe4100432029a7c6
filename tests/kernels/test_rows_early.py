"""``cast="early"``: the bits of the models that round the normalized value before the weight."""

import itertools

import pytest
import torch
from settings import thread_count

from evenkeel import BackendError, InvalidArgumentError
from evenkeel import functional as F
from evenkeel.testing import ulp_error

HALVES = (torch.bfloat16, torch.float16)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
# around the widths at which torch's summation changes: 8 lanes, 4 vectors side by side, 16 and more steps a level
FEATURES = (1, 3, 4, 7, 8, 9, 31, 32, 33, 100, 511, 512, 513, 768, 1023, 4096, 5120, 16384, 70_001)


def hugging_face(x, weight, eps):
    """Llama's norm, as written in transformers."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + eps)).to(x.dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("features", FEATURES)
@every_half
def test_the_kernel_has_the_bits_of_hugging_face(dtype, features, threads):
    with thread_count(threads):
        for rows in (2, 40):  # torch sums one row of more than 32768 elements in as many parts as it has threads
            x = (torch.randn(rows, features) * torch.logspace(-3, 2, rows)[:, None]).to(dtype)
            weight = torch.randn(features).to(dtype)
            y = F.rms_norm(x, (features,), weight, 1e-6, cast="early", backend="cpu")
            assert torch.equal(y, hugging_face(x, weight, 1e-6))


@every_half
def test_the_order_matters(dtype):
    x, weight = torch.randn(64, 768).to(dtype), torch.randn(768).to(dtype)
    early, late = (F.rms_norm(x, (768,), weight, 1e-6, cast=cast, backend="cpu") for cast in ("early", "late"))
    assert (early != late).float().mean() > 0.1


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype"), list(itertools.product(HALVES, (*HALVES, torch.float32))), ids=str
)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_promotion_as_in_the_reference(x_dtype, weight_dtype, offset):
    x, weight = torch.randn(40, 96).to(x_dtype), torch.randn(96).to(weight_dtype)
    options = {"cast": "early", "weight_offset": offset, "eps": 1e-6}
    mine = F.rms_norm(x, (96,), weight, backend="cpu", **options)
    reference = F.rms_norm(x, (96,), weight, backend="reference", **options)
    assert mine.dtype == reference.dtype == torch.promote_types(x_dtype, weight_dtype)
    assert torch.equal(mine, reference)
    out = torch.empty_like(mine)
    assert torch.equal(F.rms_norm(x, (96,), weight, backend="cpu", out=out, **options), mine)


@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=str)
@every_half
def test_gradients_are_those_of_the_exact_function(dtype, weight_dtype):
    x, weight = torch.randn(40, 96).to(dtype), torch.randn(96).to(weight_dtype or dtype)
    leaves = [t.requires_grad_() for t in (x, weight)]
    y = F.rms_norm(leaves[0], (96,), leaves[1], 1e-6, cast="early", backend="cpu")
    cotangent = torch.randn(40, 96).to(y.dtype)
    mine = torch.autograd.grad(y, leaves, cotangent)
    exact_leaves = [t.detach().double().requires_grad_() for t in leaves]
    exact = F.rms_norm(exact_leaves[0], (96,), exact_leaves[1], 1e-6, backend="reference")
    wanted = torch.autograd.grad(exact, exact_leaves, cotangent.double())
    assert [t.dtype for t in mine] == [t.dtype for t in leaves]
    for a, b in zip(mine, wanted, strict=True):
        assert ulp_error(a, b) <= (3.0 if a.dtype == torch.float32 else 0.51)


@every_half
def test_values_beyond_float_squares(dtype):
    x = torch.full((2, 8), 3e38 if dtype == torch.bfloat16 else 6e4).to(dtype)
    y = F.rms_norm(x, (8,), cast="early", eps=1e-6, backend="cpu")
    assert torch.equal(y, torch.ones_like(y))


@every_half
def test_operators_pass_opcheck(dtype):
    x, weight = torch.randn(5, 33).to(dtype), torch.randn(33)
    options = (1, 0, 1e-6, 0, 0.0, True, False)
    forward, backward = torch.ops.evenkeel.rows_forward, torch.ops.evenkeel.rows_backward
    torch.library.opcheck(forward, (x, None, weight, None, *options, False))
    torch.library.opcheck(torch.ops.evenkeel.rows_inference, (x, weight, None, *options))
    y, _, statistics = forward(x, None, weight, None, *options, False)
    needed = (True, False, True, False)
    arguments = (torch.randn_like(y), None, x, None, weight, None, statistics, *options, *needed, False)
    torch.library.opcheck(backward, arguments)
    assert y.dtype == torch.float32
    assert backward(*arguments)[0].dtype == dtype


def test_compiled():
    torch._dynamo.reset()
    x, weight = torch.randn(40, 96).bfloat16().requires_grad_(), torch.randn(96).requires_grad_()

    def run(a, b):
        return F.rms_norm(a, (96,), b, 1e-6, cast="early", backend="cpu")

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    cotangent = torch.randn(40, 96)
    for mine, wanted in zip(
        torch.autograd.grad(compiled(x, weight), (x, weight), cotangent),
        torch.autograd.grad(run(x, weight), (x, weight), cotangent),
        strict=True,
    ):
        assert torch.equal(mine, wanted)


def t5(x, weight, eps):
    """T5's norm, as written in transformers."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + eps)
    if weight.dtype in HALVES:
        x = x.to(weight.dtype)
    return weight * x


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype"), list(itertools.product((*HALVES, torch.float32), repeat=2)), ids=str
)
def test_the_cast_weight_has_the_order_of_t5(x_dtype, weight_dtype):
    x, weight = torch.randn(40, 96).to(x_dtype), torch.randn(96).to(weight_dtype)
    wanted, y = t5(x, weight, 1e-6), F.rms_norm(x, (96,), weight, 1e-6, cast="weight")
    assert y.dtype == wanted.dtype
    if y.dtype == torch.float32:
        assert ulp_error(y, t5(x.double(), weight.double(), 1e-6)) <= 3
    else:
        assert torch.equal(y, wanted)
    out = torch.empty_like(y)
    assert torch.equal(F.rms_norm(x, (96,), weight, 1e-6, cast="weight", out=out), y)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    cotangent = torch.randn(40, 96).to(y.dtype)
    mine = torch.autograd.grad(F.rms_norm(*leaves[:1], (96,), leaves[1], 1e-6, cast="weight"), leaves, cotangent)
    theirs = torch.autograd.grad(t5(*leaves, 1e-6), leaves, cotangent)
    for own, other in zip(mine, theirs, strict=True):
        assert own.dtype == other.dtype
        assert (own.double() - other.double()).norm() <= 2**-7 * other.double().norm()


def test_the_cast_weight_without_a_weight_rounds_once():
    x = torch.randn(4, 96).bfloat16()
    assert torch.equal(F.rms_norm(x, (96,), None, 1e-6, cast="weight"), F.rms_norm(x, (96,), None, 1e-6))


def test_the_cast_weight_is_one_of_rows():
    with pytest.raises(InvalidArgumentError, match="cast='weight' needs shares='token', but shares='sample_group'"):
        F.group_norm(torch.ones(2, 4, 3), 2, cast="weight")
    with pytest.raises(BackendError, match="where input and weight differ in dtype"):
        F.rms_norm(torch.ones(2, 4), (4,), torch.ones(4).bfloat16(), cast="weight", backend="cpu")
