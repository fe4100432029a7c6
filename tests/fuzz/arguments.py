"""Wrong kinds of values for every argument of every public callable: a result, or one clear error of the right type."""

import contextlib
import io
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fuzz.checks import Fault, check_error
from hypothesis import strategies as st

from evenkeel import NormSpec, data, explain, nn
from evenkeel import functional as F

MEMORY = 3 << 30


def x(*shape, dtype=torch.float32):
    return torch.linspace(-2, 3, torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def quantized():
    return torch.quantize_per_tensor(x(4, 6), 0.1, 0, torch.qint8)


# what to put in an argument's place: its text, by which a case is told, and how to make it
WRONG: dict[str, Callable[[], Any]] = {
    **{
        text: (lambda text=text: eval(text))
        for text in (
            "None",
            "'x'",
            "''",
            "b'x'",
            "[]",
            "()",
            "{}",
            "[1.0, 2.0]",
            "(6,)",
            "[[1.0], [1.0, 2.0]]",
            "{'a': 1}",
            "object()",
            "len",
            "1j",
            "0",
            "1",
            "3",
            "-1",
            "True",
            "10**9",
            "10**30",
            "-10**30",
            "2.5",
            "-2.5",
            "float('nan')",
            "float('inf')",
            "float('-inf')",
            "1e300",
            "1e-320",
            "(-1, 6)",
            "(2**40, 2**40)",
            "('a',)",
            "(None,)",
            "np.zeros((4, 6))",
            "np.zeros((4, 6), np.int32)",
            "np.array(['a', 'b'])",
            "np.array(None)",
            "np.float64(0.5)",
            "np.int64(2)",
            "torch.float32",
            "torch.int64",
            "torch.device('cpu')",
            "torch.device('meta')",
            "torch.tensor(2.0)",
            "torch.tensor(2)",
            "torch.zeros(0)",
            "torch.zeros(6)",
            "torch.zeros(7)",
            "torch.zeros(4, 6)",
            "torch.zeros(2, 6, 5)",
            "torch.zeros(0, 6)",
            "torch.zeros(4, 0)",
            "torch.zeros(4, 6).long()",
            "torch.ones(6) > 0",
            "torch.zeros(6, dtype=torch.complex64)",
            "torch.zeros(4, 6, dtype=torch.complex64)",
            "torch.ones(4, 6) > 0",
            "torch.zeros(4, 6).to_sparse()",
            "torch.zeros(4, 6).to_sparse_csr()",
            "torch.zeros(6).to_sparse()",
            "torch.zeros(4, 6).to_mkldnn()",
            "torch.zeros(6).to_mkldnn()",
            "torch.zeros(4, 6, device='meta')",
            "torch.zeros(6, device='meta')",
            "torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)])",
            "quantized()",
            "torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)], layout=torch.jagged)",
            "torch.zeros(4, 6, dtype=torch.float8_e4m3fn)",
            "torch.zeros(6, requires_grad=True)",
            "torch.nn.Parameter(x(6))",
            "torch.full((4, 6), float('nan'))",
        )
    },
}


@dataclass(frozen=True)
class Call:
    """A callable, arguments with which it works, and torch's function of the same meaning."""

    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    peer: Callable[..., Any] | None = None


def module(kind, shape, **arguments):
    """Building a module and calling it on an input."""

    def build(base, **given):
        input = given.pop("input")
        return base(**given)(input)

    peer = getattr(torch.nn, kind, None)
    return Call(
        lambda **given: build(getattr(nn, kind), **given),
        lambda: {"input": x(*shape), **arguments},
        peer and (lambda **given: build(peer, **given)),
    )


def rows(name, peer=None, **more):
    affine = {"weight": x(6)} | ({"bias": x(6)} if "layer" in name else {})
    own = {"eps": 1e-5, "eps_mode": "inside", "weight_offset": 0.0, "backend": "auto"}
    addend = {"residual": x(4, 6)} if name.startswith("add") else {"cast": "late", "memory_efficient": False}
    return Call(
        getattr(F, name), lambda: {"input": x(4, 6), "normalized_shape": (6,), **affine, **addend, **own, **more}, peer
    )


CHANNEL = {"momentum": 0.1, "eps": 1e-5, "eps_mode": "inside", "weight_offset": 0.0, "cast": "late", "mask": None}


def channels(name, peer, **more):
    vectors = ("weight", "bias") if name == "group_norm" else ("running_mean", "running_var", "weight", "bias")
    options = {k: v for k, v in CHANNEL.items() if not (name == "group_norm" and k == "momentum")}
    return Call(
        getattr(F, name), lambda: {"input": x(2, 6, 5), **{v: x(6).abs() for v in vectors}, **options, **more}, peer
    )


def scaler(name, **arguments):
    def use(X, **given):
        return getattr(data, name)(**given).fit(X).transform(X)

    return Call(
        use, lambda: {"X": x(4, 6).numpy(), "copy": True, "constant": "one", "on_mismatch": "ignore", **arguments}
    )


def statistics(x, weight, p, **given):
    found = data.Statistics(**given).update(x, weight=weight)
    return found.variance(), found.to_dict(), found.quantile(p) if given["quantiles"] is True else None


def saved(path):
    return data.load(data.save(data.Statistics().update(np.eye(2)), path))


def transformed(source, out, columns, on_mismatch):
    np.save("x.npy", np.eye(3))
    fitted = data.StandardScaler().fit(np.eye(3))
    return data.transform_files(fitted, source, out, columns=columns, on_mismatch=on_mismatch)


TN = torch.nn.functional
CALLS = {
    "layer_norm": rows("layer_norm", TN.layer_norm, out=None),
    "rms_norm": rows("rms_norm", TN.rms_norm, out=None),
    "add_layer_norm": rows("add_layer_norm", residual_rounding="rounded"),
    "add_rms_norm": rows("add_rms_norm", residual_rounding="rounded"),
    "batch_norm": channels("batch_norm", TN.batch_norm, training=True, activation=None),
    "instance_norm": channels("instance_norm", TN.instance_norm, use_input_stats=True),
    "group_norm": channels("group_norm", TN.group_norm, num_groups=2, activation=None),
    "normalize": Call(
        F.normalize,
        lambda: {"input": x(4, 6), "p": 2.0, "dim": 1, "eps": 1e-12, "out": None, "eps_mode": "clamp"},
        TN.normalize,
    ),
    "dyt": Call(F.dyt, lambda: {"input": x(4, 6), "alpha": 0.5, "weight": x(6), "bias": x(6), "backend": "auto"}),
    "column_moments": Call(F.column_moments, lambda: {"x": x(4, 6), "weight": x(4).abs(), "backend": "auto"}),
    "column_affine": Call(
        F.column_affine,
        lambda: {
            "x": x(4, 6),
            "shift": x(6),
            "scale": x(6),
            "offset": x(6),
            "clip": (0.0, 1.0),
            "out": None,
            "dtype": torch.float32,
            "backend": "auto",
        },
    ),
    "finite_column_affine": Call(
        F.finite_column_affine,
        lambda: {"x": x(4, 6), "shift": x(6), "scale": x(6), "offset": x(6), "clip": None, "out": None},
    ),
    "has_infinity": Call(F.has_infinity, lambda: {"x": x(4, 6)}),
    "image_normalize": Call(
        F.image_normalize,
        lambda: {
            "images": x(3, 4, 6),
            "mean": [0.1, 0.2, 0.3],
            "std": [1.0, 2.0, 3.0],
            "layout": "CHW",
            "max_value": 255.0,
            "dtype": torch.float32,
            "out": None,
            "backend": "auto",
        },
    ),
    "image_moments": Call(F.image_moments, lambda: {"images": x(3, 4, 6), "layout": "CHW", "backend": "auto"}),
    "LayerNorm": module(
        "LayerNorm",
        (4, 6),
        normalized_shape=6,
        eps=1e-5,
        elementwise_affine=True,
        bias=True,
        device=None,
        dtype=None,
        cast="late",
    ),
    "RMSNorm": module(
        "RMSNorm", (4, 6), normalized_shape=6, eps=None, elementwise_affine=True, device=None, dtype=None
    ),
    "BatchNorm1d": module(
        "BatchNorm1d",
        (4, 6),
        num_features=6,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        device=None,
        dtype=None,
        activation=None,
    ),
    "BatchNorm2d": module("BatchNorm2d", (2, 6, 3, 3), num_features=6, eps=1e-5, momentum=0.1, affine=True),
    "BatchNorm3d": module("BatchNorm3d", (2, 6, 3, 3, 2), num_features=6, eps=1e-5, momentum=0.1),
    "InstanceNorm1d": module(
        "InstanceNorm1d", (2, 6, 5), num_features=6, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True
    ),
    "InstanceNorm2d": module("InstanceNorm2d", (2, 6, 5, 3), num_features=6, eps=1e-5, momentum=0.1),
    "GroupNorm": module(
        "GroupNorm", (2, 6, 5), num_groups=2, num_channels=6, eps=1e-5, affine=True, device=None, dtype=None
    ),
    "LazyBatchNorm1d": module("LazyBatchNorm1d", (4, 6), eps=1e-5, momentum=0.1, affine=True),
    "LocalResponseNorm": module("LocalResponseNorm", (2, 6, 5), size=2, alpha=1e-4, beta=0.75, k=1.0),
    "DyT": module("DyT", (4, 6), normalized_shape=6, alpha=0.5, bias=True, device=None, dtype=None, backend="auto"),
    "FeatureAffine": module("FeatureAffine", (4, 6), shift=x(6), scale=x(6), offset=x(6), clip=(0.0, 1.0), axis=-1),
    "PixelNormalize": module(
        "PixelNormalize",
        (3, 4, 6),
        mean=[0.1, 0.2, 0.3],
        std=[1.0, 2.0, 3.0],
        layout="CHW",
        max_value=255.0,
        dtype=torch.float32,
    ),
    "NormSpec": Call(
        NormSpec,
        lambda: {
            "statistic": "rms",
            "shares": "token",
            "center": False,
            "eps": 1e-5,
            "eps_mode": "inside",
            "weight": True,
            "weight_offset": 0.0,
            "cast": "late",
            "groups": None,
        },
    ),
    "Statistics": Call(
        statistics,
        lambda: {
            "x": x(4, 6).numpy(),
            "weight": None,
            "p": 0.5,
            "features": None,
            "names": None,
            "axis": -1,
            "quantiles": True,
            "sketch_size": 64,
            "nan_policy": "omit",
        },
    ),
    "StandardScaler": scaler("StandardScaler", with_mean=True, with_std=True, ddof=0),
    "MinMaxScaler": scaler("MinMaxScaler", feature_range=(0, 1), clip=False),
    "MaxAbsScaler": scaler("MaxAbsScaler", clip=False),
    "RobustScaler": scaler("RobustScaler", quantile_range=(25.0, 75.0), unit_variance=False, sketch_size=64),
    "fit": Call(
        data.fit,
        lambda: {
            "source": x(4, 6),
            "scaler": "standard",
            "columns": None,
            "quantiles": False,
            "nan_policy": "omit",
            "workers": 1,
            "on_error": "raise",
            "resume": None,
            "progress": None,
        },
    ),
    "save and load": Call(saved, lambda: {"path": "x.json"}),
    "transform_files": Call(
        transformed, lambda: {"source": "x.npy", "out": "y.npy", "columns": None, "on_mismatch": "ignore"}
    ),
    "compare": Call(
        data.compare,
        lambda: {
            "reference": data.Statistics().update(np.eye(2)),
            "current": data.Statistics().update(np.eye(2)),
            "limits": None,
        },
    ),
    "DriftLimits": Call(
        lambda **limits: data.compare(
            data.Statistics().update(np.eye(2)), data.Statistics().update(np.eye(2)), limits=data.DriftLimits(**limits)
        ),
        lambda: {"shift": 0.5, "spread": 2.0, "outside": 0.5, "missing": 0.05, "psi": 0.2},
    ),
    "ImageNormalize": Call(
        lambda image, **given: data.ImageNormalize(**given)(image),
        lambda: {
            "image": np.zeros((4, 5, 3), np.uint8),
            "mean": (0.5, 0.5, 0.5),
            "std": (1.0, 1.0, 1.0),
            "layout": "HWC",
            "max_value": 255.0,
            "channel_order": "RGB",
            "definition": "given",
            "dtype": torch.float32,
            "on_mismatch": "ignore",
        },
    ),
    "GroupStatistics": Call(
        lambda x, groups: data.GroupStatistics().update(x, groups), lambda: {"x": np.eye(3), "groups": np.arange(3)}
    ),
    "walk": Call(explain.walk, lambda: {"x": x(4, 6), "norm": "layer", "eps": 1e-5, "weight": x(6), "backward": False}),
}


@dataclass(frozen=True)
class Replaced:
    """A call with some of its arguments replaced."""

    name: str
    wrong: dict[str, str] = field(default_factory=dict)

    def given(self):
        """All arguments, and those that torch's function takes too."""
        arguments = CALLS[self.name].arguments() | {argument: WRONG[text]() for argument, text in self.wrong.items()}
        own = ("eps_mode", "weight_offset", "cast", "backend", "out", "memory_efficient", "mask", "activation")
        common = {k: v for k, v in arguments.items() if k not in own or (k == "out" and self.name == "normalize")}
        return arguments, common, not any(argument in own for argument in self.wrong)


@st.composite
def replacements(draw):
    name = draw(st.sampled_from(list(CALLS)))
    names = st.sampled_from(sorted(CALLS[name].arguments()))
    return Replaced(name, draw(st.dictionaries(names, st.sampled_from(list(WRONG)), min_size=1, max_size=2)))


def outcome(function, arguments):
    """The result or the error, in a folder of its own; what a call prints is thrown away."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            return function(**arguments), None
        except Exception as error:
            return None, error
        finally:
            os.chdir(here)


def is_odd(case):
    """Whether a nested tensor, whose sizes torch itself cannot tell, stands for a number outside the norms."""
    given = CALLS[case.name].arguments()
    arrays = [name for name, value in given.items() if isinstance(value, torch.Tensor | np.ndarray)]
    nested = (name for name, text in case.wrong.items() if "nested" in text)
    return CALLS[case.name].peer is None and any(name not in arrays for name in nested)


def check_replaced(case):
    if is_odd(case):
        return
    arguments, _, shared = case.given()
    _, error = outcome(CALLS[case.name].function, arguments)
    if error is None:
        return
    peer, theirs = CALLS[case.name].peer, None
    if peer is not None and shared:
        _, theirs = outcome(peer, case.given()[1])
        # torch's own words, from torch's own code; what follows the first line may hold addresses
        if type(theirs) is type(error) and str(theirs).partition("\n")[0] == str(error).partition("\n")[0]:
            return
    if "Overflow when unpacking" in str(error):  # torch's reader of arguments adds where it stood
        return
    inner = traceback.extract_tb(error.__traceback__)[-1].filename
    if "/sklearn/" in inner and isinstance(error, TypeError | ValueError):  # its checks speak in its own words
        return
    check_error(error, TypeError, ValueError, RuntimeError, IndexError)
    if len(case.wrong) > 1:  # of two, either may be told first
        return
    if not (theirs is None or isinstance(error, (TypeError, kind_of(theirs)))):
        kinds = f"{type(error).__name__} where torch raises {type(theirs).__name__}"
        raise Fault(f"{case.name}, {', '.join(case.wrong)}: {kinds} ({error} | {str(theirs)[:200]})") from error


def kind_of(error):
    """What a caller of torch catches; a TypeError of ours is right in any case, and torch's others say little."""
    return next((kind for kind in (TypeError, ValueError, RuntimeError) if type(error) is kind), Exception)


PROPERTIES = {"arguments": (replacements(), check_replaced)}
