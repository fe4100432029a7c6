"""Means of few measurements with their intervals, by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from evenkeel.report import format_number

Measurement = float | None  # None stands for what JSON cannot hold: a number that is not finite

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table, those of 30 are a little wide.
# fmt: off
T95 = (
    math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


def t95(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    return T95[min(max(degrees, 0), len(T95) - 1)]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval; without measurements nan without bounds, which decides nothing."""

    value: float
    low: float
    high: float

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self:
            return "unknown (no measurement)"
        if not math.isfinite(self.high - self.low):
            return f"{format_number(self.value)} (one measurement, no interval)"
        return f"{format_number(self.value)} (95 % interval {format_number(self.low)} to {format_number(self.high)})"


def measured(values: Iterable[Measurement]) -> list[float]:
    """Return the values that are there and finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(
    values: Iterable[Measurement], *, scale: float = 1.0, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """Return the mean of scale times what was measured; the 95 % interval is Student's t's, infinite with one value.

    Args:
        values: what was measured.
        scale: a factor.
        within: the numbers that are possible, such as 0 to 100 for a percentage of all; the interval ends there.
    """
    numbers = [scale * value for value in measured(values)]
    mean = statistics.fmean(numbers) if numbers else math.nan
    if len(numbers) < 2:
        return Estimate(mean, -math.inf, math.inf)
    half = t95(len(numbers) - 1) * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return Estimate(mean, max(mean - half, within[0]), min(mean + half, within[1]))
