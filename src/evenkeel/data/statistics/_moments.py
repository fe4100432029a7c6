"""Mean and sum of squared differences of columns, merged without loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenkeel.data.statistics._encoding import take_array
from evenkeel.functional import ColumnMoments

Array = np.ndarray[Any, Any]


class Moments(NamedTuple):
    """One state for each column. The sum is a pair of float64 (its rounded value and what rounding lost)."""

    count: Array  # type: ignore[assignment]  # hides tuple.count; int64, or float64 where weighted: valid (not NaN) values
    total: Array  # float64: their sum, rounded
    total_low: Array  # float64: the sum minus `total`
    m2: Array  # float64: sum of squared differences from the mean
    minimum: Array  # float64, inf where there is no value
    maximum: Array  # float64, -inf where there is no value
    missing: Array  # int64: NaN values
    infinite: Array  # int64: infinite values

    @property
    def mean(self) -> Array:
        """The mean, rounded once; infinite where an infinity of one sign was seen, NaN without values."""
        high, low = _divide(self)
        with np.errstate(invalid="ignore"):
            return np.where(self.infinite > 0, self.minimum + self.maximum, high + low)


def empty_moments(features: int) -> Moments:
    """The state before any value: the neutral element of `merge_moments`."""
    # Views of one number each: no memory for features that only an option or a file speaks of.
    integers, zeros, low, high = (np.broadcast_to(x, features) for x in (np.int64(0), 0.0, -np.inf, np.inf))
    return Moments(integers, zeros, zeros, zeros, high, low, integers, integers)


def from_column_moments(block: ColumnMoments) -> Moments:
    """The state of one block from the results of the kernel (or its reference)."""
    arrays = {name: value.detach().cpu().numpy() for name, value in block._asdict().items()}
    count, mean = arrays["count"], arrays["mean"]
    low = arrays.get("mean_low", np.zeros_like(mean))
    empty, infinite = count == 0, arrays["infinite"] > 0
    with np.errstate(all="ignore"):
        total, error = _product(mean, count.astype(np.float64))
        total, error = _sum(total, error + low * count)
    return Moments(
        count,
        _settle(total, empty, infinite),
        _settle(error, empty, infinite),
        _settle(arrays["m2"], empty, infinite),
        arrays["minimum"],
        arrays["maximum"],
        arrays["missing"],
        arrays["infinite"],
    )


def moments_from_arrays(arrays: dict[str, Array], features: int, rows: int) -> Moments:
    """Take the state from saved arrays; ValueError where they contradict each other or the number of rows."""
    weighted = arrays.get("count", np.empty(0)).dtype == np.float64
    integers = ("missing", "infinite", *(() if weighted else ("count",)))
    moments = Moments(
        *(take_array(arrays, name, "i8" if name in integers else "f8", (features,)) for name in Moments._fields)
    )
    count, missing, infinite = moments.count, moments.missing, moments.infinite
    if any((part < 0).any() for part in (count, missing, infinite, moments.m2)):
        raise ValueError("a count or a sum of squares is negative")
    most = np.inf if weighted else rows - missing
    if not np.isfinite(count).all() or (missing > rows).any() or (infinite > rows).any() or (count > most).any():
        raise ValueError(f"more values than the {rows} rows have")
    if not ((moments.minimum <= moments.maximum) | (count == 0)).all():
        raise ValueError("a minimum is above the maximum")
    return moments


def merge_moments(a: Moments, b: Moments) -> Moments:
    """The state of both parts together: Chan, Golub and LeVeque's update with sums kept to about 32 digits.

    Sums add in double-double arithmetic, so that neither the order nor the shape of a tree of merges shows in the
    mean or the variance, also where the mean is 1e8 deviations away from 0.
    """
    with np.errstate(all="ignore"):
        count = a.count + b.count
        total, error = _sum(a.total, b.total)
        total, error = _sum(total, error + (a.total_low + b.total_low))
        a_high, a_low = _divide(a)
        b_high, b_low = _divide(b)
        delta, rest = _sum(b_high, -a_high)
        delta = delta + (rest + (b_low - a_low))
        # In this order: the product of the counts may exceed what a float64 holds exactly.
        between = np.where((a.count == 0) | (b.count == 0), 0.0, delta * delta * (a.count / count * b.count))
        m2 = a.m2 + b.m2 + between
    return Moments(
        count,
        total,
        np.where(np.isfinite(total), error, total),
        m2,
        np.minimum(a.minimum, b.minimum),
        np.maximum(a.maximum, b.maximum),
        a.missing + b.missing,
        a.infinite + b.infinite,
    )


def _settle(values: Array, empty: Array, infinite: Array) -> Array:
    """NaN where an infinity entered, whatever the arithmetic gave: the result must not depend on the order."""
    return np.where(infinite, np.nan, np.where(empty, 0.0, values))


def _divide(state: Moments) -> tuple[Array, Array]:
    """The mean as a pair: the rounded value and what rounding lost. NaN without values."""
    with np.errstate(all="ignore"):
        count = np.where(state.count == 0, np.nan, state.count)
        high = state.total / count
        product, error = _product(high, count)
        low = ((state.total - product) - error + state.total_low) / count
    return high, np.where(np.isfinite(low), low, 0.0)


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b and the exact error of that addition (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b and the exact error of that product (Dekker); an error that overflows counts as 0."""
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(error), error, 0.0)


def _upper_half(a: Array) -> Array:
    """The upper 26 bits of the significand (Veltkamp)."""
    scaled = a * 134217729.0  # 2**27 + 1
    return scaled - (scaled - a)
