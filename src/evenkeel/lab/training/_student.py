"""Student's t, for intervals and differences of few measurements."""

from __future__ import annotations

import math

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
