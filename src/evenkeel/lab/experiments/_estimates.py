"""Estimates with their uncertainty: means over seeds, growth exponents, and what they say of a claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evenkeel.lab.training import Estimate, Measurement, mean_of, measured, t95
from evenkeel.report import Series, format_number, join_words

Point = tuple[float, Measurement]


def intervals(named: Mapping[str, Estimate]) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return estimates as a claim holds them: a name, the value and the ends of its interval."""
    return [(name, known(item.value), known(item.low), known(item.high)) for name, item in named.items() if item]


def known(number: float) -> float | None:
    """Return a finite number, None for another."""
    return number if math.isfinite(number) else None


def spread(named: Mapping[str, Sequence[float]]) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return the mean of each name's numbers with their range, in the same form."""
    there = {name: numbers for name, numbers in named.items() if numbers}
    return [(name, statistics.fmean(numbers), min(numbers), max(numbers)) for name, numbers in there.items()]


PERCENT = (0.0, 100.0)


def exactly(value: float) -> Estimate:
    """Return a number without uncertainty, to compare an estimate with."""
    return Estimate(value, value, value)


def geometric_mean(values: Iterable[Measurement]) -> Estimate:
    """Return the geometric mean of the positive values with its 95 % interval, for ratios and what spans decades."""
    logs = mean_of(math.log(value) for value in measured(values) if value > 0)
    return Estimate(*(math.exp(min(end, 700.0)) for end in (logs.value, logs.low, logs.high)))


def growth_exponent(points: Iterable[Point]) -> Estimate:
    """Return b of the least-squares fit y = a x^b on logarithms, with its 95 % interval.

    Args:
        points: x and y, of which those count whose x and y are positive; two different x are needed.
    """
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y is not None and 0 < y < math.inf]
    log_x, log_y = [x for x, _ in logs], [y for _, y in logs]
    if len(set(log_x)) < 2:
        return mean_of([])
    slope, intercept = statistics.linear_regression(log_x, log_y)
    degrees = len(logs) - 2
    if degrees < 1:
        return Estimate(slope, -math.inf, math.inf)
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in logs)
    centre = statistics.fmean(log_x)
    half = t95(degrees) * math.sqrt(residual / degrees / math.fsum((x - centre) ** 2 for x in log_x))
    return Estimate(slope, slope - half, slope + half)


def verdict(estimate: Estimate, low: float, high: float) -> str:
    """Return what an interval says of the claim that a value lies from low to high.

    Args:
        estimate: the value and its 95 % interval.
        low: the smallest value that the claim allows.
        high: the largest.

    Returns:
        ``agrees`` if the whole interval lies within, ``disagrees`` if all of it lies outside, otherwise ``undecided``.
    """
    if low <= estimate.low and estimate.high <= high:
        return "agrees"
    if estimate.high < low or estimate.low > high:
        return "disagrees"
    return "undecided"


def below(smaller: Estimate, larger: Estimate) -> str:
    """Return what two intervals say of the claim that one value is below the other: undecided where they overlap."""
    return "agrees" if smaller.high < larger.low else "disagrees" if smaller.low > larger.high else "undecided"


def estimates_in_words(estimates: Mapping[str, Estimate], unit: str = "") -> str:
    """Return the names that were measured, each with its value."""
    return join_words([f"{name} {format_number(item.value)}{unit}" for name, item in estimates.items() if item])


def level(name: str, value: float | None, series: Sequence[Series]) -> list[Series]:
    """Return a horizontal line under the curves, for a limit that a verdict uses; nothing without value or curves."""
    places = [x for item in series for x in item.x]
    return [Series(name, [min(places), max(places)], [value, value])] if places and value is not None else []


def covers(item: Estimate, value: float) -> bool:
    """Whether an interval covers a value, so that no difference from it is seen."""
    return item.low <= value <= item.high


def curves(groups: Mapping[str, Iterable[Any]], points: Callable[[Any], Iterable[Point]]) -> list[Series]:
    """Return a band for each named group of records, over the points of all its records."""
    return [band(name, [point for record in group for point in points(record)]) for name, group in groups.items()]


def band(name: str, points: Iterable[Point]) -> Series:
    """Return a curve of the mean over the points that share a position, with their range as its band.

    Args:
        name: of the curve.
        points: positions with what was measured there; what is missing is left out.
    """
    groups: dict[float, list[float]] = {}
    for x, y in points:
        if y is not None and math.isfinite(x) and math.isfinite(y):
            groups.setdefault(x, []).append(y)
    places = sorted(groups)
    return Series(
        name,
        places,
        [statistics.fmean(groups[place]) for place in places],
        low=[min(groups[place]) for place in places],
        high=[max(groups[place]) for place in places],
    )
