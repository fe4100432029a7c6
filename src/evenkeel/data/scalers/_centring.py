"""The base of StandardScaler and RobustScaler: a centre, a scale, and sparse matrices without centring only."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from evenkeel._errors import InvalidInputError
from evenkeel.data.scalers._affine import Affine
from evenkeel.data.scalers._base import Array, Scaler


class CentringScaler(Scaler):
    """Base of the scalers that subtract a centre and divide by a scale, either of which can be left out.

    Attributes:
        scale_: (features,), or None without scaling.
    """

    _option: ClassVar[str]  # the name of the argument that says whether to centre
    scale_: Array | None

    def _centre(self) -> Array | None:
        """The numbers to subtract (features,), or None without centring."""
        raise NotImplementedError

    def _quarter_scale(self) -> Array:
        """A quarter of the scale (features,), where the scale itself is beyond the range of float64."""
        raise NotImplementedError

    def _centre_and_scale(self) -> tuple[Array, Array, Array | int]:
        """What to subtract, what to divide by, and the exponent of a power of two to divide by as well."""
        centre, scale = self._centre(), self.scale_
        centre = np.zeros(self.n_features_in_) if centre is None else centre
        if scale is None or not (infinite := np.isinf(scale)).any():
            return centre, np.ones(self.n_features_in_) if scale is None else scale, 0
        return centre, np.where(infinite, self._quarter_scale(), scale), np.where(infinite, 2, 0)

    def _affine(self) -> Affine:
        return self._dividing(*self._centre_and_scale())

    def _inverse_affine(self) -> Affine:
        centre, scale, exponent = self._centre_and_scale()
        return Affine(np.zeros_like(scale), scale, centre, exponent=exponent)

    def _refuse_sparse_centring(self, table: Any) -> None:
        if sparse.issparse(table) and getattr(self, self._option):
            raise InvalidInputError(f"Cannot center sparse matrices: pass {self._option}=False, which keeps zeros zero")

    def _accepts_sparse(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not getattr(self, self._option)
        return tags
