"""The one list of norms that drives the value, derivative, transform and compile batteries."""

from functools import partial

import torch

from evenkeel import functional as F
from evenkeel.testing import Case

GROUPED = ((3, 16), (2, 2, 18))
ROWS = ((3, 7), (2, 3, 16), (5, 33))  # one vector of 16 lanes, more, less; 2-d and 3-d
CHANNELS = ((4, 3, 5), (9, 3), (2, 3, 3, 3))


def last(shape):
    return (shape[-1:], shape[-1:])


def weight_only(shape):
    return (shape[-1:],)


def channel(shape):
    return (shape[1:2], shape[1:2])


def by_channel(t):
    return t.transpose(0, 1).flatten(1)


def by_sample_and_channel(t):
    return t.flatten(2)


def by_sample_and_group(t):
    return t.unflatten(1, (3, -1)).flatten(2)


def rows(name, function, reference, parameters=last, **options):
    def bind(f, **more):
        return lambda x, *p: f(x, x.shape[-1:], *p, **options, **more)

    return Case(
        name=name, function=bind(function, backend="cpu"), reference=bind(reference), shapes=ROWS, parameters=parameters
    )


def rms(name, parameters=weight_only, **options):
    # the machine epsilon of float32, so that the float64 reference checks the same function
    return rows(name, F.rms_norm, F.rms_norm_reference, parameters, **{"eps": 2.0**-23, **options})


def layer(name, parameters=last, **options):
    return rows(name, F.layer_norm, F.layer_norm_reference, parameters, **options)


def added(name, function, reference, parameters=last, **options):
    """The input holds both addends, the output both results."""

    def bind(f, **more):
        return lambda x, *p: torch.stack(f(x[0], x[1], x.shape[-1:], *p, **options, **more))

    return Case(
        name=name,
        function=bind(function, backend="cpu"),
        reference=bind(reference),
        shapes=((2, 3, 7), (2, 2, 3, 16), (2, 5, 33)),
        parameters=parameters,
    )


def grouped(name, function, reference, groups, parameters=last, **options):
    """A norm of equal parts of a row."""

    def bind(f, **more):
        return lambda x, *p: f(x, x.shape[-1:], *p, groups=groups, **options, **more)

    return Case(
        name=name,
        function=bind(function, backend="cpu"),
        reference=bind(reference),
        shapes=GROUPED,
        parameters=parameters,
        rows=lambda t: t.unflatten(-1, (groups, -1)),
    )


def gated(name, gating, **options):
    """The input holds what is normalized and the gate; in the place of the second, the output holds zeros."""

    def bind(f, **more):
        given = {"gating": gating, "eps": 2.0**-23, **options, **more}

        def call(x, weight):
            y = f(x[0], x[1], x.shape[-1:], weight, **given)
            return torch.stack((y, torch.zeros_like(y)))

        return call

    return Case(
        name=name,
        function=bind(F.gated_rms_norm, backend="cpu"),
        reference=bind(F.gated_rms_norm_reference),
        shapes=((2, 3, 16),),
        parameters=weight_only,
    )


def add_layer(name, **options):
    return added(name, F.add_layer_norm, F.add_layer_norm_reference, **options)


def add_rms(name, **options):
    return added(name, F.add_rms_norm, F.add_rms_norm_reference, weight_only, **{"eps": 2.0**-23, **options})


def channels(name, call, function, reference, *, shapes=CHANNELS, rows=by_channel):
    """A norm with channels; ``call(f, x, weight, bias)`` calls the function or the reference."""
    return Case(
        name=name,
        function=partial(call, partial(function, backend="cpu")),
        reference=partial(call, reference),
        shapes=shapes,
        parameters=channel,
        rows=rows,
    )


def batch(name, *, masked=False, **options):
    def call(f, x, weight, bias):
        mask = torch.arange(x.shape[0], device=x.device) != 1 if masked else None  # the second sample is padding
        return f(x, None, None, weight, bias, training=True, mask=mask, **options)

    return channels(name, call, F.batch_norm, F.batch_norm_reference)


def batch_inference(name, **options):
    def call(f, x, weight, bias):
        running = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        return f(x, running / 4, 1 + running / 8, weight, bias, **options)

    return channels(name, call, F.batch_norm, F.batch_norm_reference)


def instance(name, *, masked=False, **options):
    def call(f, x, weight, bias):
        lengths = torch.arange(x.shape[0], device=x.device) + 6
        mask = torch.arange(x.shape[2], device=x.device) < lengths[:, None] if masked else None
        return f(x, weight=weight, bias=bias, mask=mask, **options)

    shapes = ((3, 2, 9), (2, 2, 8, 2))
    return channels(name, call, F.instance_norm, F.instance_norm_reference, shapes=shapes, rows=by_sample_and_channel)


def group(name, *, masked=False, **options):
    def call(f, x, weight, bias):
        mask = torch.arange(x.shape[0], device=x.device) != 1 if masked else None
        return f(x, 3, weight, bias, mask=mask, **options)

    shapes = ((4, 6, 4), (3, 24), (2, 3, 4, 2))
    return channels(name, call, F.group_norm, F.group_norm_reference, shapes=shapes, rows=by_sample_and_group)


def plain(name, function, reference, parameters=lambda shape: (), **options):
    return Case(
        name=name,
        function=partial(function, **options),
        reference=partial(reference, **options),
        shapes=((3, 7), (2, 5, 4)),
        parameters=parameters,
    )


def dyt(x, weight, bias):
    # a moderate slope: where tanh saturates, its float32 derivative 1 - tanh^2 has few digits left, in torch as here
    return F.dyt(x, 0.3, weight, bias)


def dyt_reference(x, weight, bias):
    return F.dyt_reference(x, 0.3, weight, bias)


CASES = (
    layer("layer_norm"),
    layer("layer_norm without affine", lambda shape: ()),
    layer("layer_norm outside", eps_mode="outside", eps=1e-2),
    layer("layer_norm clamp", eps_mode="clamp", eps=1e-3),
    layer("layer_norm 1 + weight", weight_offset=1.0),
    rms("rms_norm"),
    rms("rms_norm without weight", lambda shape: ()),
    rms("rms_norm outside", eps_mode="outside", eps=1e-2),
    rms("rms_norm clamp", eps_mode="clamp", eps=1e-3),
    rms("rms_norm 1 + weight", weight_offset=1.0),
    grouped("layer_norm of 2 groups", F.layer_norm, F.layer_norm_reference, 2),
    grouped("rms_norm of 2 groups", F.rms_norm, F.rms_norm_reference, 2, weight_only, eps=2.0**-23),
    gated("gated_rms_norm", "silu_before"),
    gated("gated_rms_norm after, of 2 groups", "silu_after", groups=2, weight_offset=1.0),
    gated("gated_rms_norm sigmoid after", "sigmoid_after"),
    # rounded is checked against adding and normalizing one after the other, in tests/kernels/test_add_rows.py
    add_layer("add_layer_norm unrounded", residual_rounding="unrounded"),
    add_rms("add_rms_norm unrounded", residual_rounding="unrounded"),
    batch("batch_norm training"),
    batch("batch_norm masked", masked=True),
    batch("batch_norm outside", eps_mode="outside", eps=1e-2),
    batch("batch_norm relu", activation="relu"),
    batch("batch_norm silu masked", activation="silu", masked=True),
    batch_inference("batch_norm inference"),
    batch_inference("batch_norm inference silu", activation="silu"),
    instance("instance_norm"),
    instance("instance_norm masked", masked=True),
    group("group_norm"),
    group("group_norm masked", masked=True),
    group("group_norm silu", activation="silu"),
    plain("normalize", F.normalize, F.normalize_reference),
    plain("normalize last axis", F.normalize, F.normalize_reference, dim=-1),
    plain("normalize outside", F.normalize, F.normalize_reference, eps_mode="outside", eps=1e-2, dim=-1),
    plain("normalize inside", F.normalize, F.normalize_reference, eps_mode="inside", eps=1e-2, dim=-1),
    plain("dyt", dyt, dyt_reference, last),
)
