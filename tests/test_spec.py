import dataclasses

import pytest

import evenkeel as ek
from evenkeel import EvenkeelError, InvalidArgumentError, InvalidInputError, InvalidTypeError, NormSpec
from evenkeel import functional as F


def test_spec_is_frozen_keyword_only_and_hashable():
    spec = NormSpec(statistic="moments", shares="token")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.eps = 1.0
    with pytest.raises(TypeError):
        NormSpec("moments", "token")
    assert spec == NormSpec(statistic="moments", shares="token", center=True, eps=1e-5)
    assert hash(spec) == hash(dataclasses.replace(spec))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"statistic": "median"}, "statistic must be one of moments, rms, .*, but got 'median'"),
        ({"shares": "rows"}, "shares must be one of token, .*, but got 'rows'"),
        ({"eps_mode": "around"}, "eps_mode must be one of inside, outside, clamp, but got 'around'"),
        ({"cast": "never"}, "cast must be one of late, early"),
        ({"memory": "long"}, "memory must be one of batch, running"),
        ({"activation": "gelu"}, "activation must be None, 'relu' or 'silu', but got 'gelu'"),
        ({"residual_rounding": "up"}, "residual_rounding must be one of rounded, unrounded, but got 'up'"),
        ({"eps": float("nan")}, "eps must be a finite number or None, but got nan"),
        ({"weight_offset": float("inf")}, "weight_offset must be finite"),
        ({"statistic": "rms"}, "statistic='rms' has no centre to subtract; pass center=False"),
        ({"memory": "running"}, "memory='running' needs statistics that outlive a sample, but shares='token'"),
    ],
)
def test_contradictions_are_refused(answers, message):
    with pytest.raises(InvalidArgumentError, match=message):
        NormSpec(**{"statistic": "moments", "shares": "token", **answers})


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (ek.nn.LayerNorm(4), NormSpec(statistic="moments", shares="token")),
        (ek.nn.LayerNorm(4, bias=False), NormSpec(statistic="moments", shares="token", bias=False)),
        (
            ek.nn.RMSNorm(4, eps=1e-6, weight_offset=1.0, eps_mode="outside", cast="early"),
            NormSpec(
                statistic="rms",
                shares="token",
                center=False,
                eps=1e-6,
                eps_mode="outside",
                bias=False,
                weight_offset=1.0,
                cast="early",
            ),
        ),
        (ek.nn.BatchNorm2d(4), NormSpec(statistic="moments", shares="channel", memory="running")),
        (
            ek.nn.BatchNorm1d(4, affine=False, track_running_stats=False),
            NormSpec(statistic="moments", shares="channel", weight=False, bias=False),
        ),
        (
            ek.nn.InstanceNorm3d(4),
            NormSpec(statistic="moments", shares="sample_channel", weight=False, bias=False),
        ),
        (
            ek.nn.GroupNorm(2, 4, activation="silu"),
            NormSpec(statistic="moments", shares="sample_group", groups=2, activation="silu"),
        ),
        (
            ek.nn.AddRMSNorm(4, eps=1e-6),
            NormSpec(statistic="rms", shares="token", center=False, eps=1e-6, bias=False, residual_rounding="rounded"),
        ),
        (ek.nn.DyT(4), NormSpec(statistic="none", shares="token", center=False, eps=0.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_tell_their_spec(module, expected):
    assert module.spec == expected


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidArgumentError, ValueError),
        (InvalidInputError, ValueError),
        (InvalidInputError, RuntimeError),
        (InvalidTypeError, TypeError),
        (ek.BackendError, RuntimeError),
        (ek.StudyError, Exception),
    ],
)
def test_errors_are_what_a_caller_expects(error, builtin):
    assert issubclass(error, EvenkeelError)
    assert issubclass(error, builtin)


def test_functional_names_its_references():
    for name in ("layer_norm", "rms_norm", "batch_norm", "instance_norm", "group_norm", "normalize", "dyt"):
        assert callable(getattr(F, f"{name}_reference"))
