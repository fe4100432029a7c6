"""Recognition: what torch.nn has, what models write by hand, and look-alikes, of which none may pass."""

import copy
import re

import pytest
import torch
from torch import nn

import evenkeel as ek
from evenkeel import InvalidTypeError, NormSpec
from evenkeel.convert import Agreement, Layout, Recognition, Roles, recognize

LAYER = NormSpec(statistic="moments", shares="token")
RMS = NormSpec(statistic="rms", shares="token", center=False, eps=1e-6, bias=False)
BATCH = NormSpec(statistic="moments", shares="channel", memory="running")
GROUP = NormSpec(statistic="moments", shares="sample_group", groups=4)
INSTANCE = NormSpec(statistic="moments", shares="sample_channel")


def answers(spec, **changes):
    return NormSpec(**{name: changes.get(name, getattr(spec, name)) for name in spec.__dataclass_fields__})


TORCH = {
    "LayerNorm": (nn.LayerNorm(16), LAYER),
    "LayerNorm of two axes": (nn.LayerNorm((6, 8), eps=1e-3), answers(LAYER, eps=1e-3)),
    "LayerNorm without bias": (nn.LayerNorm(16, eps=1e-12, bias=False), answers(LAYER, eps=1e-12, bias=False)),
    "LayerNorm, plain": (nn.LayerNorm(13, elementwise_affine=False), answers(LAYER, weight=False, bias=False)),
    "RMSNorm": (nn.RMSNorm(16, eps=1e-6), RMS),
    "RMSNorm, eps None": (nn.RMSNorm(16), answers(RMS, eps=None)),
    "RMSNorm, eps 0": (nn.RMSNorm(15, eps=0.0), answers(RMS, eps=0.0)),
    "RMSNorm, fp32's epsilon": (nn.RMSNorm(16, eps=2.0**-23), answers(RMS, eps=2.0**-23)),
    "GroupNorm": (nn.GroupNorm(4, 16), GROUP),
    "GroupNorm of one group": (nn.GroupNorm(1, 16), answers(GROUP, groups=1)),
    "GroupNorm, plain": (nn.GroupNorm(4, 16, affine=False), answers(GROUP, weight=False, bias=False)),
    "BatchNorm1d": (nn.BatchNorm1d(16, momentum=0.3), BATCH),
    "BatchNorm2d": (nn.BatchNorm2d(16, eps=1e-3), answers(BATCH, eps=1e-3)),
    "BatchNorm3d": (nn.BatchNorm3d(16, affine=False), answers(BATCH, weight=False, bias=False)),
    "BatchNorm2d of the batch": (nn.BatchNorm2d(16, track_running_stats=False), answers(BATCH, memory="batch")),
    "InstanceNorm2d": (nn.InstanceNorm2d(16, affine=True), INSTANCE),
    "InstanceNorm1d": (
        nn.InstanceNorm1d(16, affine=True, track_running_stats=True),
        answers(INSTANCE, memory="running"),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_modules_of_torch(name):
    module, spec = TORCH[name]
    found = recognize(module)
    assert found.reason == ""
    assert found.spec == spec
    assert found.agreement["float32"].exact
    assert found.rounds_alike(torch.float32)
    assert found.rounds_alike(torch.bfloat16) == (spec.shares in ("token", "sample_group"))


def test_what_a_spec_does_not_hold():
    assert recognize(nn.LayerNorm((6, 8))).layout.axes == 2
    assert recognize(nn.BatchNorm1d(16, momentum=0.3)).momentum == 0.3
    assert recognize(nn.BatchNorm1d(16, momentum=None)).momentum is None
    assert recognize(nn.GroupNorm(4, 16)).layout.groups == 4
    assert recognize(nn.BatchNorm2d(16)).ranks == (4,)
    assert recognize(nn.LayerNorm(16)).ranks == (2, 3, 4)
    roles = recognize(nn.BatchNorm2d(16)).roles
    assert roles == Roles("weight", "bias", "running_mean", "running_var")
    assert recognize(nn.GroupNorm(4, 16)).layout == Layout(shares="sample_group", channel_axis=1, groups=4)
    assert recognize(nn.RMSNorm(16)).agreement["float16"] == Agreement(1.0, 0.0, True)


class Written(nn.Module):
    """A norm of the last axis with a weight, whose arithmetic a test writes."""

    def __init__(self, function, *, size=16, weight=True, bias=False, eps=1e-6):
        super().__init__()
        self.function, self.eps = function, eps
        self.gain = nn.Parameter(torch.ones(size)) if weight else None
        self.shift = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x):
        return self.function(self, x)


def rms(x, eps):
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)


def layer(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)


def frozen(self, x):
    scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
    return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


class Frozen(nn.Module):
    """A BatchNorm whose four tensors are buffers."""

    def __init__(self):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((16,), value))

    forward = frozen


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class WithReLU(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).relu()


class GroupsWithSiLU(nn.GroupNorm):
    def forward(self, x):
        return nn.functional.silu(super().forward(x))


class LastChannel(nn.Module):
    def __init__(self):
        super().__init__()
        self.batchnorm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.batchnorm(x.transpose(1, 2)).transpose(1, 2)


BY_HAND = {
    "Llama": (Written(lambda m, x: m.gain * rms(x, m.eps).to(x.dtype)), answers(RMS, cast="early")),
    "Gemma": (
        Written(lambda m, x: (rms(x, m.eps) * (1.0 + m.gain.float())).type_as(x)),
        answers(RMS, weight_offset=1.0),
    ),
    "OLMo2": (Written(lambda m, x: (m.gain * rms(x, m.eps)).to(x.dtype)), RMS),
    "T5": (
        Written(
            lambda m, x: (
                m.gain
                * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + m.eps)).to(
                    m.gain.dtype if m.gain.dtype.itemsize == 2 else torch.float32
                )
            )
        ),
        answers(RMS, cast="weight"),
    ),
    "no weight": (Written(lambda m, x: rms(x, m.eps).type_as(x), weight=False), answers(RMS, weight=False)),
    "eps outside": (
        Written(lambda m, x: m.gain * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + m.eps)),
        answers(RMS, eps_mode="outside"),
    ),
    "eps as the least divisor": (
        Written(lambda m, x: m.gain * x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=m.eps)),
        answers(RMS, eps_mode="clamp"),
    ),
    "eps in the code": (Written(lambda m, x: m.gain * rms(x, 3e-7).to(x.dtype)), answers(RMS, eps=3e-7, cast="early")),
    "length": (
        Written(lambda m, x: nn.functional.normalize(x, dim=-1), weight=False),
        NormSpec(statistic="l2", shares="token", center=False, eps=1e-12, eps_mode="clamp", weight=False, bias=False),
    ),
    "DeBERTa": (
        Written(lambda m, x: m.gain * layer(x.float(), m.eps).to(x.dtype) + m.shift, bias=True),
        answers(LAYER, eps=1e-6, cast="early"),
    ),
    "1 + weight": (
        Written(lambda m, x: (layer(x.float(), m.eps) * (1 + m.gain.float()) + m.shift.float()).to(x.dtype), bias=True),
        answers(LAYER, eps=1e-6, weight_offset=1.0),
    ),
    "channels first": (ChannelsFirst(16), LAYER),
    "frozen": (Frozen(), BATCH),
    "last channel": (LastChannel(), BATCH),
    "ReLU in the forward": (WithReLU(16), answers(LAYER, activation="relu")),
    "SiLU in the forward": (GroupsWithSiLU(4, 16), answers(GROUP, activation="silu")),
    "evenkeel's": (
        ek.nn.RMSNorm(16, eps=1e-6, cast="early", weight_offset=1.0),
        answers(RMS, cast="early", weight_offset=1.0),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_norms_written_by_hand(name):
    module, spec = BY_HAND[name]
    found = recognize(module)
    assert found.reason == ""
    assert found.spec == spec
    assert found.frozen == (name == "frozen")
    assert found.layout.channel_axis == (1 if name in ("channels first", "frozen", "SiLU in the forward") else -1)


class Counting(nn.LayerNorm):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 if self.calls < 3 else 2)


class Switching(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x) if self.training else super().forward(x) * 1.01


class Pair(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x), x


class Gated(nn.RMSNorm):
    def forward(self, x, gate=None):
        return super().forward(x if gate is None else x * gate)


class ByRank(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) if x.ndim > 2 else super().forward(x) * 2


class InPlace(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x.mul_(2.0))


class Dropping(nn.LayerNorm):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.1, self.training)


class Clipped(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x).clamp(-3, 3)


LOOK_ALIKES = {
    "adds 1e-3": (Written(lambda m, x: layer(x, m.eps) * m.gain + 1e-3), "a LayerNorm with a weight with 0.001 added"),
    "E|x|": (
        Written(lambda m, x: x / (x.abs().mean(-1, keepdim=True) + m.eps) * m.gain),
        "it divides by the mean of the absolute values with a weight, which a spec cannot say",
    ),
    "sample variance": (
        Written(lambda m, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + m.eps).sqrt() * m.gain),
        r"it divides by the sample deviation \(n - 1\)",
    ),
    "no centring": (
        Written(lambda m, x: x / (x.var(-1, keepdim=True) + m.eps).sqrt() * m.gain),
        "the sample deviation .* without subtracting the mean",
    ),
    "a constant": (
        Written(lambda m, x: 4.0 * rms(x, m.eps).type_as(x), weight=False),
        "an RMSNorm times the constant 4",
    ),
    "wrong at 1e4": (
        Written(lambda m, x: m.gain * rms(torch.where(x.abs() > 5e3, x * 0.5, x), m.eps).type_as(x)),
        "off by|no spec",
    ),
    "wrong when small": (
        Written(lambda m, x: m.gain * rms(x, m.eps if x.abs().max() > 1e-3 else 1e-5).type_as(x)),
        "off by",
    ),
    "the weight before": (Written(lambda m, x: rms(x * m.gain, m.eps).type_as(x)), "of the input times the weight"),
    "the weight's size": (Written(lambda m, x: rms(x, m.eps).type_as(x) * m.gain.abs()), "off by"),
    "no gradient of the statistic": (
        Written(lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.eps).detach() * m.gain),
        "its gradient of the input is not that of its result",
    ),
    "only the divisor": (
        Written(lambda m, x: torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.eps), weight=False),
        "its result has the shape",
    ),
    "a part of the axis": (
        Written(lambda m, x: torch.cat([rms(x[..., :4], m.eps), rms(x[..., 4:], m.eps)], -1).type_as(x) * m.gain),
        "a part of the last axis",
    ),
    "parts whose size no weight tells": (
        Written(lambda m, x: rms(x.unflatten(-1, (-1, 2)), m.eps).flatten(-2).type_as(x), weight=False),
        "a part of the last axis, whose size no weight tells",
    ),
    "the positions so far": (
        Written(lambda m, x: x / (x.square().cumsum(-2).mean(-1, keepdim=True) + m.eps).sqrt() * m.gain),
        "a spec cannot say|fill no box",
    ),
    "switching": (Switching(16), "something else in training"),
    "counting": (Counting(16), "changes from call to call|off by"),
    "a pair": (Pair(16), "it returns a tuple, not a tensor"),
    "gated": (Gated(16), "further inputs: gate"),
    "other axes": (ByRank(16), "something else on an input of \\(6, 16\\)"),
    "in place": (InPlace(16, eps=0.0), "it changes its input in place"),
    "dropping": (Dropping(16), "different results for the same input"),
    "clipped": (Clipped(16), "off by|no spec"),
    "scale and shift": (Written(lambda m, x: x * m.gain + m.shift, bias=True), "it has no statistics"),
    "softmax": (nn.Softmax(-1), "no spec repeats its result"),
    "linear": (nn.Linear(16, 16), "no norm"),
    "convolution": (nn.Conv2d(16, 16, 3, padding=1), "it raises RuntimeError: Expected 3D"),
    "identity": (nn.Identity(), "it has no statistics"),
    "dropout": (nn.Dropout(), "different results"),
    "local response": (nn.LocalResponseNorm(3), "a part of axis 1"),
    "transformer": (nn.TransformerEncoderLayer(16, 2, 16), "its forward takes further inputs: src_mask"),
    "network": (
        nn.Sequential(*[nn.Linear(16, 16) for _ in range(5)]),
        "10 parameters and buffers, more than a norm has",
    ),
    "DyT": (ek.nn.DyT(16), "it has no statistics"),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_are_refused_with_the_reason(name):
    module, reason = LOOK_ALIKES[name]
    found = recognize(module)
    assert found.spec is None
    assert "\n" not in found.reason
    assert re.search(reason, found.reason), found.reason


def test_weights_near_zero_tell_where_the_offset_is_added():
    """1 + 0.0039 is 1 in bfloat16: a norm that adds there is not one that adds in float32."""
    forgetful = Written(lambda m, x: (rms(x, m.eps) * (1 + m.gain).float()).type_as(x))
    found = recognize(forgetful)
    assert found.spec == answers(RMS, weight_offset=1.0)
    assert not found.rounds_alike(torch.bfloat16)
    assert found.rounds_alike(torch.float32)


def test_the_module_stays_as_it_was():
    module = nn.BatchNorm2d(16).train()
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    module.weight.grad = torch.ones(16)
    module.eval()
    before, attributes = copy.deepcopy(module.state_dict()), set(vars(module))
    random = torch.random.get_rng_state()
    assert recognize(module).spec == BATCH
    assert torch.equal(torch.random.get_rng_state(), random)
    assert calls == []
    assert not module.training
    assert set(vars(module)) == attributes
    assert torch.equal(module.weight.grad, torch.ones(16))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_forward_put_on_the_object_is_refused():
    module = nn.LayerNorm(16)
    module.forward = lambda x: x
    assert "its forward was replaced" in recognize(module).reason


def test_an_example_tells_the_shape():
    class Fixed(nn.Module):
        def forward(self, x):
            assert x.shape[1:] == (7, 9)
            return nn.functional.layer_norm(x, (9,))

    assert recognize(Fixed()).spec is None
    assert recognize(Fixed(), example=torch.ones(2, 7, 9)).spec == answers(LAYER, weight=False, bias=False)


@pytest.mark.parametrize("setting", ["inference", "autocast", "grad off", "double"])
def test_the_surroundings_do_not_count(setting):
    module = nn.LayerNorm(16)
    context = {
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "grad off": torch.no_grad,
        "double": lambda: torch.autograd.set_grad_enabled(True),
    }[setting]
    with context():
        found = recognize(module.double() if setting == "double" else module)
    assert found.spec == LAYER


def test_tensors_that_are_not_here():
    with torch.device("meta"):
        module = nn.RMSNorm(16, eps=1e-6)
    assert recognize(module).spec == RMS
    assert "no shape before the first call" in recognize(nn.LazyBatchNorm2d()).reason


def test_parametrized_weights():
    module = nn.RMSNorm(16, eps=1e-6)
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus())
    assert recognize(module).spec == RMS


def test_the_argument_has_to_be_a_module():
    with pytest.raises(InvalidTypeError, match=r"expected a torch.nn.Module, but got Tensor"):
        recognize(torch.ones(3))


def test_a_recognition_shows_itself():
    found = recognize(nn.LayerNorm(16))
    assert isinstance(found, Recognition)
    assert "moments" in str(found)
