import dataclasses
import inspect

import numpy
import pytest
import torch

import evenkeel as ek
from evenkeel import EvenkeelError, InvalidArgumentError, InvalidInputError, InvalidTypeError, NormSpec, nn
from evenkeel import functional as F
from evenkeel.functional import _rows, _specs


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
        ({"cast": "never"}, "cast must be one of late, early, weight"),
        ({"cast": "weight", "shares": "channel"}, "cast=.weight. needs shares=.token., but shares=.channel."),
        ({"memory": "long"}, "memory must be one of batch, running"),
        ({"activation": "gelu"}, "activation must be None, 'relu' or 'silu', but got 'gelu'"),
        ({"residual_rounding": "up"}, "residual_rounding must be one of rounded, unrounded, but got 'up'"),
        ({"gating": "tanh"}, "gating must be one of silu_before, .*, but got 'tanh'"),
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
            ek.nn.GatedRMSNorm(8, eps=1e-6, groups=2, gating="silu_after"),
            NormSpec(
                statistic="rms", shares="token", center=False, eps=1e-6, bias=False, groups=2, gating="silu_after"
            ),
        ),
        (ek.nn.LayerNorm((2, 4), groups=2), NormSpec(statistic="moments", shares="token", groups=2)),
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


def test_distinct_options_are_validated_once():
    x = torch.randn(2, 4)
    F.layer_norm(x, (4,), eps=3e-5)
    specs = [_specs.row_spec("layer_norm", "moments", 3e-5, "inside", 0.0, "late") for _ in range(2)]
    assert specs[0] is specs[1]
    told = nn.LayerNorm(4, eps=3e-5).spec
    assert all(getattr(specs[0], field.name) == getattr(told, field.name) for field in dataclasses.fields(told))
    for eps in torch.linspace(1e-6, 1e-5, 2 * _specs._MOST).tolist():
        F.rms_norm(x, (4,), eps=eps)
    assert len(_specs._specs) <= _specs._MOST


ROW_CALLS = {
    "layer_norm": lambda x, **options: F.layer_norm(x, (4,), torch.ones(4), **options),
    "rms_norm": lambda x, **options: F.rms_norm(x, (4,), torch.ones(4), **options),
    "batch_norm": lambda x, **options: F.batch_norm(x, None, None, torch.ones(4), training=True, **options),
    "group_norm": lambda x, **options: F.group_norm(x, 2, torch.ones(4), **options),
}


@pytest.mark.parametrize("name", ROW_CALLS)
def test_a_number_of_an_option_is_read_anew_in_each_call(name):
    x, call = torch.randn(3, 4), ROW_CALLS[name]
    for option in ("eps", "weight_offset"):
        number = torch.tensor(0.25)
        first = call(x, **{option: number})
        number.fill_(0.5)
        assert torch.equal(call(x, **{option: number}), call(x, **{option: 0.5}))
        assert not torch.equal(call(x, **{option: number}), first)
        assert torch.equal(call(x, **{option: numpy.array(0.5)}), call(x, **{option: 0.5}))
        with pytest.raises(TypeError):
            call(x, **{option: 0.5 + 0j})


@pytest.mark.parametrize("name", ROW_CALLS)
def test_functions_take_the_numbers_that_torch_takes(name):
    x = torch.randn(3, 4)
    assert torch.equal(ROW_CALLS[name](x, eps=float("inf")), torch.zeros(3, 4))
    assert ROW_CALLS[name](x, weight_offset=float("nan")).isnan().all()
    with pytest.raises(TypeError):
        F.layer_norm(x, (4,), eps=None)


@pytest.mark.parametrize("name", ROW_CALLS)
@pytest.mark.parametrize("option", ["eps_mode", "cast", "backend"])
def test_what_cannot_be_hashed_is_no_choice(name, option):
    with pytest.raises(InvalidArgumentError, match=f"{option} must be one of"):
        ROW_CALLS[name](torch.randn(3, 4), **{option: []})


@pytest.mark.parametrize(
    ("reference", "options"),
    [
        (F.layer_norm_reference, ["eps_mode", "weight_offset", "cast", "groups"]),
        (F.rms_norm_reference, ["eps_mode", "weight_offset", "cast", "groups"]),
        (F.gated_rms_norm_reference, ["gating", "eps_mode", "weight_offset", "cast", "groups"]),
        (F.add_layer_norm_reference, ["residual_rounding", "eps_mode", "weight_offset"]),
        (F.add_rms_norm_reference, ["residual_rounding", "eps_mode", "weight_offset"]),
        (F.batch_norm_reference, ["mask", "eps_mode", "weight_offset", "cast", "activation"]),
        (F.instance_norm_reference, ["mask", "eps_mode", "weight_offset", "cast"]),
        (F.group_norm_reference, ["mask", "eps_mode", "weight_offset", "cast", "activation"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_references_name_their_options_and_refuse_others(reference, options):
    parameters = inspect.signature(reference).parameters.values()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == options
    with pytest.raises(TypeError, match=rf"{reference.__name__}\(\) got an unexpected keyword argument 'epsmode'"):
        reference(torch.ones(2, 4), (4,), epsmode="inside")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"groups": 2, "shares": "channel"}, "groups=2 needs shares='sample_group' or 'token'"),
        ({"gating": "silu_after", "shares": "channel"}, "gating needs shares='token', but shares='channel'"),
        ({"groups": 0, "shares": "sample_group"}, "groups=0 needs .* a positive whole number"),
        ({"groups": "x", "shares": "sample_group"}, "groups='x' needs .* a positive whole number"),
        ({"residual_rounding": "rounded", "shares": "channel"}, "residual_rounding needs shares='token'"),
    ],
)
def test_answers_that_do_not_go_together_are_refused(answers, message):
    with pytest.raises(InvalidArgumentError, match=message):
        NormSpec(**{"statistic": "moments", "shares": "token", **answers})


def test_a_number_of_groups_may_be_numpys():
    norm, x = nn.GroupNorm(numpy.int64(2), 4), torch.randn(3, 4, 5)
    assert torch.equal(norm(x), nn.GroupNorm(2, 4)(x))
    assert norm.spec.groups == 2


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_a_graph_is_not_compiled_again_after_a_call_outside_of_it(norm):
    def call(x):
        if norm == "layer_norm":
            return F.layer_norm(x, (4,), eps=2e-4, weight_offset=0.5)
        return F.batch_norm(x, None, None, training=True, eps=2e-4)

    x = torch.randn(3, 4)
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    first = compiled(x)
    assert torch.equal(call(x), first)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(x), first)


@pytest.mark.parametrize("statistic", ["range", "quantile", "none"])
def test_a_statistic_that_no_row_norm_has_is_refused(statistic):
    spec = NormSpec(statistic=statistic, shares="token", center=False)
    with pytest.raises(InvalidArgumentError, match=f"needs the statistic moments, rms or l2, but got '{statistic}'"):
        _rows.rows_reference(torch.randn(2, 4), None, None, 1, spec)


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
