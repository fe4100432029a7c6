"""`Statistics` of data seen in parts, merged without loss, and their saved state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar, get_args

import numpy as np
from torch import Tensor

from evenkeel._display import Displayed
from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.names import NanPolicy
from evenkeel._options.numbers import check_integer, check_number
from evenkeel.data._arrays import column_names, dtype_name, ordered_columns, values_of
from evenkeel.data.statistics._batches import block_moments, full_mask, row_weights, to_rows
from evenkeel.data.statistics._encoding import State, StateFormat, plain_numbers, refuse_rest
from evenkeel.data.statistics._moments import LEAST_M2, Moments, empty_moments, merge_moments, moments_from_arrays
from evenkeel.data.statistics._quantiles import (
    Quantiles,
    check_ranks,
    check_same_kind,
    new_quantiles,
    quantiles_from_arrays,
    weighted_quantiles,
)

Array = np.ndarray[Any, Any]
FORMAT = StateFormat("evenkeel/statistics", 1)
LARGEST = float(np.finfo(np.float64).max)
S = TypeVar("S", bound="Statistics")


class Statistics(Displayed):
    r"""Count, mean, variance, range, missing values and, on request, quantiles of data seen in parts of any size.

    .. math:: M_2 = \sum_i w_i (x_i - \bar x)^2, \qquad \mathrm{var} = M_2 / (\sum_i w_i - \mathrm{ddof})

    One statistic for each index along ``axis`` (the features), over all other axes. Sums are kept in float64 with the
    error of their rounding, blocks are reduced around a shift, and squares are never summed: the variance is right at
    any mean, and neither the sizes nor the order of the parts show in it.

    Attributes:
        features: how many statistics there are; None before the first batch.
        names: a name for each feature, or None.
        axis: the axes of a batch that are kept.
        nan_policy: ``omit``, ``raise`` or ``propagate``.
        dtypes: the dtypes of the batches seen, sorted.
        rows: how many rows (positions along the axes that are reduced) were seen, missing values included.

    Args:
        features: the number of features, or None to take it from the first batch.
        names: a name for each feature; None takes them from the first frame.
        axis: the axis whose indices are the features, or several: -1 for the columns of a table, 1 for the channels
            of (batch, channel, ...) or the steps of (batch, time, ...), (1, 2) for each step and feature.
        quantiles: whether quantiles are kept: counted exactly for 8- and 16-bit integers, otherwise a KLL sketch, which
            draws random bits (its library takes no seed): two passes agree within its bound, not to the bit.
        sketch_size: the sketch's parameter k: its rank error is about 2.7 / k at 99 % confidence, its memory 24 k
            bytes for each feature.
        nan_policy: what NaN does: ``omit`` leaves it out and counts it, ``raise`` refuses a batch that has one,
            ``propagate`` counts it and makes that feature's statistics NaN.

    Raises:
        InvalidArgumentError: an option is none of its choices, or the number of names is not that of the features.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import Statistics
        >>> statistics = Statistics().update(np.array([[1.0, 4.0], [2.0, np.nan]]))
        >>> statistics = statistics.merge(Statistics().update(np.array([[3.0, 6.0]])))
        >>> statistics.mean, statistics.variance(), statistics.missing
        (array([2., 5.]), array([0.66666667, 1. ]), array([0, 1]))

    Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
    """

    views = "evenkeel.data.views"

    def __init__(
        self,
        features: int | None = None,
        *,
        names: Sequence[str] | None = None,
        axis: int | tuple[int, ...] = -1,
        quantiles: bool = False,
        sketch_size: int = 1024,
        nan_policy: NanPolicy = "omit",
    ) -> None:
        if nan_policy not in get_args(NanPolicy):
            raise InvalidArgumentError(f"nan_policy must be omit, raise or propagate, but got {nan_policy!r}")
        check_integer("sketch_size", sketch_size, least=8, most=65535)
        if features is not None:
            check_integer("features", features, least=0)
        self.axis = (axis,) if isinstance(axis, int) else tuple(axis)
        self.nan_policy, self.sketch_size, self.keeps_quantiles = nan_policy, sketch_size, quantiles
        self.names = None if names is None else tuple(str(name) for name in names)
        self.features = features if names is None or features is not None else len(names)
        if self.names is not None and len(self.names) != self.features:
            raise InvalidArgumentError(
                f"expected {self.features} names, one for each feature, but got {len(names or ())}"
            )
        self.dtypes: tuple[str, ...] = ()
        self.rows = 0
        self._moments: Moments | None = None if self.features is None else empty_moments(self.features)
        self._quantiles: Quantiles | None = None

    def update(self, batch: Any, *, weight: Any = None, mask: Any = None) -> Self:
        """Add a batch and return this object.

        Args:
            batch: a tensor, array or frame of real numbers. A frame's columns are found by name once names are known.
            weight: a number >= 0 for each row, of the shape of the axes that are reduced; it counts as that many rows.
            mask: Boolean, True where valid: of the batch's shape, or of the shape of its leading axes.

        Raises:
            InvalidInputError: the batch has another number of features, NaN under ``nan_policy="raise"``, or no values
                (a meta tensor); nothing of it has been added then.
        """
        names = self.names
        if names is not None:
            batch = ordered_columns(batch, names)
        elif self.rows == 0 and (columns := column_names(batch)) is not None:
            names = tuple(columns)
        dtype, x = dtype_name(batch), values_of(batch)
        valid = None if mask is None else to_rows(full_mask(values_of(mask), x), self.axis)
        x = to_rows(x, self.axis)
        if self.features is not None and x.shape[1] != self.features:
            raise InvalidInputError(f"expected {self.features} features, but the batch has {x.shape[1]}")
        if weight is not None:
            weight = row_weights(values_of(weight), x)
            if self.keeps_quantiles:
                raise InvalidInputError("quantiles of weighted rows are not kept; pass quantiles=False, or no weight")
        moments = block_moments(x, weight, valid)
        self._refuse_nan(moments, names)
        if self.keeps_quantiles:
            self._add_quantiles(x, valid, dtype)
        self.names = names
        return self._add(moments, x.shape[0], {dtype})

    def add_moments(self, moments: Moments, *, rows: int, dtypes: Iterable[str] = ()) -> Self:
        """Add the moments of a block that were computed elsewhere (sparse matrices, images) and return this object."""
        self._refuse_nan(moments, self.names)
        return self._add(moments, rows, set(dtypes))

    def _add(self, moments: Moments, rows: int, dtypes: set[str]) -> Self:
        merged = moments if self._moments is None else merge_moments(self._moments, moments)
        if merged.count.dtype.kind == "f" and np.isinf(merged.count).any():
            raise InvalidInputError(
                "the sum of the weights exceeds what a float64 holds; divide all of them by a number"
            )
        self.features, self._moments = moments.count.size, merged
        self.rows += rows
        self.dtypes = tuple(sorted({*self.dtypes, *dtypes}))
        return self

    def merge(self, other: Statistics) -> Self:
        """Add what another object has seen, and return this one; the other stays as it is.

        Any tree of merges over the same parts gives the same mean and variance to about 1e-15, exactly the same counts
        and range, and quantiles within the sketches' bound.

        Raises:
            InvalidInputError: the two have other features, names, axes or quantiles.
        """
        check_mergeable(self, other)
        if other._quantiles is not None:
            if self._quantiles is None:
                self._quantiles = new_quantiles(other._quantiles.features, other._quantiles.kind, self.sketch_size)
            check_same_kind(self._quantiles, other._quantiles)
            self._quantiles.merge(other._quantiles)  # type: ignore[arg-type]
        self.names = self.names or other.names
        return self if other._moments is None else self._add(other._moments, other.rows, set(other.dtypes))

    @property
    def count(self) -> Array:
        """Valid values of each feature (features,): int64, or the sum of their weights in float64."""
        return self._state.count

    @property
    def mean(self) -> Array:
        """Mean of each feature (features,), float64; NaN without values."""
        return self._propagate(self._state.mean)

    @property
    def m2(self) -> Array:
        """Sum of squared differences from the mean (features,), float64."""
        return self._propagate(self._state.in_ones(self._state.m2, 2))

    @property
    def minimum(self) -> Array:
        """Least valid value of each feature (features,), float64; inf without values."""
        return self._propagate(self._state.minimum)

    @property
    def maximum(self) -> Array:
        """Greatest valid value of each feature (features,), float64; -inf without values."""
        return self._propagate(self._state.maximum)

    @property
    def missing(self) -> Array:
        """NaN values of each feature (features,), int64."""
        return self._state.missing

    @property
    def infinite(self) -> Array:
        """Infinite values of each feature (features,), int64; they enter the mean and the range as IEEE 754 says."""
        return self._state.infinite

    @property
    def quantile_error(self) -> float:
        """The error of a quantile's rank, as a share of the values: 0 where counted exactly."""
        return self._kept_quantiles.error

    def variance(self, ddof: float = 0) -> Array:
        """Variance of each feature (features,), float64: m2 / (count - ddof).

        Args:
            ddof: subtracted from the count. Where no more values were seen, the variance is NaN (as NumPy's and torch's
                is, or infinite, with a warning).

        Raises:
            InvalidArgumentError: ddof is negative or not finite.
        """
        return self._state.in_ones(self._unit_variance(ddof)[0], 2)

    def std(self, ddof: float = 0) -> Array:
        """Standard deviation of each feature (features,), float64: the root of `variance`, which it may outrange."""
        variance, root = self._unit_variance(ddof)
        return self._state.in_ones(np.where(np.isfinite(variance) & (variance > LEAST_M2), np.sqrt(variance), root))

    def _unit_variance(self, ddof: float) -> tuple[Array, Array]:
        """The variance of each feature in its own unit, and its root without its range."""
        check_number("ddof", ddof, least=0, most=LARGEST)
        divisor = self.count - float(ddof)
        divisor = np.where(divisor > 0, divisor, np.nan)
        m2 = self._propagate(self._state.m2)
        with np.errstate(over="ignore", invalid="ignore"):
            return m2 / divisor, np.sqrt(m2) / np.sqrt(divisor)

    def quantile(self, q: Any) -> Array:
        """Quantiles of each feature, interpolated linearly; 0 and 1 give the range exactly.

        Args:
            q: a rank between 0 and 1, or several.

        Returns:
            (features,) for one rank, (ranks, features) for several; NaN without values.

        Raises:
            InvalidInputError: the object was made without ``quantiles=True``.
            InvalidArgumentError: a rank lies outside 0 to 1.
        """
        ranks = check_ranks(q)
        kept, state = self._kept_quantiles, self._state
        quantiles = np.full((ranks.size, state.count.size), np.nan)
        for feature in np.flatnonzero(state.count):
            quantiles[:, feature] = weighted_quantiles(*kept.counts(int(feature)), ranks.ravel())
            quantiles[ranks.ravel() == 0, feature] = state.minimum[feature]
            quantiles[ranks.ravel() == 1, feature] = state.maximum[feature]
        return self._propagate(quantiles.reshape(*ranks.shape, state.count.size))

    def distribution(self, feature: int) -> tuple[Array, Array]:
        """The values kept of one feature, ascending, and how many rows each stands for: the data of a histogram.

        Raises:
            InvalidInputError: the object was made without ``quantiles=True``.
        """
        values, weights = self._kept_quantiles.counts(feature)
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def to_bytes(self) -> bytes:
        """The whole state as a safetensors container with versioned JSON metadata."""
        return FORMAT.to_bytes(state_of(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            StateError: the bytes are truncated, foreign or of a newer version.
        """
        return restore(cls, FORMAT.from_bytes(data))

    def to_dict(self) -> dict[str, Any]:
        """The whole state as plain data for JSON; numbers survive the round trip to the last bit."""
        state = state_of(self)
        summary = {} if self._moments is None else {"mean": self.mean.tolist(), "std": self.std().tolist()}
        return FORMAT.to_plain(state, shown=plain_numbers(summary))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            StateError: the data is incomplete, foreign or of a newer version.
        """
        return restore(cls, FORMAT.from_plain(data))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(features={self.features}, rows={self.rows}, axis={self.axis})"

    @property
    def _state(self) -> Moments:
        if self._moments is None:
            raise InvalidInputError("nothing is known yet, not even the number of features; call update first")
        return self._moments

    @property
    def _kept_quantiles(self) -> Quantiles:
        if not self.keeps_quantiles:
            raise InvalidInputError("no quantiles were kept; make the object with quantiles=True")
        if self._quantiles is None:
            return new_quantiles(self._state.count.size, "float64", self.sketch_size)
        return self._quantiles

    def _propagate(self, values: Array) -> Array:
        if self.nan_policy == "propagate":
            return np.where(self.missing > 0, np.nan, values)
        return values

    def _refuse_nan(self, moments: Moments, names: Sequence[str] | None) -> None:
        if self.nan_policy == "raise" and moments.missing.any():
            columns = np.flatnonzero(moments.missing)
            counts = ", ".join(f"{names[i] if names else i} ({moments.missing[i]})" for i in columns[:10])
            raise InvalidInputError(
                f"the batch has missing values in {columns.size} features: {counts}; "
                'fill or drop them, or pass nan_policy="omit"'
            )

    def _add_quantiles(self, x: Tensor, valid: Tensor | None, dtype: str) -> None:
        fresh = new_quantiles(x.shape[1], dtype, self.sketch_size)
        if self._quantiles is None:
            self._quantiles = fresh
        check_same_kind(self._quantiles, fresh)
        self._quantiles.update(x, valid)


def check_mergeable(a: Statistics, b: Statistics) -> None:
    """Raise `InvalidInputError` unless two objects hold the same features with the same options."""
    for name in ("features", "names", "axis", "keeps_quantiles", "sketch_size", "nan_policy"):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs and None not in (mine, theirs):
            raise InvalidInputError(
                f"merge: both need the same {name.removeprefix('keeps_')}, but got {mine!r} and {theirs!r}"
            )


def state_of(statistics: Statistics) -> State:
    """The state from which `restore` makes an equal object."""
    settings = {
        "features": statistics.features,
        "names": None if statistics.names is None else list(statistics.names),
        "axis": list(statistics.axis),
        "quantiles": statistics.keeps_quantiles,
        "sketch_size": statistics.sketch_size,
        "nan_policy": statistics.nan_policy,
        "dtypes": list(statistics.dtypes),
        "rows": statistics.rows,
    }
    moments = {} if statistics._moments is None else statistics._moments.to_arrays()
    quantiles = {} if statistics._quantiles is None else statistics._quantiles.to_arrays()
    return State(settings, moments | quantiles)


def restore(cls: type[S], state: State) -> S:
    """An object with a state, each part of which is checked: it may come from anywhere."""
    from msgspec import convert

    from evenkeel.data.statistics._schemas import StatisticsSettings

    with FORMAT.decoding():
        settings, arrays = convert(state.settings, StatisticsSettings), dict(state.arrays)
        features, rows = settings.features, settings.rows
        # Before anything is made for so many features.
        moments = None if features is None else moments_from_arrays(arrays, features, rows)
        statistics = cls(
            features,
            names=settings.names,
            axis=tuple(settings.axis),
            quantiles=settings.quantiles,
            sketch_size=settings.sketch_size,
            nan_policy=settings.nan_policy,  # type: ignore[arg-type]  # checked there
        )
        statistics.rows, statistics.dtypes, statistics._moments = rows, tuple(settings.dtypes), moments
        if moments is not None and settings.quantiles:
            statistics._quantiles = quantiles_from_arrays(arrays, moments.count, settings.sketch_size)
        if moments is None and rows:
            raise ValueError(f"{rows} rows without features")
        refuse_rest(arrays)
    return statistics
