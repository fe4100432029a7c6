"""MinMaxScaler and MaxAbsScaler: scikit-learn's, over `Statistics`."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from scipy import sparse

from evenkeel._errors import InvalidArgumentError
from evenkeel._options.numbers import ends_of
from evenkeel.data._contract import Constant, OnMismatch
from evenkeel.data.scalers._affine import Affine, quotient
from evenkeel.data.scalers._base import EPS, Scaler
from evenkeel.data.statistics import Array


class MinMaxScaler(Scaler):
    r"""Map each feature's range to a given one.

    .. math:: y = (x - \min) / (\max - \min) \cdot (b - a) + a

    Attributes:
        min_: (features,) what scikit-learn adds after scaling: a - min * scale.
        scale_: (features,) (b - a) / (max - min), and b - a for constant features.
        data_min_: (features,) least values.
        data_max_: (features,) greatest values.
        data_range_: (features,) their differences.
        n_samples_seen_: rows.

    Args:
        feature_range: the range (a, b) wanted.
        copy: whether `transform` returns new memory; False writes into a floating array.
        clip: whether values outside the range learned are set to its ends.
        constant: features without spread: ``one`` leaves their scale at b - a (scikit-learn's rule), ``zero`` makes
            them a, whatever comes, ``raise`` refuses them.
        on_mismatch: what `transform` does with data unlike that of `fit`: ``ignore``, ``warn`` or ``raise``.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import MinMaxScaler
        >>> MinMaxScaler(feature_range=(-1, 1)).fit_transform(np.array([[0.0], [5.0], [10.0]])).ravel()
        array([-1., 0., 1.])
    """

    def __init__(
        self,
        feature_range: tuple[float, float] = (0, 1),
        *,
        copy: bool = True,
        clip: bool = False,
        constant: Constant = "one",
        on_mismatch: OnMismatch = "ignore",
    ) -> None:
        self.feature_range = feature_range
        self.copy = copy
        self.clip = clip
        self.constant = constant
        self.on_mismatch = on_mismatch

    def _check_parameters(self) -> None:
        super()._check_parameters()
        low, high = ends_of("MinMaxScaler: feature_range", self.feature_range)
        if low >= high:
            raise InvalidArgumentError(
                f"Minimum of desired feature range must be smaller than maximum. Got {self.feature_range}."
            )
        if not math.isfinite(float(high) - float(low)):
            raise InvalidArgumentError(
                f"MinMaxScaler: feature_range must be two finite numbers whose distance is one, but got {low}, {high}"
            )

    def _derive(self) -> None:
        statistics, low = self.statistics_, self.feature_range[0]
        empty = statistics.count == 0
        self.n_samples_seen_ = statistics.rows
        self.data_min_ = np.where(empty, np.nan, statistics.minimum)
        self.data_max_ = np.where(empty, np.nan, statistics.maximum)
        with np.errstate(over="ignore"):
            self.data_range_ = self.data_max_ - self.data_min_
        self.constant_ = self.data_range_ < 10 * EPS
        wanted, learned, exponent = self._ranges()
        with np.errstate(all="ignore"):
            self.scale_ = np.ldexp(wanted / learned, exponent)
            self.min_ = low - self.data_min_ * self.scale_

    def _ranges(self) -> tuple[Array, Array, Array]:
        """The range wanted, each feature's (1 of constants), and the exponent of a power of two to multiply by."""
        infinite = np.isinf(self.data_range_)
        learned = np.where(infinite, self.data_max_ / 4 - self.data_min_ / 4, self.data_range_)
        learned = np.where(self.constant_, 1.0, learned)
        return np.full_like(learned, self.feature_range[1] - self.feature_range[0]), learned, np.where(infinite, -2, 0)

    def _affine(self) -> Affine:
        low, high = self.feature_range
        scale, exponent = quotient(self.scale_, *self._ranges())
        scale = np.where(self.constant_, 0.0, scale) if self.constant == "zero" else scale
        offset = np.full_like(scale, low)
        return Affine(self.data_min_, scale, offset, (low, high) if self.clip else None, exponent)

    def _inverse_affine(self) -> Affine:
        wanted, learned, exponent = self._ranges()
        with np.errstate(all="ignore"):
            plain = 1.0 / self.scale_
        scale, exponent = quotient(plain, learned, wanted, -exponent)
        return Affine(np.full_like(scale, self.feature_range[0]), scale, self.data_min_, exponent=exponent)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from X too, in addition to what was learned before.

        Args:
            X: (rows, features), dense.
            y: ignored.
        """
        if sparse.issparse(X):
            raise TypeError("MinMaxScaler does not support sparse input. Consider using MaxAbsScaler instead.")
        return super().partial_fit(X, y)


class MaxAbsScaler(Scaler):
    r"""Divide each feature by its largest absolute value.

    .. math:: y = x / \max |x|

    Attributes:
        max_abs_: (features,) largest absolute values.
        scale_: (features,) the same, and 1 for features that are 0 throughout.
        n_samples_seen_: rows.

    Args:
        copy: whether `transform` returns new memory; False writes into a floating array.
        clip: whether values beyond those learned are set to -1 or 1.
        constant: features that are 0 throughout: ``one`` leaves them unscaled (scikit-learn's rule), ``zero`` makes
            them 0, whatever comes, ``raise`` refuses them.
        on_mismatch: what `transform` does with data unlike that of `fit`: ``ignore``, ``warn`` or ``raise``.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import MaxAbsScaler
        >>> MaxAbsScaler().fit_transform(np.array([[-4.0], [2.0]])).ravel()
        array([-1. , 0.5])
    """

    def __init__(
        self,
        *,
        copy: bool = True,
        clip: bool = False,
        constant: Constant = "one",
        on_mismatch: OnMismatch = "ignore",
    ) -> None:
        self.copy = copy
        self.clip = clip
        self.constant = constant
        self.on_mismatch = on_mismatch

    def _derive(self) -> None:
        statistics = self.statistics_
        self.n_samples_seen_ = statistics.rows
        largest = np.maximum(np.abs(statistics.minimum), np.abs(statistics.maximum))
        self.max_abs_ = np.where(statistics.count == 0, np.nan, largest)
        self.constant_ = self.max_abs_ < 10 * EPS
        self.scale_ = np.where(self.constant_, 1.0, self.max_abs_)

    def _affine(self) -> Affine:
        zero = np.zeros_like(self.scale_)
        return self._dividing(zero, self.scale_)._replace(clip=(-1.0, 1.0) if self.clip else None)

    def _inverse_affine(self) -> Affine:
        zero = np.zeros_like(self.scale_)
        return Affine(zero, self.scale_, zero)

    def _accepts_sparse(self) -> bool:
        return True
