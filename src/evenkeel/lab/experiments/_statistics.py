"""Estimates with their uncertainty: means over seeds, and growth exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.report import Series, format_number

__all__ = ["Estimate", "band_over", "below", "geometric_mean", "growth_exponent", "mean_of", "verdict"]

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table, those of 30 are a little wide.
T95 = (
    math.inf,
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether a value lies within the interval."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if not math.isfinite(self.high - self.low):
            return f"{format_number(self.value)} (one measurement, no interval)"
        return f"{format_number(self.value)} (95 % interval {format_number(self.low)} to {format_number(self.high)})"


def t95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    return T95[min(max(degrees, 0), len(T95) - 1)]


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean with its 95 % interval by Student's t; with one value the interval is infinite."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, -math.inf, math.inf)
    half = t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def geometric_mean(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of positive values with its 95 % interval, for ratios and what spans decades."""
    logs = mean_of([math.log(value) for value in values])
    return Estimate(*(math.exp(min(end, 700.0)) for end in (logs.value, logs.low, logs.high)))


def growth_exponent(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Return b of the least-squares fit y = a x^b on logarithms, with its 95 % interval.

    Args:
        x: positive positions, two of them different.
        y: positive values.
    """
    log_x, log_y = [math.log(v) for v in x], [math.log(v) for v in y]
    slope, intercept = statistics.linear_regression(log_x, log_y)
    degrees = len(log_x) - 2
    if degrees < 1:
        return Estimate(slope, -math.inf, math.inf)
    residual = math.fsum((b - intercept - slope * a) ** 2 for a, b in zip(log_x, log_y, strict=True))
    centre = statistics.fmean(log_x)
    half = t95(degrees) * math.sqrt(residual / degrees / math.fsum((a - centre) ** 2 for a in log_x))
    return Estimate(slope, slope - half, slope + half)


def verdict(found: Estimate, low: float, high: float) -> str:
    """Return what an interval says of the claim that a value lies from low to high.

    Args:
        found: the value and its 95 % interval.
        low: the smallest value that the claim allows.
        high: the largest.

    Returns:
        ``agrees`` if the whole interval lies within, ``disagrees`` if all of it lies outside, otherwise ``undecided``.
    """
    if low <= found.low and found.high <= high:
        return "agrees"
    if found.high < low or found.low > high:
        return "disagrees"
    return "undecided"


def below(smaller: Estimate, larger: Estimate) -> str:
    """Return what two intervals say of the claim that one value is below the other: undecided where they overlap."""
    return "agrees" if smaller.high < larger.low else "disagrees" if smaller.low > larger.high else "undecided"


def band_over(
    name: str, records: Sequence[Mapping[str, Any]], x: str, value: Callable[[Mapping[str, Any]], float | None]
) -> Series:
    """Return a curve of the mean over the records that share a position, with their range as its band.

    Args:
        name: of the curve.
        records: measurements; those whose value is None or not finite are left out.
        x: the entry that holds the position.
        value: what is drawn of a record.
    """
    groups: dict[float, list[float]] = {}
    for record in records:
        number = value(record)
        if number is not None and math.isfinite(number):
            groups.setdefault(record[x], []).append(number)
    places = sorted(groups)
    return Series(
        name,
        places,
        [statistics.fmean(groups[place]) for place in places],
        low=[min(groups[place]) for place in places],
        high=[max(groups[place]) for place in places],
    )
