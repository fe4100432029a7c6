"""StandardScaler: scikit-learn's, over `Statistics`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from evenkeel._errors import InvalidInputError
from evenkeel._options.numbers import check_number
from evenkeel.data._contract import Constant, OnMismatch
from evenkeel.data.scalers._base import EPS, Array
from evenkeel.data.scalers._callbacks import CallbackSupportMixin, fit_task, with_callbacks
from evenkeel.data.scalers._centring import CentringScaler

# scikit-learn's bound for "constant" grows with the rows, because its sums' error does. Ours does not: from here on
# the bound stays, so that 1e8 rows around 1e6 with a spread of 0.01 are not taken for a constant.
BOUND_ROWS = 1 << 14
LARGEST = float(np.finfo(np.float64).max)
# A variance of another size has lost digits, and the deviations are compared.
ORDINARY = 2.0**-960, 2.0**960


class StandardScaler(CallbackSupportMixin, CentringScaler):
    r"""Subtract each feature's mean and divide by its standard deviation.

    .. math:: z = (x - \mu) / \sigma

    scikit-learn's arguments, attributes and results, and from its version 1.9 on its callbacks; beyond them torch
    tensors, `merge`, ``constant`` and ``ddof``, and digits that survive large means.

    Attributes:
        mean_: (features,) float64, or None without centring and scaling.
        var_: (features,) float64, or None without scaling.
        scale_: (features,) float64: the root of ``var_``, 1 for constant features; None without scaling.
        n_samples_seen_: valid rows, or an array (features,) where they differ; sums of weights with weights.

    Args:
        copy: whether `transform` returns new memory; False writes into a floating array.
        with_mean: whether to centre (not for sparse matrices).
        with_std: whether to scale.
        ddof: 0 for the population's variance (scikit-learn's), 1 for the sample's, which needs more rows than that.
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
            InvalidInputError: a feature is constant and ``constant="raise"``, or has no more values than ``ddof``.
        """
        self._reset()
        self.partial_fit(X, y, sample_weight)
        self._refuse_constants()
        return self

    @with_callbacks
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from X too, in addition to what was learned before.

        Args:
            X: as in `fit`.
            y: ignored.
            sample_weight: as in `fit`.
        """
        self._check_parameters()
        self._refuse_sparse_centring(X)
        with fit_task(self, X, y, sample_weight=sample_weight):
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

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("StandardScaler: ddof", self.ddof, least=0, most=LARGEST)

    def _refuse_constants(self) -> None:
        count = self.statistics_.count
        if self.with_std and (few := (count > 0) & (count <= self.ddof)).any():
            names, first = getattr(self, "feature_names_in_", range(self.n_features_in_)), np.flatnonzero(few)[0]
            raise InvalidInputError(
                f"StandardScaler: with ddof={self.ddof} a deviation needs more values than that, but feature "
                f"{names[first]} has {count[first]}; give more rows, or pass ddof=0"
            )
        super()._refuse_constants()

    def _learned_options(self) -> dict[str, Any]:
        return {"_sparse_only": self._sparse_only}

    def _derive(self) -> None:
        statistics, count = self.statistics_, self.statistics_.count
        same = count.size and (count == count[0]).all()
        self.n_samples_seen_ = count[0] if same else count
        variance = statistics.variance(self.ddof)
        variance = np.where((count > 0) & np.isnan(variance), 0.0, variance)
        mean = statistics.mean
        std = np.where((count > 0) & np.isnan(variance), 0.0, statistics.std(self.ddof))
        self.constant_ = (
            is_constant(std, variance, mean, np.minimum(count, BOUND_ROWS)) & (count > 0) & bool(self.with_std)
        )
        self.mean_ = mean if self.with_std or (self.with_mean and not self._sparse_only) else None
        self.var_ = variance if self.with_std else None
        self.scale_ = np.where(self.constant_, 1.0, std) if self.with_std else None

    def _centre(self) -> Array | None:
        return self.mean_ if self.with_mean else None

    def _quarter_scale(self) -> Array:
        count = self.statistics_.count
        return np.asarray(self.statistics_.std() / 4 * np.sqrt(count / (count - self.ddof)))


def is_constant(std: Array, variance: Array, mean: Array, rows: Array) -> Array:
    """Whether features are constant by scikit-learn's rule: variance <= rows eps variance + (rows eps mean)^2."""
    ordinary = (ORDINARY[0] < variance) & (variance < ORDINARY[1])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        by_variance = variance <= rows * EPS * variance + (rows * mean * EPS) ** 2
    return np.where(ordinary, by_variance, std * np.sqrt(1 - rows * EPS) <= rows * EPS * np.abs(mean))
