"""StandardScaler, MinMaxScaler and MaxAbsScaler: scikit-learn's, over `Statistics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from evenkeel._errors import InvalidArgumentError
from evenkeel.data._base import EPS, Affine, Array, Scaler
from evenkeel.data._centring import CentringScaler

if TYPE_CHECKING:
    from typing import Self

    from evenkeel.data._contract import Constant, OnMismatch

__all__ = ["MaxAbsScaler", "MinMaxScaler", "StandardScaler"]

# scikit-learn's bound for "constant" grows with the rows, because its sums' error does. Ours does not: from here on
# the bound stays, so that 1e8 rows around 1e6 with a spread of 0.01 are not taken for a constant.
BOUND_ROWS = 1 << 14


class StandardScaler(CentringScaler):
    r"""Subtract each feature's mean and divide by its standard deviation.

    .. math:: z = (x - \mu) / \sigma

    scikit-learn's arguments, attributes and results; beyond them torch tensors, `merge`, ``constant`` and ``ddof``,
    and digits that survive large means.

    Attributes:
        mean_: (features,) float64, or None without centring and scaling.
        var_: (features,) float64, or None without scaling.
        scale_: (features,) float64: the root of ``var_``, 1 for constant features; None without scaling.
        n_samples_seen_: valid rows, or an array (features,) where they differ; sums of weights with weights.

    Args:
        copy: whether `transform` returns new memory; False writes into a floating array.
        with_mean: whether to centre (not for sparse matrices).
        with_std: whether to scale.
        ddof: 0 for the population's variance (scikit-learn's), 1 for the sample's.
        constant: features without spread: ``one`` leaves them unscaled (scikit-learn's rule), ``zero`` makes them 0,
            ``raise`` refuses them.
        on_mismatch: what `transform` does with data unlike that of `fit`: ``ignore``, ``warn`` or ``raise``.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import StandardScaler
        >>> table = np.array([[1.0, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]])
        >>> scaler = StandardScaler().fit(table)
        >>> scaler.mean_, scaler.scale_.round(6)
        (array([3., 6., 9.]), array([1.414214, 1.414214, 1.414214]))
        >>> scaler.transform(table)[:, 0].round(6)
        array([-1.414214, -0.707107,  0.      ,  0.707107,  1.414214])
    """

    _option = "with_mean"
    _sparse_only = False

    def __init__(
        self,
        *,
        copy: bool = True,
        with_mean: bool = True,
        with_std: bool = True,
        ddof: float = 0,
        constant: Constant = "one",
        on_mismatch: OnMismatch = "ignore",
    ) -> None:
        self.copy = copy
        self.with_mean = with_mean
        self.with_std = with_std
        self.ddof = ddof
        self.constant = constant
        self.on_mismatch = on_mismatch

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn mean and deviation from X alone: forget what was learned before.

        Args:
            X: (rows, features): array, frame, torch tensor, or sparse matrix with ``with_mean=False``.
            y: ignored.
            sample_weight: (rows,) >= 0; a row counts as that many.

        Raises:
            InvalidInputError: a feature is constant and ``constant="raise"``.
        """
        self._reset()
        self.partial_fit(X, y, sample_weight)
        self._refuse_constants()
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X too, in addition to what was learned before.

        Args:
            X: as in `fit`.
            y: ignored.
            sample_weight: as in `fit`.
        """
        self._check_parameters()
        self._refuse_sparse_centring(X)
        self._sparse_only = sparse.issparse(X)
        return self._learn(self._examine(X, sample_weight))

    def transform(self, X: Any, copy: bool | None = None, *, out: Any = None) -> Any:
        """Centre and scale.

        Args:
            X: as in `fit`.
            copy: overrides the constructor's. Without a copy X is searched for infinities first, a pass more, so that
                a refused array stays as it was.
            out: a floating array (a tensor for tensors) of X's shape to write to and return: the fastest way through
                many tables, which takes no new memory. Where infinities are refused, its content is lost. It may be X.
        """
        self._refuse_sparse_centring(X)
        return self._transform(X, self.copy if copy is None else copy, out)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Scale back and add the mean again.

        Args:
            X: as returned by `transform`.
            copy: overrides the constructor's.
        """
        check_is_fitted(self)
        self._refuse_sparse_centring(X)
        return self._inverse_transform(X, self.copy if copy is None else copy)

    def _learned_options(self) -> dict[str, Any]:
        return {"_sparse_only": self._sparse_only}

    def _derive(self) -> None:
        found = self.statistics_
        count, sparse_only = found.count, self._sparse_only
        same = count.size and (count == count[0]).all()
        self.n_samples_seen_ = count[0] if same else count
        variance = found.variance(self.ddof)
        variance = np.where((count > 0) & np.isnan(variance), 0.0, variance)
        mean = found.mean
        rows = np.minimum(count, BOUND_ROWS)
        self.constant_ = (variance <= rows * EPS * variance + (rows * mean * EPS) ** 2) & (count > 0) & self.with_std
        self.mean_ = mean if self.with_std or (self.with_mean and not sparse_only) else None
        self.var_ = variance if self.with_std else None
        self.scale_ = np.where(self.constant_, 1.0, np.sqrt(variance)) if self.with_std else None

    def _centre(self) -> Array | None:
        return self.mean_ if self.with_mean else None


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
        if self.feature_range[0] >= self.feature_range[1]:
            raise InvalidArgumentError(
                f"Minimum of desired feature range must be smaller than maximum. Got {self.feature_range}."
            )

    def _derive(self) -> None:
        found, (low, high) = self.statistics_, self.feature_range
        empty = found.count == 0
        self.n_samples_seen_ = found.rows
        self.data_min_, self.data_max_ = (np.where(empty, np.nan, v) for v in (found.minimum, found.maximum))
        self.data_range_ = self.data_max_ - self.data_min_
        self.constant_ = self.data_range_ < 10 * EPS
        self.scale_ = (high - low) / np.where(self.constant_, 1.0, self.data_range_)
        self.min_ = low - self.data_min_ * self.scale_

    def _affine(self) -> Affine:
        low, high = self.feature_range
        scale = np.where(self.constant_, 0.0, self.scale_) if self.constant == "zero" else self.scale_
        return Affine(self.data_min_, scale, np.full_like(scale, low), (low, high) if self.clip else None)

    def _inverse_affine(self) -> Affine:
        return Affine(np.full_like(self.scale_, self.feature_range[0]), 1.0 / self.scale_, self.data_min_)

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
        found = self.statistics_
        self.n_samples_seen_ = found.rows
        largest = np.maximum(np.abs(found.minimum), np.abs(found.maximum))
        self.max_abs_ = np.where(found.count == 0, np.nan, largest)
        self.constant_ = self.max_abs_ < 10 * EPS
        self.scale_ = np.where(self.constant_, 1.0, self.max_abs_)

    def _affine(self) -> Affine:
        zero = np.zeros_like(self.scale_)
        return Affine(zero, self._multiplier(self.scale_), zero, (-1.0, 1.0) if self.clip else None)

    def _inverse_affine(self) -> Affine:
        zero = np.zeros_like(self.scale_)
        return Affine(zero, self.scale_, zero)

    def _accepts_sparse(self) -> bool:
        return True
