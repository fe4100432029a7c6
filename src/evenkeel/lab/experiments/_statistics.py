"""Estimates with their uncertainty: means over seeds, and growth exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.report import format_number

__all__ = ["Estimate", "growth_exponent", "mean_of"]

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
