"""What is peculiar about a feature, in words of one line: what to know before scaling by its statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from evenkeel.data.statistics import Array, Statistics

__all__ = ["constant_features", "empty_features", "flag_features", "order_by_flags", "warn_of_features"]

RANKS = (0.05, 0.25, 0.5, 0.75, 0.95)
# The skew of the 5 % and 95 % quantiles about the median: 0 for a normal distribution, 0.56 for an exponential one.
SKEWED = 0.4
FAR = 10  # interquartile ranges beyond the quartiles: a normal one of any size stays within
FAR_STD = 20  # standard deviations from the mean, where no quantiles were kept
MOST_DISTINCT, LEAST_ROWS = 20, 100
SCALE = 100  # times the median deviation, or a hundredth of it
MANY_MISSING = 0.05
MOST_NAMES = 8
# The worst come first; a feature of few values, or of one scale among others, is the least peculiar.
SEVERITY = ("all missing", "constant", "infinite", "missing", "outliers", "mostly", "scale", "skewed", "discrete")


def empty_features(statistics: Statistics) -> Array:
    """Whether every value of a feature is missing (features,)."""
    return (statistics.count == 0) & (statistics.rows > 0)


def constant_features(statistics: Statistics) -> Array:
    """Whether a feature has one value only (features,)."""
    return (statistics.count > 1) & (statistics.minimum == statistics.maximum)


def flag_features(statistics: Statistics) -> list[list[str]]:
    """Return each feature's flags, the worst first."""
    std = statistics.std()
    share = statistics.missing / max(statistics.rows, 1)
    empty, constant = empty_features(statistics), constant_features(statistics)
    varied = ~empty & ~constant
    usual = np.median(std[varied & np.isfinite(std)]) if (varied & np.isfinite(std)).any() else math.nan
    quantiles = statistics.quantile(RANKS) if statistics.keeps_quantiles else None
    found = []
    for index in range(statistics.count.size):
        if empty[index] or constant[index]:
            found.append(["all missing" if empty[index] else "constant"])
            continue
        flags = ["infinite values"] if statistics.infinite[index] else []
        flags += [f"missing {share[index]:.0%}"] if share[index] >= MANY_MISSING else []
        flags += shape_flags(statistics, quantiles, index, std[index])
        if std[index] > SCALE * usual or std[index] * SCALE < usual:
            flags.append(f"scale {std[index]:.0e}")
        found.append(sorted(flags, key=severity))
    return found


def shape_flags(statistics: Statistics, quantiles: Array | None, index: int, std: float) -> list[str]:
    """Return the flags of a feature's distribution."""
    low, high = float(statistics.minimum[index]), float(statistics.maximum[index])
    if quantiles is None:
        mean = float(statistics.mean[index])
        return ["outliers"] if max(high - mean, mean - low) > FAR_STD * std else []
    p5, p25, p50, p75, p95 = quantiles[:, index].tolist()
    values = np.unique(statistics.distribution(index)[0]).size
    if values <= MOST_DISTINCT and statistics.count[index] >= LEAST_ROWS:
        return [f"discrete: {values} values"]
    if p25 == p75:
        return [f"mostly {p50:.4g}"]
    flags = ["outliers"] if max(high - p75, p25 - low) / FAR > p75 - p25 else []
    if p95 > p5 and abs((p95 - p50) - (p50 - p5)) > SKEWED * (p95 - p5):
        flags.append("skewed")
    return flags


def severity(flag: str) -> int:
    """Return a flag's place among the kinds of flags."""
    return next(place for place, kind in enumerate(SEVERITY) if flag.startswith(kind))


def order_by_flags(flags: Sequence[Sequence[Any]]) -> list[int]:
    """Return the features' positions: those with the worst flags first, those without in their order at the end."""
    worst = [severity(own[0]) if own else len(SEVERITY) for own in flags]
    return sorted(range(len(flags)), key=lambda index: (worst[index], -len(flags[index]), index))


def warn_of_features(statistics: Statistics) -> list[str]:
    """Return what to tell of features that a scaler can do nothing with, a line for each kind."""
    names = np.array(statistics.names or [str(index) for index in range(statistics.count.size)], dtype=object)
    kinds = (
        (empty_features(statistics), "all values are missing", "leave such columns out with --columns"),
        (constant_features(statistics), "constant", "such columns carry nothing and are divided by 1"),
    )
    return [
        f"{text}: {', '.join(names[mask][:MOST_NAMES])}"
        f"{f' and {mask.sum() - MOST_NAMES} more' if mask.sum() > MOST_NAMES else ''}; {advice}"
        for mask, text, advice in kinds
        if mask.any()
    ]
