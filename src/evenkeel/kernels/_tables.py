"""The operators on tables and pictures, with the shapes of their results; `_ops` says whether they can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evenkeel.kernels import _ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def column_moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """Count, mean, m2, minimum, maximum, missing, infinite, mean_low of the columns of (tables, rows, columns)."""
    return torch.ops.evenkeel.column_moments.default(x, None if weight is None else weight.double())


def separate_column_moments(columns: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same of columns (rows,), each with memory of its own: tensors (columns,)."""
    return torch.ops.evenkeel.separate_column_moments.default(columns)


def _parameters(*parameters: Tensor | None) -> list[Tensor | None]:
    return [None if p is None else p.double() for p in parameters]


def column_affine(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    clip: tuple[float | None, float | None] | None,
    dtype: torch.dtype,
    infinite: Tensor | None = None,
) -> Tensor:
    """(x - shift) * scale + offset for each column of (..., columns); ``infinite`` says whether x ever is."""
    low, high = clip or (None, None)
    return torch.ops.evenkeel.column_affine.default(x, *_parameters(shift, scale, offset), low, high, dtype, infinite)


def column_affine_out(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    clip: tuple[float | None, float | None] | None,
    out: Tensor,
    infinite: Tensor | None = None,
) -> None:
    """The same, written to ``out``."""
    low, high = clip or (None, None)
    torch.ops.evenkeel.column_affine_out.default(x, *_parameters(shift, scale, offset), low, high, out, infinite)


def image_normalize(images: Tensor, mean: Tensor, std: Tensor, max_value: float, dtype: torch.dtype) -> Tensor:
    """(x / max_value - mean) / std for each channel of (..., channels, height, width), whatever its strides."""
    return torch.ops.evenkeel.image_normalize.default(images, mean, std, max_value, dtype)


def image_normalize_out(images: Tensor, mean: Tensor, std: Tensor, max_value: float, out: Tensor) -> None:
    """The same, written to ``out``, which is contiguous."""
    torch.ops.evenkeel.image_normalize_out.default(images, mean, std, max_value, out)


def stored_by_columns(x: Tensor) -> bool:
    """Whether a matrix has dense columns and no dense rows; a single row or column has both."""
    return x.ndim == 2 and min(x.shape) > 1 and x.stride(0) == 1 and x.stride(1) >= x.shape[0]


def _moments_fake(shape: tuple[int, ...], weighted: bool, device: torch.device | str) -> tuple[Tensor, ...]:
    counts = [torch.empty(shape, dtype=torch.int64, device=device) for _ in range(3)]
    numbers = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(6)]
    return (numbers[0] if weighted else counts[0], *numbers[1:5], *counts[1:], numbers[5])


def _column_moments_fake(x: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    return _moments_fake((x.shape[0], x.shape[2]), weight is not None, x.device)


def _separate_column_moments_fake(columns: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return _moments_fake((len(columns),), False, columns[0].device if columns else "cpu")


def _column_affine_fake(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    low: float | None,
    high: float | None,
    dtype: torch.dtype,
    infinite: Tensor | None = None,
) -> Tensor:
    if stored_by_columns(x):
        return x.new_empty((x.shape[1], x.shape[0]), dtype=dtype).t()
    return x.new_empty(x.shape, dtype=dtype)


def _image_normalize_fake(images: Tensor, mean: Tensor, std: Tensor, max_value: float, dtype: torch.dtype) -> Tensor:
    return images.new_empty(images.shape, dtype=dtype)


def _nothing(*arguments: object) -> None:
    """The result of an operator that writes to ``out``."""


if not _ops._MISSING:
    torch.library.register_fake("evenkeel::column_moments", _column_moments_fake)
    torch.library.register_fake("evenkeel::separate_column_moments", _separate_column_moments_fake)
    torch.library.register_fake("evenkeel::column_affine", _column_affine_fake)
    torch.library.register_fake("evenkeel::column_affine_out", _nothing)
    torch.library.register_fake("evenkeel::image_normalize", _image_normalize_fake)
    torch.library.register_fake("evenkeel::image_normalize_out", _nothing)
