"""Drift: the distance of data from the data that statistics were fitted on, feature by feature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenkeel._display import Displayed
from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel._options.limits import DriftLimits
from evenkeel.data._contract import Contract, scaling_of
from evenkeel.data.statistics import Array, Statistics

BINS = 10
# A share of 0 in a bin would make the index infinite; this is the customary floor.
SMALLEST_SHARE = 1e-4
# Differences below so many standard errors are what samples of the same data show by chance.
STANDARD_ERRORS = 5.0
# The deviation of fewer values says nothing, nor do fewer values in each bin.
FEW = 10
# Two numbers of this size differ by one of float64, whatever their signs.
LARGEST = 2.0**1022


@dataclass(frozen=True, kw_only=True)
class FeatureDrift:
    """The change of one feature.

    Attributes:
        name: of the feature, or its position.
        shift: difference of the means in standard deviations of the reference; infinite where that is 0.
        spread: standard deviation now, relative to that of the reference.
        outside: how far values leave the range seen, as a share of that range.
        missing: share of missing values now.
        missing_before: and then.
        psi: population stability index, or None without quantiles.
        ks: largest distance of the two distribution functions, or None without quantiles.
        failures: what exceeds its limit, in words.

    Example:
        >>> from evenkeel.data import FeatureDrift
        >>> FeatureDrift(name="a", shift=0.1, spread=1.0, outside=0.0, missing=0.0, missing_before=0.0).failures
        ()
    """

    name: str
    shift: float
    spread: float
    outside: float
    missing: float
    missing_before: float
    psi: float | None = None
    ks: float | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DriftReport(Displayed):
    """The result of `compare`.

    Attributes:
        features: the change of each feature.
        problems: contradictions to the contract as a whole: a factor between the units, a dtype.

    Example:
        >>> from evenkeel.data import DriftReport
        >>> DriftReport(features=(), problems=("the values look divided by 255",)).ok
        False
    """

    features: tuple[FeatureDrift, ...]
    problems: tuple[str, ...] = ()
    views = "evenkeel.data.views"

    def __repr__(self) -> str:
        return f"DriftReport(features={len(self.features)}, failures={len(self.failures)})"

    @property
    def ok(self) -> bool:
        """Whether nothing drifted."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that exceeds its limit, in words."""
        return (*self.problems, *(f"{f.name}: {text}" for f in self.features for text in f.failures))


def compare(reference: Statistics, current: Statistics, *, limits: DriftLimits | None = None) -> DriftReport:
    """Compare the statistics of data with those of the data of the fit.

    A difference fails when it exceeds its limit and also what chance would show in so few rows (5 standard errors).

    Args:
        reference: of the data of the fit.
        current: of the data to judge, with the same features; with quantiles where the reference has them.
        limits: from where on a difference fails.

    Returns:
        The differences of each feature, and what fails.

    Raises:
        InvalidInputError: the two have other features.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import Statistics, compare
        >>> before, now = np.arange(1000.0).reshape(-1, 1), np.arange(900.0, 1900.0).reshape(-1, 1)
        >>> compare(Statistics().update(before), Statistics().update(now)).failures
        ('0: mean shifted by 3.1 standard deviations', '0: leaves the range seen by 90% of it')
    """
    for name, statistics in (("reference", reference), ("current", current)):
        if not isinstance(statistics, Statistics):
            raise InvalidTypeError(f"compare: {name} must be Statistics, but got {type(statistics).__name__}")
    if not isinstance(limits, DriftLimits | None):
        raise InvalidTypeError(f"compare: limits must be DriftLimits, but got {type(limits).__name__}")
    if reference.features != current.features:
        raise InvalidInputError(f"expected {reference.features} features, but the data has {current.features}")
    limits = limits or DriftLimits()
    contract = Contract.from_statistics(reference)
    problems = [text for dtype in current.dtypes for text in contract._dtype_problems(dtype)]
    factor = contract._factor(current)
    if factor is not None:
        problems.append(f"the values look {scaling_of(factor)}: apply the scaling once")
    rows = (feature_drift(reference, current, i, limits) for i in range(reference.count.size))
    return DriftReport(features=tuple(rows), problems=tuple(dict.fromkeys(problems)))


def feature_drift(reference: Statistics, current: Statistics, index: int, limits: DriftLimits) -> FeatureDrift:
    """The drift of one feature."""
    mean, std, low, high, new_mean, new_std, new_low, new_high = in_range(
        float(part[index])
        for side in (reference, current)
        for part in (side.mean, side.std(), side.minimum, side.maximum)
    )
    count, seen = float(current.count[index]), high - low
    beyond = max(new_high - high, low - new_low, 0.0) if count else 0.0
    values: dict[str, Any] = {
        "shift": ratio(new_mean - mean, std) if count else math.nan,
        "spread": (ratio(new_std, std) if std or new_std else 1.0) if count else math.nan,  # constant, then as now
        "outside": ratio(beyond, seen),
        "missing": missing_share(current, index),
        "missing_before": missing_share(reference, index),
    }
    if reference.keeps_quantiles and current.keeps_quantiles and count and reference.count[index]:
        values |= distances(reference.distribution(index), current.distribution(index))
    name = reference.names[index] if reference.names else str(index)
    return FeatureDrift(
        name=name, **values, failures=tuple(failures_of(values, limits, count, float(reference.count[index])))
    )


def plain(value: float) -> str:
    """Write two digits of a number, and all before the point, without an exponent below a million."""
    return f"{value:,.0f}" if 99.5 <= abs(value) < 1e6 else f"{value:.2g}"


def in_range(numbers: Iterable[float]) -> list[float]:
    """Numbers of one feature, a quarter of each where differences of the finite ones could overflow."""
    numbers = list(numbers)
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    return [number / 4 for number in numbers] if largest > LARGEST else numbers


def ratio(part: float, whole: float) -> float:
    """A quotient that is 0 or infinite where the whole is 0."""
    if whole:
        return part / whole
    return math.copysign(math.inf, part) if part else 0.0


def missing_share(statistics: Statistics, index: int) -> float:
    """Missing values as a share of all."""
    rows = max(statistics.rows, 1)
    return float(statistics.missing[index]) / rows


def distances(before: tuple[Array, Array], now: tuple[Array, Array]) -> dict[str, float]:
    """Population stability index over the tenths of `before`, and the Kolmogorov-Smirnov distance."""
    values = np.unique(np.concatenate([before[0], now[0]]))
    first, second = distribution_at(before, values), distribution_at(now, values)
    ranks = np.searchsorted(first, np.arange(1, BINS) / BINS - 1e-12)
    edges = np.unique(np.minimum(ranks, len(values) - 1))
    old, new = (np.diff(np.concatenate([[0.0], f[edges], [1.0]])) for f in (first, second))
    old, new = (np.maximum(share, SMALLEST_SHARE) for share in (old, new))
    return {"psi": float(np.sum((new - old) * np.log(new / old))), "ks": float(np.abs(first - second).max())}


def distribution_at(sample: tuple[Array, Array], values: Array) -> Array:
    """The distribution function of weighted values at others."""
    own, weights = sample
    total = np.cumsum(weights, dtype=np.float64)
    return np.concatenate([[0.0], total / total[-1]])[np.searchsorted(own, values, side="right")]


def failures_of(values: dict[str, Any], limits: DriftLimits, count: float, before: float) -> list[str]:
    """The differences of a feature that exceed their limits, in words."""
    if not count:
        return ["has no values"] if before else []
    chance = STANDARD_ERRORS * math.sqrt(1 / count + 1 / max(before, 1.0))
    if math.inf in (abs(values["shift"]), values["spread"]):
        return ["was constant in the data of the fit, and is something else now"]
    failures = []
    if abs(values["shift"]) > max(limits.shift, chance):
        failures.append(f"mean shifted by {plain(values['shift'])} standard deviations")
    wide = values["spread"] if values["spread"] >= 1 else ratio(1.0, values["spread"])
    if count >= FEW and wide > max(limits.spread, math.exp(chance / math.sqrt(2))):
        failures.append(f"standard deviation is {plain(values['spread'])} times what it was")
    if values["outside"] > limits.outside:
        failures.append(f"leaves the range seen by {values['outside']:.0%} of it")
    if abs(values["missing"] - values["missing_before"]) > max(limits.missing, chance / 2):
        failures.append(f"{values['missing']:.1%} missing, {values['missing_before']:.1%} before")
    noise = STANDARD_ERRORS * (BINS - 1) * (1 / count + 1 / max(before, 1.0))
    if min(count, before) >= FEW * BINS and values.get("psi", 0.0) > max(limits.psi, noise):
        failures.append(f"distribution changed (population stability index {values['psi']:.2g})")
    return failures
