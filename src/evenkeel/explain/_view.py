"""One group's numbers: the facts that the templates ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel.explain._format import latex_number
from evenkeel.explain._words import STEPS, Template, tell

if TYPE_CHECKING:
    from evenkeel.explain._setup import Setup

__all__ = ["View"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The group that the formulas show.

    Attributes:
        setup: the options.
        group: its number.
        groups: how many there are.
        n: its valid members.
        upstream_given: whether the upstream gradient was given.
        values: the steps by id, its valid members or its one number; gamma, beta and factor likewise.
    """

    setup: Setup
    group: int
    groups: int
    n: int
    upstream_given: bool
    values: dict[str, float | np.ndarray]

    def tell(self, template: Template, **facts: Any) -> str:
        """Fill in a template with these facts and those of the group."""
        return tell(template, lambda name: facts[name] if name in facts else self.fact(name))

    def fact(self, name: str) -> Any:
        """Return a step, None where this norm lacks it, or another fact."""
        if name in FACTS:
            return FACTS[name](self)
        if name not in self.values and name not in STEPS:
            raise KeyError(f"no template may ask for {name!r}")
        return self.values.get(name)

    def number(self, step: str) -> float:
        """Return a step that is one number for each group."""
        return float(self.values[step])

    @property
    def result(self) -> np.ndarray:
        """The normalized values."""
        return np.asarray(self.values["normalized"])


def distance(v: View) -> float:
    """Return the mean distance from the mean."""
    return float(np.abs(v.values["centred"]).mean()) if v.n else math.nan


def square(v: View) -> float:
    """Return the statistic under the root of the denominator."""
    return v.number("mean_square" if v.setup.norm.family == "rms" else "variance")


FACTS: dict[str, Callable[[View], Any]] = {
    "norm": lambda v: v.setup.norm.name,
    "family": lambda v: v.setup.norm.family,
    "shared_by": lambda v: v.setup.norm.shared_by,
    "result": lambda v: v.setup.norm.result,
    "takes_eps": lambda v: "eps" in v.setup.norm.options,
    "takes_weight": lambda v: "weight" in v.setup.norm.options,
    "given": lambda v: v.setup.given,
    "weight": lambda v: v.setup.gamma is not None,
    "bias": lambda v: v.setup.beta is not None,
    "eps": lambda v: v.setup.spec.eps,
    "eps_mode": lambda v: v.setup.spec.eps_mode,
    "weight_offset": lambda v: v.setup.spec.weight_offset,
    "correction": lambda v: v.setup.correction,
    "scale": lambda v: v.setup.scale,
    "alpha": lambda v: v.setup.alpha,
    "low": lambda v: v.setup.low,
    "width": lambda v: v.setup.high - v.setup.low,
    "upstream_given": lambda v: v.upstream_given,
    "shape": lambda v: " × ".join(map(str, v.setup.x.shape)),
    "dtype": lambda v: str(v.setup.tensor.dtype).removeprefix("torch."),
    "size": lambda v: v.setup.x.size,
    "masked": lambda v: int((~v.setup.valid).sum()),
    "group": lambda v: v.group,
    "groups": lambda v: v.groups,
    "n": lambda v: v.n,
    "square": square,
    "root": lambda v: math.sqrt(square(v)),
    "distance": distance,
    "sample_ratio": lambda v: v.number("sample_std") / v.number("std") if v.number("std") else 1.0,
    "bound": lambda v: math.sqrt(max(0, v.n - 1)),
    "factor_text": lambda v: latex_number(v.number("factor")),
    "finite_result": lambda v: bool(v.n) and bool(np.isfinite(v.result).all()),
    "result_most": lambda v: float(np.abs(v.result).max()),
    "result_mean": lambda v: float(v.result.mean()),
    "result_std": lambda v: float(v.result.std()),
    "result_rms": lambda v: math.sqrt(float(np.square(v.result).mean())),
    "difference_dx": lambda v: np.asarray(v.values["finite_difference"])[:, 1],
    "difference_numeric": lambda v: np.asarray(v.values["finite_difference"])[:, 2],
}
