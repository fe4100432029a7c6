"""RobustScaler: scikit-learn's, exact in memory and sketched beyond it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy import sparse, stats

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.numbers import ends_of
from evenkeel.data._arrays import as_tensor
from evenkeel.data._contract import Constant, OnMismatch
from evenkeel.data.scalers._base import EPS, Array
from evenkeel.data.scalers._centring import CentringScaler
from evenkeel.data.scalers._sparse import sparse_quantiles
from evenkeel.data.statistics import exact_percentiles


class RobustScaler(CentringScaler):
    r"""Subtract each feature's median and divide by the distance of two quantiles.

    .. math:: y = (x - q_{50}) / (q_{\mathrm{high}} - q_{\mathrm{low}})

    `fit` computes the quantiles exactly in memory, and keeps a sketch beside them where datasketches is installed.
    After `partial_fit`, `merge` and `from_statistics` they come from the sketch (or, for 8- and 16-bit integers, exact
    counts) whose rank error ``statistics_.quantile_error`` states.

    Attributes:
        center_: (features,) medians, or None without centring.
        scale_: (features,) distances of the quantiles, 1 where it is 0; None without scaling.

    Args:
        with_centering: whether to centre (not for sparse matrices).
        with_scaling: whether to scale.
        quantile_range: the two quantiles, in percent.
        copy: whether `transform` returns new memory; False writes into a floating array.
        unit_variance: whether to scale so that a normal distribution gets the variance 1.
        sketch_size: the sketch's parameter k: a rank error of about 2.7 / k.
        constant: features whose quantiles coincide: ``one`` leaves them unscaled (scikit-learn's rule), ``zero`` makes
            them 0, ``raise`` refuses them.
        on_mismatch: what `transform` does with data unlike that of `fit`: ``ignore``, ``warn`` or ``raise``.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import RobustScaler
        >>> RobustScaler().fit_transform(np.array([[1.0], [2.0], [3.0], [4.0], [1000.0]])).ravel()
        array([ -1. ,  -0.5,   0. ,   0.5, 498.5])
    """

    _option = "with_centering"
    _sketched = True
    _exact: Array | None = None

    def __init__(
        self,
        *,
        with_centering: bool = True,
        with_scaling: bool = True,
        quantile_range: tuple[float, float] = (25.0, 75.0),
        copy: bool = True,
        unit_variance: bool = False,
        sketch_size: int = 1024,
        constant: Constant = "one",
        on_mismatch: OnMismatch = "ignore",
    ) -> None:
        self.with_centering = with_centering
        self.with_scaling = with_scaling
        self.quantile_range = quantile_range
        self.copy = copy
        self.unit_variance = unit_variance
        self.sketch_size = sketch_size
        self.constant = constant
        self.on_mismatch = on_mismatch

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the exact quantiles of X alone: forget what was learned before.

        Args:
            X: (rows, features): array, frame, torch tensor, or sparse matrix with ``with_centering=False``.
            y: ignored.

        Raises:
            InvalidInputError: a feature is constant and ``constant="raise"``.
        """
        self._check_parameters()
        self._refuse_sparse_centring(X)
        self._reset()
        self._sketched = not sparse.issparse(X) and importlib.util.find_spec("datasketches") is not None
        statistics = self._examine(X, None)
        table = self._validate(X, reset=False, dtype="numeric")
        low, high = self.quantile_range
        quantiles = sparse_quantiles if sparse.issparse(table) else _exact_quantiles
        self._exact = quantiles(table, (low, 50.0, high))
        self._learn(statistics)
        self._refuse_constants()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from X too, in addition to what was learned before; the quantiles come from the sketch then.

        Args:
            X: (rows, features), dense.
            y: ignored.

        Raises:
            InvalidInputError: X is sparse, or what was fitted before: no sketch is kept of sparse matrices.
        """
        self._check_parameters()
        self._require_sketch(X)
        statistics, self._exact = self._examine(X, None), None
        return self._learn(statistics)

    def merge(self, other: Self) -> Self:
        """Add what another scaler has learned, and return this one; the quantiles come from the sketches then.

        Raises:
            InvalidInputError: one of the two was fitted on a sparse matrix, or they do not fit together.
        """
        self._require_sketch()
        if isinstance(other, RobustScaler):
            other._require_sketch()
        exact, self._exact = self._exact, None
        try:
            return super().merge(other)
        except InvalidInputError:
            self._exact = exact
            raise

    def _require_sketch(self, X: Any = None) -> None:
        fitted = hasattr(self, "statistics_") and not self.statistics_.keeps_quantiles
        if fitted or sparse.issparse(X):
            raise InvalidInputError(
                "RobustScaler: no sketch was kept: there is none of sparse matrices (use fit alone, or X.toarray()), "
                "and none without the package datasketches (pip install 'evenkeel[data]')"
            )

    def _statistics_options(self) -> Mapping[str, Any]:
        return {"quantiles": self._sketched, "sketch_size": self.sketch_size}

    def _learned_options(self) -> dict[str, Any]:
        return {} if self._exact is None else {"_exact": self._exact}

    def _quantiles(self) -> Array:
        """The quantiles (3, features): low, median, high."""
        low, high = self.quantile_range
        return self.statistics_.quantile((low / 100, 0.5, high / 100)) if self._exact is None else self._exact

    def _derive(self) -> None:
        low, median, high = self._quantiles()
        self.center_ = median if self.with_centering else None
        with np.errstate(over="ignore"):
            distance = high - low
        self.constant_ = (distance < 10 * EPS) & self.with_scaling
        self.scale_ = np.where(self.constant_, 1.0, distance) if self.with_scaling else None
        if self.unit_variance and self.scale_ is not None:
            with np.errstate(over="ignore"):
                whole = np.where(np.isinf(distance), self._quarter_scale() * 4, self.scale_ / self._normal_distance())
            self.scale_ = whole

    def _normal_distance(self) -> float:
        """The distance of a standard normal distribution's quantiles."""
        low, high = stats.norm.ppf(np.array(self.quantile_range) / 100)
        return float(high - low)

    def _quarter_scale(self) -> Array:
        low, _, high = self._quantiles() / 4
        return (high - low) / (self._normal_distance() if self.unit_variance else 1.0)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        low, high = ends_of("RobustScaler: quantile_range", self.quantile_range)
        if not 0 <= low <= high <= 100:
            raise InvalidArgumentError(f"Invalid quantile range: {self.quantile_range}; give two percentages 0..100")
        if self.unit_variance and self.with_scaling and not 0 < low < high < 100:
            raise InvalidArgumentError(
                f"Invalid quantile range: {self.quantile_range}; give two different percentages between 0 and "
                "100, since unit_variance=True divides by the distance of a normal distribution's"
            )

    def _centre(self) -> Array | None:
        return self.center_


def _exact_quantiles(table: Any, percentages: tuple[float, ...]) -> Array:
    """Percentiles of each column in float64; NaN is left out, and a column without values gives NaN."""
    return exact_percentiles(as_tensor(table).detach().double().cpu().numpy(), percentages)
