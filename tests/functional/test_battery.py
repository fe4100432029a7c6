"""Every norm through the public check battery."""

import contextlib

import pytest
import torch
from cases import CASES
from settings import SETTINGS, thread_count

from evenkeel import functional as F
from evenkeel.testing import CheckError, check_compiled, check_derivatives, check_transforms, check_values

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

# In ulps of the output dtype at the row's largest value. float32: a handful of roundings in a row's arithmetic, each
# half an ulp, on values up to two times the result. bfloat16 and float16: float32 arithmetic and one rounding, so
# 0.5 and what float32 adds. float64: the reference is as exact as the kernel, so this is the sum of both errors.
# Without a kernel, gradients are torch's float32 sums over terms of both signs, which can be several times larger than
# their sum.
LIMITS = {torch.float32: 3.0, torch.bfloat16: 0.51, torch.float16: 0.51, torch.float64: 16.0}
COMPOSITE_FLOAT32 = 16.0
# dweight is by chance far smaller than the 20 terms that it sums, and the reference's roundings count as ours do.
CANCELLING_FLOAT64 = {"batch_norm inference silu": 32.0}


def limit(case, dtype):
    if dtype == torch.float64 and case.name in CANCELLING_FLOAT64:
        return CANCELLING_FLOAT64[case.name]
    per_row = ("layer_norm", "rms_norm", "add_", "normalize ")
    per_channel = ("batch_norm", "instance_norm", "group_norm")
    has_kernel = case.name.startswith((*per_row, *per_channel))
    return LIMITS[dtype] if has_kernel or dtype != torch.float32 else COMPOSITE_FLOAT32


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@every_case
def test_values(case, dtype):
    check_values(case, dtype, limit(case, dtype))


@every_case
def test_derivatives(case):
    with thread_count(1):  # of thousands of tiny calls each would wait for threads of another process's
        check_derivatives(case)


@every_case
def test_transforms(case):
    check_transforms(case)


# Neighbours are alike: one half is compiled as far as Inductor, which costs more, and the other up to it.
@pytest.mark.parametrize("case", CASES[1::2], ids=lambda case: case.name)
def test_compiled(case):
    check_compiled(case, "aot_eager", limit=limit(case, torch.float32))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)
def test_compiled_by_inductor(case):
    check_compiled(case, "inductor", limit=limit(case, torch.float32))


def test_the_battery_finds_a_wrong_value():
    wrong = CASES[0].__class__(
        name="wrong",
        function=lambda x: x * 1.0001,
        reference=lambda x: x,
        shapes=((3, 7),),
    )
    with pytest.raises(CheckError, match=r"wrong .* R = .* exceeds 3"):
        check_values(wrong, torch.float32, 3.0)


def test_the_battery_finds_a_modified_upstream_gradient():
    class Clearing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            dx = dy.clone()  # right, but dy belongs to the caller
            dy.zero_()
            return dx

    case = CASES[0].__class__(
        name="clearing", function=lambda x: Clearing.apply(x), reference=lambda x: x, shapes=((3, 7),)
    )
    with pytest.raises(CheckError, match=r"clearing .* the upstream gradient was modified"):
        check_values(case, torch.float32, 3.0)


def test_the_battery_finds_a_wrong_derivative():
    wrong = CASES[0].__class__(
        name="detached", function=lambda x: x * x.detach(), reference=lambda x: x * x, shapes=((2, 3),)
    )
    with pytest.raises(CheckError, match="detached"):
        check_derivatives(wrong)


def test_the_slope_of_dyt_is_learned():
    x = torch.randn(3, 7, dtype=torch.float64)
    alpha = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: F.dyt(x, a), alpha, check_forward_ad=True)


def test_the_battery_checks_every_parameter():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return 1000 * dy

    case = CASES[0].__class__(
        name="third",
        function=lambda x, a, b, c: x * a + b + Wrong.apply(c),
        reference=lambda x, a, b, c: x * a + b + c,
        shapes=((4, 5),),
        parameters=lambda shape: (shape[-1:],) * 3,
    )
    with pytest.raises(CheckError, match="dparameter 2"):
        check_values(case, torch.float32, 3.0)


@every_case
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_changes_no_bit(case, setting):
    mode, convert = SETTINGS[setting]
    shape = case.shapes[0]
    leaves = [torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in (shape, *case.parameters(shape))]
    results = []
    for watched in (False, True):
        tensors = [t.clone().requires_grad_() for t in leaves]
        with mode() if watched else contextlib.nullcontext():
            y = case.function(*[convert(t) if watched else t for t in tensors])
            found = (y, *torch.autograd.grad(y, tensors, torch.ones_like(y)))
        results.append([t.as_subclass(torch.Tensor) for t in found])
    assert all(torch.equal(a, b) and a.device == b.device for a, b in zip(*results, strict=True))
