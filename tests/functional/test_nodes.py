"""Backward nodes in C++ have the bits of those in Python wherever a backward may run, and hide from no observer."""

import itertools

import pytest
import torch
from settings import SETTINGS, Seen
from torch.autograd import forward_ad, grad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from evenkeel import functional as F
from evenkeel.functional import _channel_kernels, _rows_autograd
from evenkeel.kernels import nodes

MODULES = (_rows_autograd, _channel_kernels)
NORMS = {
    "layer": ((6, 10), (10,), lambda x, *p: F.layer_norm(x, (10,), *p, eps_mode="outside", weight_offset=1.0)),
    "bias alone": ((6, 10), (10,), lambda x, *p: F.layer_norm(x, (10,), None, p[1])),
    "rms": ((2, 3, 10), (10,), lambda x, *p: F.rms_norm(x, (10,), *p[:1])),
    "l2": ((6, 10), (10,), lambda x, *p: F.normalize(x)),
    "sum": ((6, 10), (10,), lambda x, *p: torch.sub(*F.add_layer_norm(x, 2 * x, (10,), *p))),
    "sum alone": ((6, 10), (10,), lambda x, *p: F.add_layer_norm(x, x.detach(), (10,), *p)[1] * p[0]),
    "batch": ((4, 6, 5), (6,), lambda x, *p: F.batch_norm(x, None, None, *p, training=True)),
    "silu": ((4, 6, 5), (6,), lambda x, *p: F.group_norm(x, 2, *p, activation="silu")),
    "remembered": (
        (4, 6, 3, 3),
        (6,),
        lambda x, *p: F.batch_norm(x, torch.ones(6), torch.full((6,), 2.0), *p, weight_offset=1.0),
    ),
    "group": ((4, 6, 5), (6,), lambda x, *p: F.group_norm(x, 3, *p, eps_mode="clamp", activation="relu")),
    "instance": ((4, 6, 5), (6,), lambda x, *p: F.instance_norm(x, None, None, *p)),
}


def make_leaves(norm, dtype=torch.float32):
    shape, width, call = NORMS[norm]
    torch.manual_seed(0)
    leaves = [torch.randn(shape), torch.rand(width) + 0.5, torch.randn(width)]
    return call, [leaf.to(dtype).requires_grad_() for leaf in leaves], torch.randn(shape).to(dtype)


def ordinary(call, leaves, dy):
    return grad(call(*leaves), leaves, dy, allow_unused=True)


def twice(call, leaves, dy):
    y = call(*leaves)
    return [*grad(y, leaves, dy, retain_graph=True, allow_unused=True), *grad(y, leaves, 2 * dy, allow_unused=True)]


def of_the_input_alone(call, leaves, dy):
    return grad(call(leaves[0], *(leaf.detach() for leaf in leaves[1:])), leaves[0], dy)


def of_the_weight_alone(call, leaves, dy):
    return grad(call(leaves[0].detach(), *leaves[1:]), leaves[1], dy)


def of_a_sum(call, leaves, dy):
    return grad(call(*leaves).sum(), leaves, allow_unused=True)


def of_strided_gradients(call, leaves, dy):
    return grad(call(*leaves), leaves, dy.transpose(0, 1).contiguous().transpose(0, 1), allow_unused=True)


def second(call, leaves, dy):
    dx = grad(call(*leaves), leaves[0], dy, create_graph=True)[0]
    return grad(dx.square().sum(), leaves[:2], allow_unused=True)


def many_at_once(call, leaves, dy):
    return grad(call(*leaves), leaves, torch.stack([dy, 2 * dy]), allow_unused=True, is_grads_batched=True)


def forward_mode(call, leaves, dy):
    y = call(*leaves)
    with forward_ad.dual_level():
        found = grad(y, leaves[0], forward_ad.make_dual(dy, torch.ones_like(dy)))[0]
        return forward_ad.unpack_dual(found)


def kept_elsewhere(call, leaves, dy):
    with saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
        y = call(*leaves)
    return grad(y, leaves, dy, allow_unused=True)


def recomputed(call, leaves, dy):
    return grad(checkpoint(call, *leaves, use_reentrant=False), leaves, dy, allow_unused=True)


def into_leaves(call, leaves, dy):
    call(*leaves).backward(dy)
    return [leaf.grad for leaf in leaves]


def profiled(call, leaves, dy):
    y = call(*leaves)
    with torch.profiler.profile():
        return grad(y, leaves, dy, allow_unused=True)


def under(setting):
    def situation(call, leaves, dy):
        y = call(*leaves)
        enter, change = SETTINGS[setting]
        with enter():
            return grad(y, leaves, change(dy), allow_unused=True)

    return situation


SITUATIONS = {
    function.__name__.replace("_", " "): function
    for function in (
        ordinary,
        twice,
        of_the_input_alone,
        of_the_weight_alone,
        of_a_sum,
        of_strided_gradients,
        second,
        many_at_once,
        forward_mode,
        kept_elsewhere,
        recomputed,
        into_leaves,
        profiled,
    )
} | {setting: under(setting) for setting in SETTINGS}

# torch's silu has no derivative of its backward in forward mode, and the last two have no weight
IMPOSSIBLE = {("forward mode", "silu"), ("of the weight alone", "l2"), ("of the weight alone", "bias alone")}
CASES = [case for case in itertools.product(SITUATIONS, NORMS) if case not in IMPOSSIBLE]


def results(monkeypatch, in_python, situation, norm, dtype):
    call, leaves, dy = make_leaves(norm, dtype)
    with monkeypatch.context() as patch:
        for module in MODULES if in_python else ():
            patch.setattr(module, "nodes", None)
        y = call(*leaves)
        made_by = [y.grad_fn, *(node for node, _ in y.grad_fn.next_functions if node is not None)]
        assert in_python or any("evenkeel::Normalize" in node.name() for node in made_by)
        return [y.detach(), *situation(call, leaves, dy)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("situation", "norm"), CASES)
def test_the_bits_are_those_of_python(situation, norm, dtype, monkeypatch):
    if situation == "kept elsewhere" and dtype == torch.bfloat16:
        dtype = torch.float64  # NumPy has no bfloat16
    found, expected = (results(monkeypatch, python, SITUATIONS[situation], norm, dtype) for python in (False, True))
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b))


LAYOUTS = {
    "sliced": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "with steps": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "channels last": lambda t: t[..., None].contiguous(memory_format=torch.channels_last)[..., 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_dy", [False, True], ids=["of x", "of dy"])
@pytest.mark.parametrize("norm", [name for name, (shape, *_) in NORMS.items() if len(shape) == 3])
def test_the_bits_in_another_layout(norm, of_dy, layout, monkeypatch):
    call, leaves, dy = make_leaves(norm)
    change = LAYOUTS[layout]

    def run():
        y = call(leaves[0] if of_dy else change(leaves[0]), *leaves[1:])
        return [y.detach(), *grad(y, leaves, change(dy) if of_dy else dy, allow_unused=True)]

    found = run()
    for module in MODULES:
        monkeypatch.setattr(module, "nodes", None)
    for a, b in zip(found, run(), strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.stride() == b.stride() and torch.equal(a, b))


@pytest.mark.parametrize("norm", ["batch", "group", "instance"])
def test_second_derivatives_of_channels_last(norm):
    _, _, call = NORMS[norm]
    x = torch.randn(4, 6, 2, 3, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert "Normalize" in call(x, None, None).grad_fn.name()
    torch.autograd.gradgradcheck(lambda x: call(x, None, None), x, atol=1e-4)


def test_channels_last_stay_last():
    x = torch.randn(2, 8, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    for dy in (torch.randn(2, 8, 3, 3), torch.randn_like(x)):
        (dx,) = grad(F.group_norm(x, 2), x, dy)
        assert dx.is_contiguous(memory_format=torch.channels_last)
        (expected,) = grad(torch.nn.functional.group_norm(x, 2), x, dy)
        torch.testing.assert_close(dx, expected)


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_an_observer_sees_the_operator(norm):
    call, leaves, dy = make_leaves(norm)
    y = call(*leaves)
    with Seen() as seen:
        grad(y, leaves, dy)
    assert seen.names == [f"{'rows' if norm == 'layer' else 'channels'}_backward"]


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_an_input_that_changed_is_refused(norm):
    call, leaves, dy = make_leaves(norm)
    y = call(*leaves)
    with torch.no_grad():
        leaves[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


def test_a_second_backward_is_refused():
    call, leaves, dy = make_leaves("layer")
    y = call(*leaves)
    y.backward(dy)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward(dy)


@pytest.mark.parametrize("norm", NORMS)
def test_an_ordinary_backward_runs_no_python(norm, monkeypatch):
    for module in MODULES:
        monkeypatch.setattr(module, "node_gradients", None)
    call, leaves, dy = make_leaves(norm)
    assert grad(call(*leaves), leaves[0], dy)[0].isfinite().all()


def test_an_error_in_python_arrives(monkeypatch):
    def broken(*arguments):
        raise ValueError("no such gradient")

    monkeypatch.setattr(_rows_autograd, "node_gradients", broken)
    call, leaves, dy = make_leaves("layer")
    with pytest.raises(ValueError, match="no such gradient"):
        grad(call(*leaves), leaves, dy, create_graph=True)


def test_compiled_autograd_runs_the_nodes():
    call, leaves, dy = make_leaves("batch")
    expected = grad(call(*leaves), leaves, dy)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        found = grad(call(*leaves), leaves, dy)
    assert all(map(torch.equal, found, expected))


def test_the_nodes_are_built_here():
    assert nodes is not None
