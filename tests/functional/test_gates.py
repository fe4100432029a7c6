"""Gates and groups of rows: what is refused, where results go, and the modules."""

import copy
import pickle

import pytest
import torch

from evenkeel import BackendError, InvalidArgumentError, InvalidInputError, nn
from evenkeel import functional as F
from evenkeel.kernels import runs_kernel

X, GATE = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.rms_norm(X, (8,), groups=3), InvalidInputError, "do not divide into 3 groups; choose a divisor"),
        (lambda: F.rms_norm(X, (8,), groups=2.0), InvalidArgumentError, "a positive whole number, but got 2.0"),
        (lambda: F.layer_norm(X, (8,), groups=0), InvalidArgumentError, "a positive whole number, but got 0"),
        (lambda: F.gated_rms_norm(X, GATE[:2], (8,)), InvalidInputError, r"a gate of the input's shape \(3, 8\)"),
        (lambda: F.gated_rms_norm(X, GATE.int(), (8,)), InvalidInputError, "expected a floating-point gate"),
        (lambda: F.gated_rms_norm(X, GATE, (8,), gating="tanh"), InvalidArgumentError, "gating must be one of"),
        (lambda: F.gated_rms_norm(X, GATE, (7,)), InvalidInputError, "expected input with shape"),
        (lambda: F.rms_norm(X, (8,), groups=2, memory_efficient=True), BackendError, "has no kernel for groups"),
        (lambda: nn.GatedRMSNorm(8, groups=0), InvalidArgumentError, "groups=0 needs"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_no_kernel_takes_a_gate_or_groups_by_itself():
    for spec in (nn.RMSNorm(8, groups=2).spec, nn.GatedRMSNorm(8).spec):
        with pytest.raises(BackendError, match="no kernel for groups or gates of rows"):
            runs_kernel("rows", "cpu", spec, X, None, None)
        assert not runs_kernel("rows", "auto", spec, X, None, None)


def test_groups_are_norms_of_each_part():
    weight, bias = torch.randn(2, 8)
    parts = X.unflatten(-1, (2, 4))
    wanted = F.layer_norm(parts, (4,)).flatten(-2) * weight + bias
    torch.testing.assert_close(F.layer_norm(X, (8,), weight, bias, groups=2), wanted)
    heads = F.rms_norm(parts, (2, 4), weight.view(2, 4), groups=2)
    torch.testing.assert_close(heads, F.rms_norm(parts, (4,)) * weight.view(2, 4))
    torch.testing.assert_close(F.rms_norm(X, (8,), weight, groups=1), F.rms_norm(X, (8,), weight))


@pytest.mark.parametrize("gating", ["silu_before", "silu_after", "sigmoid_before", "sigmoid_after"])
def test_gates_multiply_before_or_after(gating):
    squash, _, place = gating.partition("_")
    factor = torch.nn.functional.silu(GATE) if squash == "silu" else GATE.sigmoid()
    wanted = F.rms_norm(X * factor, (8,)) if place == "before" else F.rms_norm(X, (8,)) * factor
    torch.testing.assert_close(F.gated_rms_norm(X, GATE, (8,), gating=gating), wanted)
    torch.testing.assert_close(F.gated_rms_norm(X, None, (8,), gating=gating), F.rms_norm(X, (8,)))


def test_a_gate_in_16_bits_is_rounded_once():
    x, gate, weight = X.bfloat16(), GATE.bfloat16(), torch.linspace(0.5, 2, 8)
    exact = F.gated_rms_norm(x.double(), gate.double(), (8,), weight.double(), 1e-6, gating="silu_after")
    y = F.gated_rms_norm(x, gate, (8,), weight, 1e-6, gating="silu_after")
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.float().bfloat16())
    assert F.gated_rms_norm(x, gate, (8,), weight, cast="early").dtype == torch.float32


def test_out():
    out = torch.empty(0)
    assert F.rms_norm(X, (8,), eps=1e-6, groups=4, out=out) is out
    assert torch.equal(out, F.rms_norm(X, (8,), eps=1e-6, groups=4))


def test_modules_are_copied_stored_and_told():
    norm = nn.GatedRMSNorm(8, eps=1e-6, groups=2, gating="silu_after", weight_offset=1.0)
    assert norm.weight.tolist() == [0.0] * 8
    assert norm.extra_repr().endswith("weight_offset=1.0, gating=silu_after, groups=2")
    torch.nn.init.normal_(norm.weight)
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert torch.equal(other(X, GATE), norm(X, GATE))
    plain = torch.nn.RMSNorm(8)
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(plain.weight, norm.weight)
