"""Which norm a layer of a model is: guesses from its type and attributes, believed where they repeat its output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evenkeel._spec import NormSpec
from evenkeel.explain._norms import find_norm, norm_of
from evenkeel.explain._setup import Setup, set_up
from evenkeel.explain._walk import output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["CLOSE", "Guess", "distance", "may_be_norm", "recognise"]

# torch.nn's norms, of which ours are subclasses; the first that fits counts.
TYPES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.modules.instancenorm._InstanceNorm, "instance"),
    (nn.modules.batchnorm._NormBase, "batch"),
    (nn.GroupNorm, "group"),
    (nn.LayerNorm, "layer"),
    (nn.RMSNorm, "rms"),
)
EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
LARGE, PROBED = 100_000, 64  # of an activation with more numbers, so many rows tell norms of rows apart
# Two guesses that differ by less than this cannot be told apart: the layer's own rounding is as large.
ALIKE = 1.0
CLOSE = 8.0  # ulps of a row's largest value: a right guess is within 3, a wrong one off by thousands


def may_be_norm(module: nn.Module) -> bool:
    """Whether a module is a norm by its type, by its name, or by an ε: some have their ε in the code."""
    if any(isinstance(module, kind) for kind, _ in TYPES):
        return True
    named = own_eps(module) is not None or "norm" in type(module).__name__.lower()
    return named and not list(module.children())


def own_eps(module: nn.Module) -> float | None:
    """Return a module's ε, under whichever name it keeps it, or None."""
    values = (getattr(module, name, None) for name in EPS_NAMES)
    return next((float(eps) for eps in values if isinstance(eps, int | float)), None)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a layer may compute.

    Attributes:
        spec: its norm and options.
        given: what no spec holds: axes, parameters, remembered statistics.
    """

    spec: NormSpec
    given: dict[str, Any]

    def set_up(self, x: Tensor) -> Setup:
        """Set up a walk over an activation."""
        given = {name: value for name, value in self.given.items() if value is not None}
        return set_up(x, norm_of(self.spec), self.spec, given)


def recognise(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Guess | None, float]:
    """Return the guess closest to a layer's output, and its distance in ulps.

    The first of equals counts: where ε cannot be told apart, that is the usual mode.
    """
    tried = []
    for guess in guesses(module, x):
        inputs, outputs = probe(x, y, guess)
        tried.append((distance(output_of(guess.set_up(inputs)), outputs), guess))
    least = min((error for error, _ in tried), default=math.inf)
    return next(((guess, error) for error, guess in tried if error <= least + ALIKE), (None, math.inf))


def probe(x: Tensor, y: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
    """Take enough rows of a large activation to tell norms of rows apart."""
    if "axis" not in guess.given or x.numel() <= LARGE:
        return x, y
    tail = x.shape[x.ndim - len(guess.given["axis"]) :]
    return x.reshape(-1, *tail)[:PROBED], y.reshape(-1, *tail)[:PROBED]


def distance(result: np.ndarray, output: Tensor) -> float:
    """Return the largest difference in ulps of the output's largest value."""
    expected = output.double().cpu().numpy()
    if result.shape != expected.shape:
        return math.inf
    result, expected = result.reshape(-1), expected.reshape(-1)
    fine = np.isfinite(result) & np.isfinite(expected)
    if not fine.any():
        return math.inf
    info = torch.finfo(output.dtype)
    unit = info.eps * max(float(np.abs(expected[fine]).max()), info.tiny)
    return float(np.abs(result - expected)[fine].max()) / unit


def spec_of(module: nn.Module) -> NormSpec:
    """Return what a module says of itself: its own spec, or its type and options; an unknown one is an RMSNorm."""
    own = getattr(module, "spec", None)
    if isinstance(own, NormSpec):
        return own
    key = next((key for kind, key in TYPES if isinstance(module, kind)), "rms")
    spec, eps = find_norm(key).spec, own_eps(module)
    mode: Any = getattr(module, "eps_mode", "inside")
    offset = float(getattr(module, "weight_offset", 0.0))
    return replace(spec, eps=spec.eps if eps is None else eps, eps_mode=mode, weight_offset=offset)


def guesses(module: nn.Module, x: Tensor) -> Iterator[Guess]:
    """Yield what a module may compute, likeliest first."""
    spec = spec_of(module)
    affine = {"weight": tensor_of(module, "weight"), "bias": tensor_of(module, "bias")}
    if spec.shares == "token":
        yield from row_guesses(module, x, spec, affine)
    elif spec.shares == "sample_group":
        yield Guess(spec=spec, given=affine | {"groups": module.num_groups})
    else:
        mean, variance = tensor_of(module, "running_mean"), tensor_of(module, "running_var")
        if mean is not None:
            spec = replace(spec, shares="channel")
        yield Guess(spec=spec, given=affine | {"mean": mean, "variance": variance})


def row_guesses(module: nn.Module, x: Tensor, spec: NormSpec, affine: dict[str, Tensor | None]) -> Iterator[Guess]:
    """Yield LayerNorm and RMSNorm of the last axes in every mode, with the weight and ε of the attributes."""
    weight, bias = affine["weight"], affine["bias"]
    declared = getattr(module, "normalized_shape", None)
    axes = weight.ndim if weight is not None else len(declared) if isinstance(declared, tuple) else 1
    if axes == 0 or axes > x.ndim or (weight is not None and tuple(x.shape[x.ndim - axes :]) != tuple(weight.shape)):
        return
    axis = tuple(range(-axes, 0))
    alpha = tensor_of(module, "alpha")
    if alpha is not None and alpha.numel() == 1:
        yield Guess(spec=find_norm("dyt").spec, given=affine | {"axis": axis, "alpha": alpha.item()})
    layer = find_norm("layer").spec
    kinds = (layer,) if bias is not None or spec.statistic == "moments" else (find_norm("rms").spec, layer)
    for eps in [spec.eps] if spec.eps is not None else [None, 1e-6, 1e-5, 1e-12, 0.0]:
        for offset in dict.fromkeys((spec.weight_offset, 0.0, 1.0) if weight is not None else (0.0,)):
            for mode in dict.fromkeys((spec.eps_mode, "inside", "outside", "clamp")):
                for kind in kinds:
                    number = kind.eps if eps is None else eps
                    guess = replace(kind, eps=number, eps_mode=mode, weight_offset=offset)
                    parameters = affine if kind is layer else {"weight": weight}
                    yield Guess(spec=guess, given=parameters | {"axis": axis})


def tensor_of(module: nn.Module, name: str) -> Tensor | None:
    """Return a floating tensor attribute, or None."""
    value = getattr(module, name, None)
    return value.detach().cpu() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else None
