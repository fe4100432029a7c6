"""The affine map of each feature, also where a step of it leaves the range of float64 though its result does not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenkeel.data.statistics import Array
from evenkeel.functional import column_affine, finite_column_affine

# A number below this can be added to the largest of float64 and taken from it without an overflow.
ADDABLE = 2.0**969
LEAST_NORMAL = float(np.finfo(np.float64).tiny)


class Affine(NamedTuple):
    """y = clip((x - shift) * scale * 2 ** exponent + offset), a number for each feature, float64."""

    shift: Array
    scale: Array
    offset: Array
    clip: tuple[float, float] | None = None
    exponent: Array | int = 0

    @classmethod
    def dividing(cls, shift: Array, divisor: Array, exponent: Array | int = 0) -> Affine:
        """y = (x - shift) / (divisor * 2 ** exponent)."""
        with np.errstate(all="ignore"):
            plain = np.ldexp(1.0 / divisor, -exponent)
        scale, power = quotient(plain, np.ones_like(divisor), divisor, -exponent)
        return cls(shift, scale, np.zeros_like(scale), exponent=power)

    def beyond_range(self) -> Array:
        """The features whose map cannot be computed step by step in float64, a mask."""
        far = (np.abs(self.shift) > ADDABLE) | (np.abs(self.offset) > ADDABLE)
        return (
            far
            | (self.exponent != np.zeros(1))
            | (np.isfinite(self.scale) & ~is_normal(self.scale) & (self.scale != 0))
        )

    def of(self, features: Any) -> Affine:
        """The map of some of the features."""
        exponent = np.broadcast_to(self.exponent, self.scale.shape)[features]
        return Affine(self.shift[features], self.scale[features], self.offset[features], self.clip, exponent)


def quotient(plain: Array, numerator: Array, divisor: Array, exponent: Array | int) -> tuple[Array, Array]:
    """numerator / divisor * 2 ** exponent as numbers and further exponents: `plain` and 0 where float64 holds that."""
    (above, up), (below, down) = np.frexp(numerator), np.frexp(divisor)
    held = is_normal(plain) | ~np.isfinite(divisor) | (divisor == 0) | (numerator == 0)
    with np.errstate(all="ignore"):
        return np.where(held, plain, above / below), np.where(held, 0, up - down + exponent)


def is_normal(values: Array) -> Array:
    """Whether numbers are finite and have all their digits."""
    return np.isfinite(values) & (np.abs(values) >= LEAST_NORMAL)


def map_table(x: Tensor, affine: Affine, out: Tensor | None = None, *, checked: bool = False) -> Tensor | None:
    """Map the columns of a table, into ``out`` if there is one; None where ``checked`` and x holds an infinity."""
    beyond = np.flatnonzero(affine.beyond_range())
    wide = [map_in_steps(x[..., index], affine.of(index)) for index in beyond]  # before x may be written to
    shift, scale = (torch.from_numpy(part).to(x.device) for part in affine[:2])
    # Without an addition of 0 the map runs at 2 read passes instead of 3.
    offset = torch.from_numpy(affine.offset).to(x.device) if affine.offset.any() else None
    run = finite_column_affine if checked else column_affine
    y: Tensor | None = run(x, shift, scale, offset, clip=affine.clip, out=out)
    if y is not None:
        for index, column in zip(beyond, wide, strict=True):
            y[..., index] = column.to(y.dtype)
    return y


def map_in_steps(x: Tensor, affine: Affine) -> Tensor:
    """Map one column in steps by powers of two, which keep what comes between in the range of float64."""
    shift, offset = float(affine.shift), float(affine.offset)
    mantissa, power = np.frexp(affine.scale)
    less, more = (4.0 if abs(number) > ADDABLE else 1.0 for number in (shift, offset))
    exponent = int(power + affine.exponent + np.log2(less) - np.log2(more))
    half = exponent // 2
    y = (x.double() / less - shift / less) * 2.0**half * (float(mantissa) * 2.0 ** (exponent - half))
    y = (y + offset / more) * more
    return y if affine.clip is None else y.clamp(*affine.clip)
