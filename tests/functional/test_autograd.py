"""Derivatives where inputs depend on each other, where modes are mixed, and at the edges."""

import io

import pytest
import torch
from torch.autograd import forward_ad

from evenkeel import functional as F
from evenkeel import nn
from evenkeel.testing import ulp_error

NORMS = {
    "layer_norm": (F.layer_norm, torch.nn.functional.layer_norm),
    "rms_norm": (F.rms_norm, torch.nn.functional.rms_norm),
}
every_norm = pytest.mark.parametrize("norm", NORMS)


@pytest.mark.parametrize("create_graph", [True, False])
@pytest.mark.parametrize(
    "weight_of", [lambda x: x, torch.sin, lambda x: x.detach() * x.sum()], ids=["x", "sin x", "sum"]
)
@every_norm
def test_a_weight_that_depends_on_the_input(norm, weight_of, create_graph):
    found = []
    for function in NORMS[norm]:
        x = torch.tensor([1.0, 2.0, 4.0, -3.0], dtype=torch.float64, requires_grad=True)
        y = function(x, (4,), weight_of(x), eps=1e-5)
        cotangent = torch.arange(4, dtype=torch.float64)
        found.append(torch.autograd.grad((y * cotangent).sum(), x, create_graph=create_graph)[0].detach())
    torch.testing.assert_close(found[0], found[1])


@every_norm
def test_a_forward_mode_tangent_passes_through_the_backward(norm):
    tangents = []
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for function in NORMS[norm]:
        y = function(x, (4,), eps=1e-5)
        with forward_ad.dual_level():
            cotangent = forward_ad.make_dual(torch.ones_like(y).detach(), torch.arange(8.0).double().view(2, 4))
            (gradient,) = torch.autograd.grad(y, x, cotangent)
            tangents.append(forward_ad.unpack_dual(gradient).tangent)
    torch.testing.assert_close(tangents[0], tangents[1])


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e-10, 1.0, 1e10, 1e20, 1e37])
@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@every_norm
def test_the_reference_keeps_floats_range(norm, mode, scale):
    """So the value and the first derivative do not depend on create_graph, vmap or the backend."""
    x = scale * torch.randn(3, 48)
    eps = 1e-5 if scale >= 1e-10 else 0.0
    function = NORMS[norm][0]
    found = {}
    for name, create_graph, backend in (
        ("kernel", False, "cpu"),
        ("graph", True, "cpu"),
        ("reference", False, "reference"),
    ):
        leaf = x.clone().requires_grad_()
        y = function(leaf, (48,), eps=eps, eps_mode=mode, backend=backend)
        cotangent = torch.linspace(-1, 1, 144).view(3, 48)
        found[name] = (y.detach(), torch.autograd.grad(y, leaf, cotangent, create_graph=create_graph)[0].detach())
    for name in ("graph", "reference"):
        for mine, kernels in zip(found[name], found["kernel"], strict=True):
            assert ulp_error(mine, kernels.double()) <= 8.0  # both errors, and a longer chain of roundings here
    mapped = torch.func.vmap(lambda row: function(row, (48,), eps=eps, eps_mode=mode))(x)
    assert ulp_error(mapped, found["kernel"][0].double()) <= 8.0


@pytest.mark.parametrize("mode", ["inside", "outside"])
@pytest.mark.parametrize("order", [1, 2])
def test_normalize_is_differentiable_at_zero(mode, order):
    x = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    y = F.normalize(x, eps=0.5, eps_mode=mode)
    (gradient,) = torch.autograd.grad(y, x, torch.tensor([[1.0, 2.0, 3.0]]).double(), create_graph=True)
    assert gradient.isfinite().all()
    if order == 2:
        assert torch.autograd.grad(gradient.square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("mode", ["inside", "outside", "clamp"])
@every_norm
def test_zero_rows_have_finite_derivatives(norm, mode):
    x = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    for backend in ("cpu", "reference"):
        y = NORMS[norm][0](x, (5,), eps=1e-5, eps_mode=mode, backend=backend)
        (gradient,) = torch.autograd.grad(y, x, torch.randn(2, 5).double(), create_graph=True)
        assert (y == 0).all()
        assert gradient.isfinite().all()
        assert torch.autograd.grad(gradient.square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_parameters_must_be_floating_as_in_torch(dtype):
    x, weight = torch.randn(2, 4, 3), torch.ones(4).to(dtype)
    rows = torch.randn(2, 4)
    for call in (
        lambda f: f.layer_norm(rows, (4,), weight),
        lambda f: f.batch_norm(x, None, None, weight, training=True),
        lambda f: f.instance_norm(x, weight=weight),
        lambda f: f.group_norm(x, 2, weight),
    ):
        for functions in (torch.nn.functional, F):
            with pytest.raises(RuntimeError):
                call(functions)


def test_running_statistics_come_in_pairs():
    for functions in (torch.nn.functional, F):
        with pytest.raises(ValueError, match="must either both be None or neither be None"):
            functions.batch_norm(torch.randn(5, 4), torch.zeros(4), None, training=True)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last"])
def test_results_are_laid_out_as_torchs(layout):
    x = torch.randn(3, 6, 4, 5)
    if layout == "transposed":
        x = torch.randn(3, 4, 6, 5).transpose(1, 2)
    elif layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    for call in (
        lambda f: f.batch_norm(x, None, None, training=True),
        lambda f: f.instance_norm(x),
        lambda f: f.group_norm(x, 3),
        lambda f: f.layer_norm(x, (5,)),
        lambda f: f.layer_norm(x, (5,), backend="reference") if f is F else f.layer_norm(x, (5,)),
    ):
        assert call(F).stride() == call(torch.nn.functional).stride()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_saves_and_loads():
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), nn.LayerNorm(4), nn.RMSNorm(4)).eval(), torch.randn(3, 4)
    traced = torch.jit.trace(model, x)
    torch.jit.save(traced, io.BytesIO())
    more = torch.randn(7, 4)
    torch.testing.assert_close(traced(more), model(more))


def test_nested_tensors_work_as_with_torch():
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    for name in ("LayerNorm", "RMSNorm"):
        mine, theirs = (getattr(modules, name)(4)(ragged).values() for modules in (nn, torch.nn))
        torch.testing.assert_close(mine, theirs)
