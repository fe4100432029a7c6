"""Mean and sum of squared differences of columns, merged without loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evenkeel.data.statistics._encoding import take_array
from evenkeel.functional import ColumnMoments

Array = np.ndarray[Any, Any]
# A smaller sum of squares may lack squares that came out as subnormal numbers or 0.
LEAST_M2 = 2.0**-960
# frexp's exponents of float64 lie within this, those of the roots of sums of weights within half of it.
MOST_EXPONENT = 1700


class Moments(NamedTuple):
    """One state for each column. The sum is a pair of float64 (its rounded value and what rounding lost).

    A column whose sum or squares leave the range of float64 (values above 1e154 or below 1e-144) is kept in a unit of
    its own, 2 ** exponent: `total` and `total_low` count such units, and `m2` their squares.
    """

    count: Array  # type: ignore[assignment]  # hides tuple.count; int64, or float64 where weighted: valid (not NaN) values
    total: Array  # float64: their sum, rounded
    total_low: Array  # float64: the sum minus `total`
    m2: Array  # float64: sum of squared differences from the mean
    minimum: Array  # float64, inf where there is no value
    maximum: Array  # float64, -inf where there is no value
    missing: Array  # int64: NaN values
    infinite: Array  # int64: infinite values
    exponent: Array | None = None  # int64, of each column's unit; None where all are 0

    @property
    def mean(self) -> Array:
        """The mean, rounded once; infinite where an infinity of one sign was seen, NaN without values."""
        high, low = _divide(self)
        with np.errstate(all="ignore"):
            return np.where(self.infinite > 0, self.minimum + self.maximum, self.in_ones(high + low))

    def in_ones(self, values: Array, power: int = 1) -> Array:
        """Numbers of each column's unit (of its square for the power 2) as numbers of 1."""
        with np.errstate(all="ignore"):
            return values if self.exponent is None else np.ldexp(values, power * self.exponent)

    def in_units(self, exponent: Array | None) -> Moments:
        """The same state in other units; what these cannot hold becomes infinite or 0."""
        if self.exponent is None and exponent is None:
            return self
        change = (0 if self.exponent is None else self.exponent) - (0 if exponent is None else exponent)
        with np.errstate(all="ignore"):
            total, low = np.ldexp(self.total, change), np.ldexp(self.total_low, change)
            return self._replace(total=total, total_low=low, m2=np.ldexp(self.m2, 2 * change), exponent=exponent)

    def out_of_range(self) -> Array:
        """The columns of finite numbers whose sum or squares are not kept well in their unit, a mask."""
        finite = np.isfinite(self.total) & np.isfinite(self.m2)
        return (~finite | ((self.m2 < LEAST_M2) & (self.maximum > self.minimum))) & (self.infinite == 0)

    def units(self, columns: Array) -> Array:
        """The exponents of units that suit these columns (a mask): largest value and sum of weights are near 1."""
        largest = np.maximum(np.abs(self.minimum), np.abs(self.maximum))
        return np.where(columns, np.frexp(largest)[1] + np.frexp(self.count)[1] // 2, 0).astype(np.int64)

    def to_arrays(self) -> dict[str, Array]:
        """Named arrays, which `moments_from_arrays` reads.

        Columns in units of their own come under other names: a reader that knows no units must not take them for ones.
        """
        arrays = {name: part for name, part in self._asdict().items() if part is not None}
        return arrays if self.exponent is None else {SCALED.get(name, name): part for name, part in arrays.items()}


SCALED = {"total": "scaled_total", "total_low": "scaled_total_low", "m2": "scaled_m2"}


def joined_columns(parts: Sequence[Moments]) -> Moments:
    """The state of several tables' columns, side by side."""
    fields = [np.concatenate(field) for field in zip(*(part[:-1] for part in parts), strict=True)]
    if all(part.exponent is None for part in parts):
        return Moments(*fields)
    exponents = [np.zeros_like(part.infinite) if part.exponent is None else part.exponent for part in parts]
    return Moments(*fields)._replace(exponent=np.concatenate(exponents))


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
    weighted, scaled = arrays.get("count", np.empty(0)).dtype == np.float64, "exponent" in arrays
    integers = ("missing", "infinite", "exponent", *(() if weighted else ("count",)))
    moments = Moments(
        *(
            take_array(
                arrays, SCALED.get(name, name) if scaled else name, "i8" if name in integers else "f8", (features,)
            )
            for name in Moments._fields
            if scaled or name != "exponent"
        )
    )
    if moments.exponent is not None and (np.abs(moments.exponent) > MOST_EXPONENT).any():
        raise ValueError("an exponent is beyond those of float64")
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
    mean or the variance, also where the mean is 1e8 deviations away from 0. Columns that leave the range of float64
    are merged in units that suit them.
    """
    merged = merge_alike(a.in_units(None), b.in_units(None))
    columns = merged.out_of_range()
    if not columns.any():
        return merged
    exponent = merged.units(columns)
    return merge_alike(a.in_units(exponent), b.in_units(exponent))


def merge_alike(a: Moments, b: Moments) -> Moments:
    """The state of both parts together, which are in the same units."""
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
        a.exponent,
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
