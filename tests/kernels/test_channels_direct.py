"""Channel kernels called past torch's dispatcher: the operators' bits, and the operators wherever one would notice."""

import contextlib
import random
from types import SimpleNamespace

import pytest
import torch
from settings import Seen

from evenkeel import functional as F
from evenkeel import nn
from evenkeel.kernels import _nodes, _small

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def draw(seed):
    """A call of a channel norm: its function, inputs and options."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    norm = dice.choice(("batch", "inference", "group", "instance", "instance inference"))
    channels, side = dice.choice((1, 3, 8, 24, 40, 64)), dice.choice((2, 3, 4, 7, 12))
    shape = (
        dice.randint(2, 5),
        channels,
        *(side,) * dice.choice((0, 1, 2, 3) if "instance" not in norm else (1, 2, 3)),
    )
    dtype, wide = dice.choice(FLOATS), dice.choice((None, torch.float32))
    x = torch.randn(shape, dtype=dtype) * dice.choice((1, 1, 1, 1e-3, 100)) + dice.choice((0, 0, 5))
    if x.ndim > 3 and dice.random() < 0.5:
        x = x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    vectors = [torch.rand(channels, dtype=wide or dtype) + shift for shift in (0.5, -0.5)]
    weight, bias = vectors if dice.random() < 0.7 else (None, None)
    mean, variance = torch.randn(channels, dtype=wide or dtype), torch.rand(channels, dtype=wide or dtype) + 0.1
    options = {
        "eps": dice.choice((1e-5, 1e-2)),
        "eps_mode": dice.choice(("inside", "inside", "outside", "clamp")),
        "weight_offset": dice.choice((0.0, 1.0)),
    }
    if "instance" not in norm:
        options["activation"] = dice.choice((None, None, "relu", "silu"))
    return norm, x, (weight, bias), (mean, variance), options


def call(norm, x, affine, running, options):
    if norm == "group":
        groups = next(g for g in (4, 3, 2, 1) if (x.shape[1] % g == 0 and x[0].numel() > g) or g == 1)
        return F.group_norm(x, groups, *affine, **options)
    if norm.startswith("instance"):
        used = running if "inference" in norm else (None, None)
        return F.instance_norm(x, *used, *affine, use_input_stats="inference" not in norm, **options)
    return F.batch_norm(x, *running, *affine, training=norm == "batch", momentum=0.3, **options)


def outcome(norm, x, affine, running, options, setting):
    """y, the running statistics afterwards, and the gradients; with and without gradients asked for."""
    running = tuple(t.clone() for t in running)
    leaves = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *affine) if t is not None
    ]
    parameters = leaves[1:] or [None, None]
    with setting:
        plain = call(norm, x, affine, tuple(t.clone() for t in running), options)
        y = call(norm, leaves[0], parameters, running, options)
        gradients = torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y))
    return [plain, y.detach(), *running, *gradients]


@pytest.mark.parametrize("seed", range(300))
def test_the_bits_are_those_of_the_operators(seed):
    norm, *drawn = draw(seed)
    with Seen() as seen:
        expected = outcome(norm, *drawn, contextlib.nullcontext())
    assert {"channels_forward", "channels_backward"} <= set(seen.names)
    found = outcome(norm, *drawn, contextlib.nullcontext())
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_running_statistics_are_rounded_once(dtype):
    torch.manual_seed(0)
    x = torch.randn(6, 5, 7, dtype=dtype)
    mean, variance = torch.randn(5, dtype=dtype), torch.rand(5, dtype=dtype)
    wide = x.double().transpose(0, 1).flatten(1)
    expected = [0.7 * old.double() + 0.3 * new for old, new in ((mean, wide.mean(1)), (variance, wide.var(1)))]
    F.batch_norm(x, mean, variance, training=True, momentum=0.3)
    ulps = 4 if dtype == torch.float64 else 0.51  # what is expected has errors of its own
    for found, exact in zip((mean, variance), expected, strict=True):
        assert ((found.double() - exact).abs() <= ulps * torch.finfo(dtype).eps * exact.abs().clamp_min(0.3)).all()


@pytest.fixture(params=["compiled nodes", "Python's nodes"])
def taken(monkeypatch, request):
    """Whether the last call went past the dispatcher, by either of the two ways."""
    calls = []

    def recorded(function):
        return lambda *a: calls.append(function(*a)) or calls[-1]

    nodes = None
    if request.param == "compiled nodes":
        functions = {"normalize_channels": recorded(_nodes.nodes.normalize_channels)}
        nodes = SimpleNamespace(contiguous=_nodes.nodes.contiguous, **functions)
    monkeypatch.setattr("evenkeel.functional._channel_kernels.nodes", nodes)
    direct = recorded(_small.calls.normalize_channels)
    monkeypatch.setattr("evenkeel.kernels._channels.normalize_channels", direct)
    return lambda: calls.pop() is not None if calls else False


X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
ORDINARY = {
    "batch": lambda: F.batch_norm(X, torch.zeros(6), torch.ones(6), training=True),
    "inference": lambda: F.batch_norm(X, torch.zeros(6), torch.ones(6)),
    "group": lambda: F.group_norm(X, 3),
    "instance": lambda: F.instance_norm(X),
    "module": lambda: nn.BatchNorm1d(6)(X),
    "module of groups": lambda: nn.GroupNorm(2, 6)(X),
}
OTHERS = {
    "another backend": lambda: F.group_norm(X, 3, backend="reference"),
    "mask": lambda: F.group_norm(X, 3, mask=torch.ones(4, dtype=torch.bool)),
    "early": lambda: F.group_norm(X.bfloat16(), 3, cast="early"),
    "strided": lambda: F.group_norm(torch.randn(4, 6, 10)[..., ::2], 3),
    "running statistics of samples": lambda: F.instance_norm(X, torch.zeros(6), torch.ones(6)),
    "running statistics that learn": lambda: F.batch_norm(X, torch.zeros(6, requires_grad=True), torch.ones(6)),
    "one value": lambda: F.group_norm(torch.randn(2, 3), 3),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_small_tensors_go_past_the_dispatcher(name, taken):
    ORDINARY[name]()
    assert taken()


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_go_the_ordinary_way(name, taken, request):
    assert OTHERS[name]().isfinite().all()
    copies = name == "strided" and "compiled nodes" in request.node.name
    assert taken() == copies


def test_large_tensors_take_the_compiled_nodes_alone(taken, request):
    F.group_norm(torch.randn(2, 8, 64, 1024), 4)
    assert taken() == ("compiled nodes" in request.node.name)


REFUSED = {
    "channels": lambda: F.batch_norm(X, torch.zeros(5), torch.ones(5), training=True),
    "running statistics alone": lambda: F.batch_norm(X, torch.zeros(6), None, training=True),
    "eps": lambda: F.batch_norm(X, torch.zeros(6), torch.ones(6), training=True, eps=0.0),
    "momentum": lambda: F.batch_norm(X, torch.zeros(6), torch.ones(6), training=True, momentum="x"),
    "groups": lambda: F.group_norm(X, 4),
    "weight": lambda: F.group_norm(X, 3, torch.ones(3)),
    "statistics": lambda: F.batch_norm(X, None, None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_as_ever(name):
    with pytest.raises((ValueError, RuntimeError, TypeError)) as raised:
        REFUSED[name]()
    with Seen(), pytest.raises(type(raised.value)) as expected:
        REFUSED[name]()
    assert str(raised.value) == str(expected.value)


def test_a_refused_call_leaves_running_statistics_alone():
    mean, variance = torch.zeros(6), torch.ones(6)
    with pytest.raises(RuntimeError):
        F.batch_norm(X, mean, variance, torch.ones(5), training=True)
    assert torch.equal(mean, torch.zeros(6))
    assert torch.equal(variance, torch.ones(6))


def test_second_derivatives_run_the_reference():
    x = X.double().requires_grad_()
    weight, bias = torch.rand(6).double().requires_grad_(), torch.rand(6).double().requires_grad_()
    for function in (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: F.batch_norm(x, torch.zeros(6).double(), torch.ones(6).double(), w, b),
        lambda x, w, b: F.group_norm(x, 3, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
    ):
        assert torch.autograd.gradgradcheck(function, (x, weight, bias), fast_mode=True)
