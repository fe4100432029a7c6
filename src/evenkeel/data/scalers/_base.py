"""The base of the scalers: scikit-learn's contract, torch tensors, merging, and the affine map that each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from evenkeel._display import Displayed
from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._packages import missing
from evenkeel.data._arrays import as_tensor, check_dense, dtype_name, output_tensor
from evenkeel.data._contract import Constant, Contract, OnMismatch, report
from evenkeel.data.scalers._affine import Affine, map_table
from evenkeel.data.statistics import Array, Statistics
from evenkeel.functional import has_infinity
from evenkeel.nn import FeatureAffine

try:
    from scipy import sparse
    from sklearn import get_config
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.utils import metadata_routing
    from sklearn.utils.sparsefuncs import inplace_column_scale
    from sklearn.utils.validation import FLOAT_DTYPES, _check_sample_weight, check_array, check_is_fitted, validate_data

    from evenkeel.data.scalers._sparse import sparse_moments
except ImportError as error:
    raise missing("sklearn") from error


EPS = float(np.finfo(np.float64).eps)


class Scaler(Displayed, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Base of the scalers: a subclass says which statistics it derives, and the affine map they give.

    Attributes:
        statistics_: the `Statistics` of the data seen.
        constant_: (features,) whether each feature is constant by the scaler's rule.
        n_features_in_: the number of features.
        feature_names_in_: their names, where the data came as a frame with names.
    """

    __metadata_request__transform = {"out": metadata_routing.UNUSED}
    views = "evenkeel.data.views"
    copy: bool
    constant: Constant
    on_mismatch: OnMismatch
    statistics_: Statistics
    constant_: Array
    n_features_in_: int

    def _derive(self) -> None:
        """Set the learned attributes from ``statistics_``."""
        raise NotImplementedError

    def _affine(self) -> Affine:
        """The map of `transform`."""
        raise NotImplementedError

    def _inverse_affine(self) -> Affine:
        """The map of `inverse_transform`."""
        raise NotImplementedError

    def _accepts_sparse(self) -> bool:
        return False

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str] | None:
        """Leave what a notebook shows to the other methods; scikit-learn's own knows its diagram alone."""
        return None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from X alone: forget what was learned before.

        Args:
            X: (rows, features): array, frame, torch tensor, or sparse matrix where the scaler takes it. NaN is left
                out and kept by `transform`; infinities are refused.
            y: ignored.

        Raises:
            InvalidInputError: a feature is constant and ``constant="raise"``.
        """
        self._check_parameters()
        self._reset()
        self.partial_fit(X, y)
        self._refuse_constants()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from X too, in addition to what was learned before.

        Args:
            X: as in `fit`.
            y: ignored.
        """
        self._check_parameters()
        return self._learn(self._examine(X, None))

    def _examine(self, X: Any, sample_weight: Any) -> Statistics:
        """The statistics of a batch; an error leaves what was learned before as it is."""
        first, dtype = not hasattr(self, "statistics_"), dtype_name_or_none(X)
        X = self._validate(X, reset=first, dtype="numeric")
        names = getattr(self, "feature_names_in_", None)
        statistics = Statistics(self.n_features_in_, names=names, **self._statistics_options())
        if sparse.issparse(X):
            self._refuse_infinity(X.data)
            X = X.astype(np.float64, copy=False)
            weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
            return statistics.add_moments(sparse_moments(X, weight), rows=X.shape[0], dtypes=(dtype or "float64",))
        if sample_weight is not None and not isinstance(sample_weight, torch.Tensor):
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        statistics.update(X, weight=sample_weight)
        if statistics.infinite.any():
            self._refuse_infinity(X)
        return statistics

    def _learn(self, statistics: Statistics) -> Self:
        self.statistics_ = self.statistics_.merge(statistics) if hasattr(self, "statistics_") else statistics
        with np.errstate(all="ignore"):  # values near the end of float64's range; the results are infinite then
            self._derive()
        return self

    def _statistics_options(self) -> Mapping[str, Any]:
        return {}

    def _reset(self) -> None:
        if hasattr(self, "statistics_"):
            del self.statistics_

    def merge(self, other: Self) -> Self:
        """Add what another scaler of this kind has learned, and return this one; the other stays as it is.

        Raises:
            InvalidInputError: the other one is of another kind, or has other features.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        if type(self) is not type(other):
            raise InvalidInputError(f"merge: expected a {type(self).__name__}, but got a {type(other).__name__}")
        return self._learn(other.statistics_)

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """A scaler fitted with statistics from elsewhere: another process, a file, a cluster.

        Args:
            statistics: of a table's columns; they are used, not copied.
            **parameters: the scaler's constructor arguments.

        Raises:
            InvalidInputError: the statistics are those of other axes, or hold infinities.
        """
        if statistics.features and statistics.infinite.any():
            columns = [statistics.names[i] if statistics.names else int(i) for i in np.flatnonzero(statistics.infinite)]
            raise InvalidInputError(
                f"infinities in {', '.join(map(str, columns[:10]))}; replace them before fitting, or mark them as "
                "missing with NaN"
            )
        scaler = cls._restore(statistics, parameters, {})
        scaler._refuse_constants()
        return scaler

    @classmethod
    def _restore(cls, statistics: Statistics, parameters: Mapping[str, Any], learned: Mapping[str, Any]) -> Self:
        """A scaler from its statistics, its constructor's arguments and its `_learned_options`."""
        if statistics.axis != (-1,) or not statistics.features:
            raise InvalidInputError(f"{cls.__name__}: expected statistics of a table's columns, but got {statistics!r}")
        scaler = cls(**parameters)
        scaler._check_parameters()
        scaler.n_features_in_ = statistics.features
        if statistics.names is not None:
            scaler.feature_names_in_ = np.array(statistics.names, dtype=object)
        for name, value in learned.items():
            setattr(scaler, name, value)
        return scaler._learn(statistics)

    def _learned_options(self) -> dict[str, Any]:
        """The private attributes learned beside the statistics: plain data or arrays."""
        return {}

    def transform(self, X: Any, *, out: Any = None) -> Any:
        """Apply the map learned.

        The difference from the centre is taken in float64 before anything is rounded.

        Args:
            X: as in `fit`. ``copy=False`` writes into a writable floating array; tensors are never written to.
            out: a floating array (a tensor for tensors) of X's shape to write to and return: the fastest way through
                many tables, which takes no new memory. Where infinities are refused, its content is lost. It may be X.

        Returns:
            The same kind of container as X, of X's floating dtype; integers become float64 (tensors: torch's default).
        """
        return self._transform(X, self.copy, out)

    def _transform(self, X: Any, copy: bool, out: Any) -> Any:
        check_is_fitted(self)
        self._refuse_constants()
        table = self._validate(X, reset=False, dtype=FLOAT_DTYPES, write=not copy and out is None)
        self._check_contract(X)
        return self._map(table, self._affine(), copy, out)

    def inverse_transform(self, X: Any) -> Any:
        """Undo `transform`: the values it had before (constant features and clipped values do not come back).

        Args:
            X: as returned by `transform`.

        Returns:
            The same kind of container as X.
        """
        return self._inverse_transform(X, self.copy)

    def _inverse_transform(self, X: Any, copy: bool) -> Any:
        check_is_fitted(self)
        if isinstance(X, torch.Tensor):
            self._check_width(X)
        else:
            sparse_formats = ("csr", "csc") if self._accepts_sparse() else False
            X = check_array(
                X,
                accept_sparse=sparse_formats,
                dtype=FLOAT_DTYPES,
                force_writeable=not copy,
                ensure_all_finite=False,
            )
            self._refuse_sparse_infinity(X)
            if X.shape[1] != self.n_features_in_:
                raise InvalidInputError(
                    f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                    "features as input"
                )
        return self._map(X, self._inverse_affine(), copy)

    @property
    def contract_(self) -> Contract:
        """The contract of the data seen, saved along; other data is checked against it as ``on_mismatch`` says."""
        check_is_fitted(self)
        contract = Contract.from_statistics(self.statistics_, ddof=getattr(self, "ddof", 0))
        return contract.annotated(**getattr(self, "_notes", {}))

    def annotate(self, *, units: Mapping[str, str] | str | None = None, source: Any = None) -> Self:
        """Note what the features are measured in, and what the data is, in the contract saved along.

        Args:
            units: one for all features, or one for each name.
            source: a fingerprint or description of the data, any JSON value.
        """
        self._notes = {"units": units, "source": source}
        return self

    def to_module(self) -> FeatureAffine:
        """The fitted map as an `evenkeel.nn.FeatureAffine`: buffers, exact inverse, foldable into a following layer.

        Raises:
            sklearn.exceptions.NotFittedError: the scaler was not fitted.
        """
        check_is_fitted(self)
        self._refuse_constants()
        affine, inverse = self._affine(), self._inverse_affine()
        if (beyond := affine.beyond_range() | inverse.beyond_range()).any():
            raise InvalidInputError(
                f"to_module: feature {np.flatnonzero(beyond)[0]} has a centre or scale beyond what a module's float64 "
                f"map can take ({affine.shift[beyond][0]:.3g}, {inverse.scale[beyond][0]:.3g}); change its unit, and "
                "fit again"
            )
        return FeatureAffine(*affine[:3], clip=affine.clip, inverse=inverse[:3])

    def _map(self, X: Any, affine: Affine, copy: bool, out: Any = None) -> Any:
        if sparse.issparse(X):
            if out is not None:
                raise InvalidInputError("out takes the result of dense input; leave it out for a sparse matrix")
            X = X.copy() if copy else X
            scale_columns(X, affine)
            if affine.clip is not None:
                np.clip(X.data, *affine.clip, out=X.data)
            return X
        tensor = isinstance(X, torch.Tensor)
        table = X if tensor else as_tensor(X)
        # A view that torch cannot hold (reversed rows) was copied; scikit-learn promises no work in place either.
        in_place = out is None and not (copy or tensor) and table.data_ptr() == X.ctypes.data
        target = table if in_place else None if out is None else output_tensor(out, table, tensor)
        y = self._map_dense(table, affine, target, checked=not (tensor or get_config()["assume_finite"]))
        return X if in_place else out if out is not None else y if tensor else y.numpy()

    def _map_dense(self, table: Tensor, affine: Affine, out: Tensor | None, *, checked: bool) -> Tensor:
        y = map_table(table, affine, out, checked=checked)
        if y is None:
            raise infinity_error(table)
        return y

    def _validate(self, X: Any, *, reset: bool, dtype: Any, write: bool = False) -> Any:
        if isinstance(X, torch.Tensor):
            if not reset:
                self._check_width(X)
                return X
            _check_table(X)
            return validate_data(self, X, reset=True, skip_check_array=True)
        formats = ("csr", "csc") if self._accepts_sparse() else False
        X = validate_data(
            self, X, reset=reset, accept_sparse=formats, dtype=dtype, force_writeable=write, ensure_all_finite=False
        )
        if dtype is FLOAT_DTYPES:
            self._refuse_sparse_infinity(X)
        return X

    def _refuse_sparse_infinity(self, X: Any) -> None:
        """Refuse infinities in a sparse matrix; `_map` finds those in dense input as it goes."""
        if sparse.issparse(X):
            self._refuse_infinity(X.data)

    def _refuse_infinity(self, values: Any) -> None:
        """Raise where there is an infinity."""
        if not get_config()["assume_finite"] and has_infinity(values := as_tensor(values)):
            raise infinity_error(values)

    def _check_width(self, X: Tensor) -> None:
        if X.ndim == 0 or X.shape[-1] != self.n_features_in_:
            raise InvalidInputError(
                f"X has {X.shape[-1] if X.ndim else 0} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input; the last axis of {tuple(X.shape)} holds the features"
            )

    def _check_parameters(self) -> None:
        for name, choices in (("constant", get_args(Constant)), ("on_mismatch", get_args(OnMismatch))):
            if getattr(self, name) not in choices:
                raise InvalidArgumentError(
                    f"{type(self).__name__}: {name} must be one of {', '.join(choices)}, "
                    f"but got {getattr(self, name)!r}"
                )

    def _refuse_constants(self) -> None:
        if self.constant == "raise" and self.constant_.any():
            names = getattr(self, "feature_names_in_", range(self.n_features_in_))
            first = ", ".join(str(names[i]) for i in np.flatnonzero(self.constant_)[:10])
            raise InvalidInputError(
                f"{type(self).__name__}: {int(self.constant_.sum())} features are constant: {first}; drop them, or "
                'pass constant="one" (not scaled) or constant="zero" (set to 0)'
            )

    def _check_contract(self, X: Any) -> None:
        if self.on_mismatch != "ignore" and not sparse.issparse(X):
            report(self.contract_.problems(X, names=False), self.on_mismatch)

    def _dividing(self, shift: Array, divisor: Array, exponent: Array | int = 0) -> Affine:
        """The map (x - shift) / divisor, and 0 for constant features under ``constant="zero"``."""
        affine = Affine.dividing(shift, divisor, exponent)
        return affine._replace(scale=np.where(self.constant_, 0.0, affine.scale)) if self.constant == "zero" else affine

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self._accepts_sparse()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def scale_columns(X: Any, affine: Affine) -> None:
    """Scale the columns of a sparse matrix in place."""
    if not affine.beyond_range().any():
        inplace_column_scale(X, affine.scale)
        return
    mantissa, power = np.frexp(affine.scale)
    half = (power + affine.exponent) // 2
    inplace_column_scale(X, np.ldexp(1.0, half))
    inplace_column_scale(X, np.ldexp(mantissa, power + affine.exponent - half))


def dtype_name_or_none(X: Any) -> str | None:
    """The dtype of a tensor or array; None of anything else."""
    return dtype_name(X) if isinstance(X, torch.Tensor) or isinstance(getattr(X, "dtype", None), np.dtype) else None


def infinity_error(values: Tensor) -> InvalidInputError:
    """The error about infinities, in scikit-learn's words."""
    return InvalidInputError(
        f"Input X contains infinity or a value too large for dtype({dtype_name(values)!r}); replace it, or mark it "
        "missing with NaN"
    )


def _check_table(X: Tensor) -> None:
    check_dense(X)
    if X.ndim != 2 or 0 in X.shape:
        raise InvalidInputError(
            f"Expected 2D array (rows, features) with at least one of each, but got a tensor {tuple(X.shape)}; "
            "Reshape your data with X.reshape(-1, 1) for a single feature or X.reshape(1, -1) for a single row"
        )
