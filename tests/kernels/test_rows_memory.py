"""``memory_efficient=True``: what is kept for the backward, what comes out, and what is refused."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evenkeel import EvenkeelError, InvalidInputError, nn
from evenkeel import functional as F
from evenkeel.testing import ulp_error

NORMS = ("layer_norm", "rms_norm")
every_norm = pytest.mark.parametrize("norm", NORMS)
ROWS, FEATURES = 70, 96


def call(norm, x, weight=None, bias=None, **options):
    affine = (weight, bias) if norm == "layer_norm" else (weight,)
    return getattr(F, norm)(x, x.shape[-1:], *affine, **{"eps": 1e-5, "backend": "cpu", **options})


def saved_bytes(run):
    """What a call keeps for its backward: (address, bytes) of each tensor."""
    kept = []

    def pack(tensor):
        kept.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = run()
    return y, kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_norm
def test_the_norm_and_the_following_layer_keep_one_tensor(norm, dtype):
    """A norm on a hidden tensor and the linear layer after it: x and y are kept by default, y alone with the option."""
    hidden = torch.randn(ROWS, FEATURES, dtype=dtype, requires_grad=True)
    weight = torch.ones(FEATURES, dtype=dtype, requires_grad=True)
    linear = torch.nn.Linear(FEATURES, 8, dtype=dtype)
    row_bytes = ROWS * FEATURES * dtype.itemsize
    total = {}
    for efficient in (False, True):
        _, kept = saved_bytes(lambda: linear(call(norm, hidden * 2, weight, memory_efficient=efficient)))  # noqa: B023
        large = {address: size for address, size in kept if size >= row_bytes}
        total[efficient] = sum(large.values())
    assert total == {False: 2 * row_bytes, True: row_bytes}
    _, kept = saved_bytes(lambda: call(norm, hidden * 2, weight, memory_efficient=True))
    small = sorted(size for _, size in kept if size < row_bytes)
    width = 3 if norm == "layer_norm" else 1
    assert small == sorted([FEATURES * dtype.itemsize, ROWS * width * 4])  # the weight, which lives anyway; statistics


def gradients(norm, x, weight, bias, cotangent, **options):
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)][: 3 if norm == "layer_norm" else 2]
    y = call(norm, *leaves, **options)
    return (y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(y.dtype)))


@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@every_norm
def test_gradients(norm, dtype, mean, mode):
    x = (mean + torch.randn(ROWS, FEATURES)).to(dtype)
    weight, bias = (0.5 + torch.rand(FEATURES)).to(dtype), torch.randn(FEATURES).to(dtype)
    cotangent = torch.randn(ROWS, FEATURES).to(dtype)
    options = {"weight_offset": 0.25, "eps_mode": mode}
    mine = gradients(norm, x, weight, bias, cotangent, memory_efficient=True, **options)
    plain = gradients(norm, x, weight, bias, cotangent, **options)
    assert torch.equal(mine[0], plain[0])
    # y is rounded: half an ulp of |y| <= |weight||x_hat| + |bias| becomes, divided by a weight of 0.75 or more, an
    # error of x_hat of a few ulps, which the sums of the gradient spread over the row
    exact = gradients(norm, *(t.double() for t in (x, weight, bias, cotangent)), backend="reference", **options)
    for a, b in zip(mine[1:], exact[1:], strict=True):
        assert ulp_error(a, b) <= (64.0 if dtype == torch.float64 else 8.0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@every_norm
def test_gradients_beyond_float_squares(norm, scale):
    x = scale * torch.randn(ROWS, FEATURES)
    weight, bias, cotangent = 0.5 + torch.rand(FEATURES), torch.randn(FEATURES), torch.randn(ROWS, FEATURES)
    mine = gradients(norm, x, weight, bias, cotangent, memory_efficient=True, eps=0.0)
    exact = gradients(norm, *(t.double() for t in (x, weight, bias, cotangent)), backend="reference", eps=0.0)
    assert max(ulp_error(a, b) for a, b in zip(mine, exact, strict=True)) <= 8.0


def test_parameters_that_cannot_be_divided_by_are_refused():
    x = torch.randn(4, 8, requires_grad=True)
    for value, bias, index in ((0.0, 0.0, 3), (1e-4, 0.0, 5), (0.5, 9.0, 2)):
        weight, shift = torch.ones(8), torch.zeros(8)
        weight[index], shift[index] = value, bias
        with pytest.raises(
            EvenkeelError, match=rf"memory_efficient .* at index {index} they are .*; pass memory_efficient"
        ):
            F.layer_norm(x, (8,), weight, shift, memory_efficient=True)
        assert F.layer_norm(x, (8,), weight, shift).requires_grad
        with torch.no_grad():
            F.layer_norm(x, (8,), weight, shift, memory_efficient=True)  # nothing is kept
    with pytest.raises(EvenkeelError, match="at index 0"):
        F.rms_norm(x, (8,), torch.full((8,), -1.0), weight_offset=1.0, memory_efficient=True)


def test_what_has_no_second_derivative_says_so():
    x = torch.randn(4, 8, requires_grad=True)
    y = F.rms_norm(x, (8,), memory_efficient=True)
    with pytest.raises(EvenkeelError, match="pass memory_efficient=False"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(EvenkeelError, match="memory_efficient=True needs the compiled kernel"):
        F.rms_norm(x, (8,), memory_efficient=True, backend="reference")


def test_an_output_changed_in_place_is_noticed():
    x = torch.randn(4, 8, requires_grad=True)
    y = F.rms_norm(x, (8,), memory_efficient=True)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_modules(name):
    x = torch.randn(4, 8)
    plain, lean = getattr(nn, name)(8), getattr(nn, name)(8, memory_efficient=True)
    assert "memory_efficient=True" in repr(lean)
    assert "memory_efficient" not in repr(plain)
    found = []
    for module in (plain, lean):
        leaf = x.clone().requires_grad_()
        (module(leaf) * torch.linspace(-1, 1, 8)).sum().backward()
        found.append((leaf.grad, module.weight.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled():
    torch._dynamo.reset()
    x, weight = torch.randn(40, 96, requires_grad=True), torch.randn(96).abs() + 0.5

    def run(a, b):
        return F.rms_norm(a, (96,), b, 1e-6, memory_efficient=True)

    cotangent = torch.randn(40, 96)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    mine, wanted = (torch.autograd.grad(f(x, weight), x, cotangent)[0] for f in (compiled, run))
    assert torch.equal(mine, wanted)


def test_fake_tensors_take_any_parameters():
    with FakeTensorMode():
        norm = nn.RMSNorm(8, memory_efficient=True)
        assert norm(torch.randn(2, 8, requires_grad=True)).shape == (2, 8)


def test_parameters_are_judged_in_the_compute_dtype():
    x = torch.randn(2, 4, requires_grad=True)
    almost = torch.full((4,), 2.0**-10 * (1 - 2.0**-40), dtype=torch.float64)  # in float32 it is 2^-10
    F.rms_norm(x, (4,), almost, memory_efficient=True)
    with pytest.raises(InvalidInputError, match=r"every .* to be at least"):
        F.rms_norm(x, (4,), almost / 2, memory_efficient=True)
