"""Which norm a layer of a model is, as `evenkeel.recognition` tells it, in the options of a walk."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._spec import NormSpec
from evenkeel.explain._norms import NORMS, find_norm, norm_of
from evenkeel.explain._setup import Setup, set_up
from evenkeel.explain._walk import output_of
from evenkeel.recognition import Layout, Recognition, recognize

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["CLOSE", "Guess", "distance", "recognise"]

LARGE, PROBED = 100_000, 64  # of an activation with more numbers, so many rows are compared
CLOSE = 8.0  # ulps of a row's largest value: a right norm is within 3, a wrong one off by thousands


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a layer computes.

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


def recognise(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Guess | None, str]:
    """Return what a layer computes, believed where a walk repeats its output, or None and the reason."""
    alpha = getattr(module, "alpha", None)
    if isinstance(alpha, torch.Tensor) and alpha.numel() == 1:  # it has no statistics, but a walk
        guess: Guess | None = squashing(module, alpha)
    else:
        found = recognize(module)
        if x.ndim not in found.ranks and x.numel() <= LARGE:
            shown = recognize(module, example=x)
            found = shown if shown.spec is not None else found
        if found.spec is None:
            return None, found.reason
        guess = guess_of(module, found, x)
    if guess is None:
        return None, "a walk knows no norm with these axes, groups or gates"
    inputs, outputs = part_of(x, y, guess)
    error = distance(output_of(guess.set_up(inputs)), outputs)
    if error > CLOSE:
        return None, f"the closest, {norm_of(guess.spec).key}, is off by {error:.3g} ulps"
    return guess, ""


def squashing(module: nn.Module, alpha: Tensor) -> Guess:
    """DyT of the last axes."""
    affine = {name: tensor_of(module, name) for name in ("weight", "bias")}
    axes = next((tensor.ndim for tensor in affine.values() if tensor is not None), 1)
    given = affine | {"axis": tuple(range(-axes, 0)), "alpha": alpha.item()}
    return Guess(spec=find_norm("dyt").spec, given=given)


def guess_of(module: nn.Module, found: Recognition, x: Tensor) -> Guess | None:
    """Return a recognised norm as a walk takes it; None of one that no walk shows."""
    spec, layout, roles = found.spec, found.layout, found.roles
    assert spec is not None
    assert layout is not None
    assert roles is not None
    known = any((norm.spec.statistic, norm.spec.shares) == (spec.statistic, spec.shares) for norm in NORMS)
    if not known or spec.gating is not None or (spec.shares == "token" and spec.groups is not None):
        return None
    spec = replace(spec, activation=None, cast="late")  # a walk knows neither; its distance tells
    given: dict[str, Any] = {part: tensor_of(module, getattr(roles, part)) for part in ("weight", "bias")}
    if layout.channel_axis == 1:
        given = {part: None if tensor is None else tensor.reshape(-1) for part, tensor in given.items()}
    if spec.shares == "token":
        return Guess(spec=spec, given=given | {"axis": axes_of(layout)})
    if layout.channel_axis != 1 and x.ndim > 2:
        return None
    if spec.shares == "sample_group":
        return Guess(spec=spec, given=given | {"groups": layout.groups})
    if spec.memory == "running":
        spec = replace(spec, shares="channel")
        given |= {part: tensor_of(module, getattr(roles, part)) for part in ("mean", "variance")}
    return Guess(spec=spec, given=given)


def axes_of(layout: Layout) -> tuple[int, ...]:
    """The axes of a norm of rows: counted from the end, or the one of the channels."""
    return (1,) if layout.channel_axis == 1 else tuple(range(-layout.axes, 0))


def part_of(x: Tensor, y: Tensor, guess: Guess) -> tuple[Tensor, Tensor]:
    """Take enough rows of a large activation to compare."""
    axes = guess.given.get("axis", (1,))
    if axes == (1,) or x.numel() <= LARGE:
        return x, y
    tail = x.shape[x.ndim - len(axes) :]
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


def tensor_of(module: nn.Module, name: str | None) -> Tensor | None:
    """Return a floating tensor of a module or of one inside, or None."""
    value = None if name is None else attrgetter(name)(module)
    return value.detach().cpu() if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else None
